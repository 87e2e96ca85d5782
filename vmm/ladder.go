package vmm

import (
	"iter"
	"math/bits"
)

// ladder is the sizes of the chunks with which a range of committed bytes grows
// by at least need: powers of two, largest first, none above most. All
// are multiples of gran, and together no more than room. need <= room, and both
// and committed are multiples of gran, a power of two.
//
// A quarter of what is there already comes on top, so that a large range grows
// seldom, by large chunks, and never wastes more than a quarter. A fixed size,
// if not 0, is the size of every chunk; room is then a multiple of it.
func ladder(need, committed, room, gran, most, fixed uint64) iter.Seq[uint64] {
	want := min(max(need, committed/4/gran*gran), room)
	if fixed != 0 {
		want = need
	}
	return func(yield func(uint64) bool) {
		for left := want; left > 0; {
			step := fixed
			if fixed == 0 {
				step = min(uint64(1)<<(bits.Len64(left)-1), most)
			}
			if !yield(step) {
				return
			}
			left -= min(left, step)
		}
	}
}
