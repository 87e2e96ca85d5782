package verify

import (
	"cmp"
	"context"
	"fmt"
	"sort"
	"sync"
)

// Mode says how much is checked.
type Mode string

// The values of Mode. Edges checks the first and last 4 KiB of every chunk: if a
// chunk is missing, doubled, swapped or too short, they are wrong.
const (
	Full  Mode = "full"
	Edges Mode = "edges"
	Off   Mode = "off"
)

const edge = 4 << 10

// Poison fills a destination before a copy, so that data of an earlier copy cannot
// pass for the work of this one.
const Poison = 0xa5

// Result is the result of a check. Bytes is how many were read and compared, ByDevice how
// many of them by the device that has them, without copies to the host.
type Result struct {
	Mode     Mode   `json:"mode"`
	Bytes    uint64 `json:"bytes"`
	ByDevice uint64 `json:"bytes_by_device,omitempty"`
	Errors   uint64 `json:"errors"` // bytes that are wrong
	FirstBad *Bad   `json:"first_bad"`
}

// Add adds the check of another buffer of the same case.
func (r *Result) Add(o Result) {
	r.Bytes += o.Bytes
	r.ByDevice += o.ByDevice
	r.Errors += o.Errors
	if r.FirstBad == nil {
		r.FirstBad = o.FirstBad
	}
}

// Bad is the first wrong byte. If the word there belongs to another offset of the
// same buffer, Holds is that offset: the data are in the wrong place.
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

// View returns the bytes [off, off+n) of the buffer under test, in scratch or where they
// are. It is called from several goroutines at once.
type View func(scratch []byte, off, n uint64) ([]byte, error)

// Check compares size bytes with the pattern, until ctx is done. chunks are the offsets at
// which the chunks of the buffer begin: multiples of 8, the first one 0. Check counts all
// wrong bytes, so it does not stop at the first.
func (p Pattern) Check(ctx context.Context, mode Mode, size uint64, chunks []uint64, view View) (Result, error) {
	r, err := p.CheckBy(ctx, mode, size, chunks, func(from, n uint64, p Pattern) (bad, first uint64, err error) {
		return p.compare(ctx, from, n, view)
	}, view)
	r.ByDevice = 0
	return r, err
}

// compare is a Compare of what view returns.
func (p Pattern) compare(ctx context.Context, from, size uint64, view View) (bad, first uint64, err error) {
	first = size
	var mu sync.Mutex // of bad and first
	err = EachBlock(ctx, size, func(scratch []byte, off, n uint64) error {
		got, err := view(scratch[:n], from+off, n)
		if err != nil {
			return err
		}
		wrong, at := p.differ(got, off)
		mu.Lock()
		defer mu.Unlock()
		if bad += wrong; wrong > 0 {
			first = min(first, off+uint64(at))
		}
		return nil
	})
	return bad, first, err
}

// Compare compares n bytes of the buffer at off, where they are, with the pattern from its
// beginning. It returns how many differ and where in them the first is.
type Compare func(off, n uint64, p Pattern) (bad, first uint64, err error)

// CheckBy is Check with the comparison done by another. Only the first wrong word is viewed:
// if it is right, the comparison was wrong, which is an error.
func (p Pattern) CheckBy(ctx context.Context, mode Mode, size uint64, chunks []uint64, compare Compare, view View) (Result, error) {
	r := Result{Mode: mode}
	for _, s := range spans(mode, size, chunks) {
		if err := ctx.Err(); err != nil {
			return r, err
		}
		n := s.to - s.from
		bad, first, err := compare(s.from, n, p.From(s.from))
		if err != nil {
			err = fmt.Errorf("compare %d bytes at offset %d: %w", n, s.from, err)
		}
		// Bytes found wrong before an error are wrong all the same.
		if bad > 0 && r.FirstBad == nil {
			found, lost := p.bad(ctx, s, first, size, chunks, view)
			r.FirstBad, err = found, cmp.Or(err, lost)
		}
		if r.Errors += bad; err != nil {
			return r, err
		}
		r.Bytes += n
		r.ByDevice += n
	}
	return r, nil
}

// bad describes the byte that is said to be the first wrong one in a span, first bytes
// from its beginning.
func (p Pattern) bad(ctx context.Context, s span, first, size uint64, chunks []uint64, view View) (*Bad, error) {
	if first >= s.to-s.from {
		return nil, fmt.Errorf("a wrong byte is found at offset %d, beyond %d", s.from+first, s.to)
	}
	at := s.from + first
	off := at &^ (word - 1)
	n := min(word, s.to-off)
	got, err := view(make([]byte, n), off, n)
	if err != nil {
		return nil, fmt.Errorf("read back %d bytes at offset %d: %w", n, off, err)
	}
	if bad, i := p.differ(got, off); bad == 0 || off+uint64(i) != at {
		return nil, fmt.Errorf("a comparison finds the first wrong byte at offset %d, and the host does not", at)
	}
	b := &Bad{
		Offset:   at,
		Chunk:    sort.Search(len(chunks), func(i int) bool { return chunks[i] > at }) - 1,
		Expected: p.bytes(off, word)[at-off],
		Got:      got[at-off],
	}
	if n == word {
		b.Holds = p.find(ctx, got, size)
	}
	return b, nil
}

type span struct{ from, to uint64 }

// spans returns what mode checks, without overlap and in rising order.
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
		// The two edges of a short chunk would overlap.
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
