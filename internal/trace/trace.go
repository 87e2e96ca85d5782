package trace

import "math/bits"

// The bounds of a trace that is read.
const (
	maxStreams = 64
	maxSize    = 1 << 44 // of one block
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
