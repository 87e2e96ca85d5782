package trace

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

const header = "cuvmm pool trace 1"

// Write writes the trace as text.
func (t *Trace) Write(w io.Writer) error {
	b := bufio.NewWriter(w)
	fmt.Fprintln(b, header)
	for _, o := range t.Ops {
		switch o.Kind {
		case Alloc:
			fmt.Fprintf(b, "+ %d %d\n", o.Size, o.Stream)
		case Free:
			fmt.Fprintf(b, "- %d %d\n", o.Block, o.Stream)
		case Sync:
			fmt.Fprintln(b, "s")
		}
	}
	return b.Flush()
}

// Read reads what Write wrote. A trace that it returns passes Check.
func Read(r io.Reader, name string) (*Trace, error) {
	s := bufio.NewScanner(r)
	s.Buffer(nil, 256)
	t := &Trace{Name: name}
	var c checker
	for line := 1; s.Scan(); line++ {
		if line == 1 {
			if s.Text() != header {
				return nil, fmt.Errorf("line 1 is not %q", header)
			}
			continue
		}
		o, err := parse(s.Text(), uint32(len(c.live)))
		if err == nil {
			err = c.op(o)
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", line, err)
		}
		t.Ops = append(t.Ops, o)
	}
	if err := s.Err(); err != nil {
		return nil, err
	}
	if len(t.Ops) == 0 {
		return nil, errors.New("no operation")
	}
	t.Streams, t.Blocks = c.streams, len(c.live)
	return t, c.end()
}

// parse reads one line. next is the number of the block that it would allocate.
func parse(line string, next uint32) (Op, error) {
	if line == "s" {
		return Op{Kind: Sync}, nil
	}
	kind, rest, _ := strings.Cut(line, " ")
	first, second, _ := strings.Cut(rest, " ")
	stream, err := strconv.ParseUint(second, 10, 8)
	if err != nil {
		return Op{}, fmt.Errorf("stream: %w", err)
	}
	switch kind {
	case "+":
		size, err := strconv.ParseUint(first, 10, 64)
		return Op{Kind: Alloc, Stream: uint8(stream), Block: next, Size: size}, err
	case "-":
		block, err := strconv.ParseUint(first, 10, 32)
		return Op{Kind: Free, Stream: uint8(stream), Block: uint32(block)}, err
	}
	return Op{}, fmt.Errorf("%q is no operation", kind)
}
