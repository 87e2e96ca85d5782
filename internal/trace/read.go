package trace

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// header is the first line; see RMM's cpp/src/mr/detail/logging_resource_adaptor_impl.cpp.
const header = "Thread,Time,Action,Pointer,Size,Stream"

// Read reads what pool.Options.Trace or RMM wrote. Allocations that failed, and those of 0
// bytes, are left out. Streams are numbered as they appear. A trace that it returns passes
// Check.
func Read(r io.Reader, name string) (*Trace, error) {
	s := bufio.NewScanner(r)
	s.Buffer(nil, 256)
	rd := reader{t: &Trace{Name: name}, live: map[uint64]block{}, streams: map[uint64]uint8{}}
	for line := 1; s.Scan(); line++ {
		if line == 1 {
			if s.Text() != header {
				return nil, fmt.Errorf("line 1 is not %q", header)
			}
			continue
		}
		if err := rd.line(s.Text()); err != nil {
			return nil, fmt.Errorf("line %d: %w", line, err)
		}
	}
	if err := s.Err(); err != nil {
		return nil, err
	}
	if len(rd.t.Ops) == 0 {
		return nil, errors.New("no operation")
	}
	rd.t.Streams, rd.t.Blocks = rd.c.streams, len(rd.c.live)
	return rd.t, rd.c.end()
}

// reader makes a trace of lines.
type reader struct {
	t       *Trace
	c       checker
	live    map[uint64]block // by address
	streams map[uint64]uint8
}

type block struct {
	number uint32
	size   uint64
}

// line adds one operation, or none.
func (r *reader) line(text string) error {
	f := strings.Split(text, ",")
	if len(f) != 6 {
		return fmt.Errorf("%d columns, not 6", len(f))
	}
	if _, err := strconv.ParseUint(f[0], 10, 64); err != nil {
		return fmt.Errorf("thread: %w", err)
	}
	ptr, err := parsePtr(f[3])
	if err != nil {
		return fmt.Errorf("pointer: %w", err)
	}
	size, err := strconv.ParseUint(f[4], 10, 64)
	if err != nil {
		return fmt.Errorf("size: %w", err)
	}
	stream, err := strconv.ParseUint(f[5], 0, 64)
	if err != nil {
		return fmt.Errorf("stream: %w", err)
	}
	o := Op{}
	switch action := f[2]; {
	case action == "allocate failure", size == 0 && (action == "allocate" || action == "free"):
		return nil
	case action == "allocate":
		if b, ok := r.live[ptr]; ok {
			return fmt.Errorf("%#x is block %d already", ptr, b.number)
		}
		o = Op{Kind: Alloc, Block: uint32(len(r.c.live)), Size: size}
		r.live[ptr] = block{o.Block, size}
	case action == "free":
		b, ok := r.live[ptr]
		if !ok || b.size != size {
			return fmt.Errorf("no block of %d bytes is at %#x", size, ptr)
		}
		o = Op{Kind: Free, Block: b.number}
		delete(r.live, ptr)
	default:
		return fmt.Errorf("%q is no action", action)
	}
	if o.Stream, err = r.stream(stream); err == nil {
		err = r.c.op(o)
	}
	r.t.Ops = append(r.t.Ops, o)
	return err
}

// stream is the number of a stream.
func (r *reader) stream(raw uint64) (uint8, error) {
	n, ok := r.streams[raw]
	if !ok {
		if len(r.streams) == MaxStreams {
			return 0, fmt.Errorf("more than %d streams", MaxStreams)
		}
		n = uint8(len(r.streams))
		r.streams[raw] = n
	}
	return n, nil
}

// parsePtr reads what C writes for %p.
func parsePtr(text string) (uint64, error) {
	if text == "(nil)" {
		return 0, nil
	}
	return strconv.ParseUint(strings.TrimPrefix(text, "0x"), 16, 64)
}
