package vmm

import "math/bits"

// ladder appends the sizes of the chunks with which a range of committed bytes
// grows by at least need: powers of two, largest first, none above most. All
// are multiples of gran, and together no more than room. need <= room, and both
// and committed are multiples of gran, a power of two.
//
// A quarter of what is there already comes on top, so that a large range grows
// seldom, by large chunks, and never wastes more than a quarter. A fixed size,
// if not 0, is the size of every chunk; room is then a multiple of it.
func ladder(sizes []uint64, need, committed, room, gran, most, fixed uint64) []uint64 {
	if fixed != 0 {
		for n := uint64(0); n < need; n += fixed {
			sizes = append(sizes, fixed)
		}
		return sizes
	}
	want := max(need, committed/4/gran*gran)
	want = min(want, room)
	for want > 0 {
		step := min(uint64(1)<<(bits.Len64(want)-1), most)
		sizes = append(sizes, step)
		want -= step
	}
	return sizes
}
