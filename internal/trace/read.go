package trace

import (
	"cmp"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// header is the first line; see RMM's cpp/src/mr/detail/logging_resource_adaptor_impl.cpp.
const header = "Thread,Time,Action,Pointer,Size,Stream"

// Read reads what pool.Trace or RMM wrote. Allocations that failed, and those of 0
// bytes, are left out. Streams are numbered as they appear. Blocks that are left at the end are
// freed in the streams that they were allocated in.
func Read(r io.Reader, name string) (*Trace, error) {
	t := reader{Trace: Trace{Name: name}, live: map[uint64]Op{}, streams: map[uint64]uint8{}}
	in := csv.NewReader(r)
	in.FieldsPerRecord, in.ReuseRecord = strings.Count(header, ",")+1, true
	for line := 0; ; line++ {
		f, err := in.Read()
		switch {
		case errors.Is(err, io.EOF):
			if len(t.Ops) == 0 {
				return nil, errors.New("no operation")
			}
			t.Streams = len(t.streams)
			t.freeAll()
			return &t.Trace, nil
		case err != nil:
			return nil, err
		case line == 0 && strings.Join(f, ",") != header:
			return nil, fmt.Errorf("line 1 is not %q", header)
		case line > 0:
			if err := t.line(f); err != nil {
				return nil, fmt.Errorf("operation %d: %w", line, err)
			}
		}
	}
}

// reader makes a trace of lines.
type reader struct {
	Trace
	live    map[uint64]Op // allocations, by address
	streams map[uint64]uint8
}

// line adds one operation, or none.
func (r *reader) line(f []string) error {
	action, at := f[2], strings.TrimPrefix(f[3], "0x")
	if at == "(nil)" { // as C writes it
		at = "0"
	}
	ptr, err := strconv.ParseUint(at, 16, 64)
	size, errSize := strconv.ParseUint(f[4], 10, 64)
	stream, errStream := strconv.ParseUint(f[5], 0, 64)
	if err = cmp.Or(err, errSize, errStream); err != nil {
		return err
	}
	b, ok := r.live[ptr]
	switch {
	case action == "allocate failure", size == 0 && (action == "allocate" || action == "free"):
		return nil
	case action == "allocate" && ok:
		return fmt.Errorf("%#x is block %d already", ptr, b.Block)
	case action == "allocate" && size <= maxSize:
		b = Op{Kind: Alloc, Block: uint32(r.Blocks), Size: size}
		b.Stream, err = r.stream(stream)
		r.live[ptr] = b
		r.Blocks++
	case action == "free" && ok && b.Size == size:
		b.Kind, b.Size = Free, 0
		b.Stream, err = r.stream(stream)
		delete(r.live, ptr)
	default:
		return fmt.Errorf("cannot %q %d bytes at %#x", action, size, ptr)
	}
	r.Ops = append(r.Ops, b)
	return err
}

// stream is the number of a stream.
func (r *reader) stream(raw uint64) (uint8, error) {
	n, ok := r.streams[raw]
	if !ok {
		n = uint8(len(r.streams))
		r.streams[raw] = n
	}
	if n >= maxStreams {
		return 0, fmt.Errorf("more than %d streams", maxStreams)
	}
	return n, nil
}

// freeAll frees what is live, in the order of the allocations.
func (r *reader) freeAll() {
	for _, b := range slices.SortedFunc(maps.Values(r.live), func(a, b Op) int { return cmp.Compare(a.Block, b.Block) }) {
		r.Ops = append(r.Ops, Op{Kind: Free, Stream: b.Stream, Block: b.Block})
	}
}
