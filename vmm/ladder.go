package vmm

import (
	"iter"
	"math/bits"
)

// wish is how many bytes a range of committed bytes grows by when it needs
// need: a quarter of what is there already, so that a large range grows seldom,
// by large chunks, and never wastes more than a quarter; no more than room.
// need <= room, and all are multiples of gran, a power of two. With chunks of a
// fixed size, if not 0, it is the need alone.
func wish(need, committed, room, gran, fixed uint64) uint64 {
	if fixed != 0 {
		return need
	}
	return min(max(need, committed/4/gran*gran), room)
}

// ladder is the sizes of the chunks that fill want bytes: powers of two, largest
// first, none above most. A fixed size, if not 0, is the size of every chunk;
// want is then a multiple of it.
func ladder(want, most, fixed uint64) iter.Seq[uint64] {
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

// worthwhile is the smallest kept chunk that is worth taking where left bytes
// are wanted. Access is set for each chunk by itself, so many small ones cost
// more than new memory; of an eighth and more a growth takes a few dozen.
func worthwhile(left, fixed uint64) uint64 {
	if fixed != 0 {
		return fixed
	}
	return left / 8
}
