package trace

import (
	"errors"
	"fmt"
	"maps"
	"math/bits"
	"slices"
)

// The bounds of a trace that is read.
const (
	MaxStreams = 64
	MaxSize    = 1 << 44 // of one block
)

// Kind is what an operation does.
type Kind uint8

// The kinds.
const (
	Alloc Kind = iota + 1
	Free
	Sync // waits for all streams, as a program does once per step
)

// Op is one operation.
type Op struct {
	Kind   Kind
	Stream uint8
	Block  uint32 // the number of the allocation
	Size   uint64 // bytes; of Alloc only
}

// Trace is what a program does with its allocator.
type Trace struct {
	Name    string
	Streams int // are used, from 0
	Blocks  int // are allocated
	Ops     []Op
}

// Peak is the most bytes that are allocated at once.
func (t *Trace) Peak() uint64 {
	sizes := make([]uint64, t.Blocks)
	var live, peak uint64
	for _, o := range t.Ops {
		switch o.Kind {
		case Alloc:
			sizes[o.Block] = o.Size
			live += o.Size
			peak = max(peak, live)
		case Free:
			live -= sizes[o.Block]
		}
	}
	return peak
}

// checker finds the first operation that cannot be.
type checker struct {
	live    []bool // of each block so far
	n       int    // of them are live
	bytes   uint64 // so far, of all blocks
	streams int
}

func (c *checker) op(o Op) error {
	if o.Stream >= MaxStreams {
		return fmt.Errorf("stream %d of %d", o.Stream, MaxStreams)
	}
	c.streams = max(c.streams, int(o.Stream)+1)
	switch o.Kind {
	case Alloc:
		if o.Size == 0 || o.Size > MaxSize {
			return fmt.Errorf("block of %d bytes", o.Size)
		}
		if int(o.Block) != len(c.live) {
			return fmt.Errorf("block %d comes after %d", o.Block, len(c.live))
		}
		sum, carry := bits.Add64(c.bytes, o.Size, 0)
		if carry != 0 {
			return errors.New("the sizes overflow")
		}
		c.bytes = sum
		c.live = append(c.live, true)
		c.n++
	case Free:
		if int(o.Block) >= len(c.live) || !c.live[o.Block] {
			return fmt.Errorf("block %d is not allocated", o.Block)
		}
		c.live[o.Block] = false
		c.n--
	case Sync:
	default:
		return fmt.Errorf("kind %d", o.Kind)
	}
	return nil
}

// end is whether everything was freed.
func (c *checker) end() error {
	if c.n > 0 {
		return fmt.Errorf("%d blocks are never freed", c.n)
	}
	return nil
}

// Check is nil for a trace that frees every block exactly once.
func (t *Trace) Check() error {
	var c checker
	for i, o := range t.Ops {
		if err := c.op(o); err != nil {
			return fmt.Errorf("operation %d: %w", i, err)
		}
	}
	if err := c.end(); err != nil {
		return err
	}
	if c.streams > t.Streams || len(c.live) != t.Blocks {
		return fmt.Errorf("%d streams and %d blocks, not %d and %d", c.streams, len(c.live), t.Streams, t.Blocks)
	}
	return nil
}

// Shorten leaves out what comes after the first n operations. What is allocated then is freed
// in the streams that it was allocated in.
func (t *Trace) Shorten(n int) {
	if n >= len(t.Ops) {
		return
	}
	t.Ops = slices.Clip(t.Ops[:n])
	t.Blocks = 0
	live := map[uint32]Op{}
	for _, o := range t.Ops {
		switch o.Kind {
		case Alloc:
			live[o.Block] = o
			t.Blocks++
		case Free:
			delete(live, o.Block)
		}
	}
	t.Ops = append(t.Ops, Op{Kind: Sync})
	for _, id := range slices.Sorted(maps.Keys(live)) {
		t.Ops = append(t.Ops, Op{Kind: Free, Stream: live[id].Stream, Block: id})
	}
	t.Ops = append(t.Ops, Op{Kind: Sync})
}

// Scale makes the peak what is asked for, or less by rounding: every size is multiplied.
// No size that was 512 bytes or more becomes less.
func (t *Trace) Scale(peak uint64) {
	unit := t.Peak()
	want := peak
	sizes := make([]uint64, 0, t.Blocks)
	for _, o := range t.Ops {
		if o.Kind == Alloc {
			sizes = append(sizes, o.Size)
		}
	}
	// Sizes that stay 512 bytes add up to more than their share: then the others get less.
	for range 8 {
		for i := range t.Ops {
			if o := &t.Ops[i]; o.Kind == Alloc {
				size := sizes[o.Block]
				hi, lo := bits.Mul64(size, want)
				scaled, _ := bits.Div64(hi, lo, unit)
				o.Size = max(scaled, min(size, 512))
			}
		}
		got := t.Peak()
		if got <= peak || 2*(got-peak) >= want {
			return
		}
		want -= 2 * (got - peak)
	}
}
