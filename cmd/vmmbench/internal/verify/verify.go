package verify

import (
	"fmt"
	"slices"
	"sort"
)

// Mode says how much is checked.
type Mode string

// Modes. Edges is the first and last 4 KiB of every chunk: where a chunk is
// missing, doubled, swapped or short, its edges are wrong.
const (
	Full  Mode = "full"
	Edges Mode = "edges"
	Off   Mode = "off"
)

// Set implements pflag.Value.
func (m *Mode) Set(s string) error {
	if !slices.Contains([]Mode{Full, Edges, Off}, Mode(s)) {
		return fmt.Errorf("verify %q: want full, edges or off", s)
	}
	*m = Mode(s)
	return nil
}

func (m *Mode) String() string { return string(*m) }

// Type implements pflag.Value.
func (m *Mode) Type() string { return "full|edges|off" }

const (
	edge  = 4 << 10
	block = 1 << 20 // read at a time
)

// Poison is what a destination holds before anything is copied there, so that
// what an earlier run left cannot pass for the work of this one.
const Poison = 0xa5

// Result is what a check found. Bytes were really read and compared.
type Result struct {
	Mode     Mode   `json:"mode"`
	Bytes    uint64 `json:"bytes"`
	Errors   uint64 `json:"errors"` // bytes that are wrong
	FirstBad *Bad   `json:"first_bad"`
}

// Add takes in the check of another buffer of the same case.
func (r *Result) Add(o Result) {
	r.Bytes += o.Bytes
	r.Errors += o.Errors
	if r.FirstBad == nil {
		r.FirstBad = o.FirstBad
	}
}

// Bad is the first wrong byte. Holds is the offset whose word stands in its
// place, if that word belongs elsewhere in the same buffer: data that moved.
type Bad struct {
	Offset   uint64  `json:"offset"`
	Chunk    int     `json:"chunk"`
	Expected byte    `json:"expected"`
	Got      byte    `json:"got"`
	Holds    *uint64 `json:"holds"`
}

func (b Bad) String() string {
	s := fmt.Sprintf("offset %d (chunk %d): expected %#02x, got %#02x", b.Offset, b.Chunk, b.Expected, b.Got)
	if b.Holds != nil {
		s += fmt.Sprintf(": the word of offset %d stands there", *b.Holds)
	}
	return s
}

// View gives the bytes [off, off+n) of the buffer under test. They are valid
// until the next call.
type View func(off, n uint64) ([]byte, error)

// Bytes is the View of ordinary memory.
func Bytes(b []byte) View {
	return func(off, n uint64) ([]byte, error) { return b[off : off+n], nil }
}

// Check compares size bytes with the pattern. chunks are the offsets at which
// the chunks of the buffer begin, the first of them 0, multiples of 8. It goes
// on after a mismatch, to count.
func (p Pattern) Check(mode Mode, size uint64, chunks []uint64, view View) (Result, error) {
	r := Result{Mode: mode}
	for _, s := range spans(mode, size, chunks) {
		for off := s.from; off < s.to; {
			n := min(block, s.to-off)
			got, err := view(off, n)
			if err != nil {
				return r, fmt.Errorf("read back %d bytes at offset %d: %w", n, off, err)
			}
			bad, first := p.differ(got, off)
			r.Bytes += n
			r.Errors += bad
			if bad > 0 && r.FirstBad == nil {
				r.FirstBad = p.bad(off, first, got, size, chunks)
			}
			off += n
		}
	}
	return r, nil
}

func (p Pattern) bad(off uint64, first int, got []byte, size uint64, chunks []uint64) *Bad {
	at := off + uint64(first)
	b := &Bad{
		Offset:   at,
		Chunk:    sort.Search(len(chunks), func(i int) bool { return chunks[i] > at }) - 1,
		Expected: p.at(at),
		Got:      got[first],
	}
	if start := first &^ (word - 1); start+word <= len(got) {
		if i := p.index(tail(got[start:])); i < size/word {
			holds := i * word
			b.Holds = &holds
		}
	}
	return b
}

type span struct{ from, to uint64 }

// spans is what mode looks at, without overlap and in rising order.
func spans(mode Mode, size uint64, chunks []uint64) []span {
	switch mode {
	case Off:
		return nil
	case Full:
		return []span{{0, size}}
	}
	var list []span
	for i, from := range chunks {
		to := size
		if i+1 < len(chunks) {
			to = min(size, chunks[i+1])
		}
		switch {
		case from >= to:
		case to-from <= 2*edge:
			list = append(list, span{from, to})
		default:
			list = append(list, span{from, from + edge}, span{(to - edge) &^ (word - 1), to})
		}
	}
	return list
}
