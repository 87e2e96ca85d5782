// Package sizes says by how much a range grows and in what sizes of chunk.
package sizes

import (
	"iter"
	"math/bits"
)

// Growth is how many bytes a range of committed bytes grows by when it needs
// need: at least a quarter of what it has, so that a large range grows seldom, by
// large chunks, and never wastes more than a quarter. It is at most left, the
// addresses that are left. need <= left, and all are multiples of gran, a power of
// two. With chunks of a fixed size, if that is not 0, it is the need alone.
func Growth(need, committed, left, gran, fixed uint64) uint64 {
	if fixed != 0 {
		return need
	}
	return min(max(need, committed/4/gran*gran), left)
}

// Chunks are the sizes of the chunks that fill want bytes: powers of two, the
// largest first, none above most. A fixed size, if not 0, is the size of every
// chunk; want is then a multiple of it.
func Chunks(want, most, fixed uint64) iter.Seq[uint64] {
	return func(yield func(uint64) bool) {
		for left := want; left > 0; {
			size := fixed
			if fixed == 0 {
				size = min(uint64(1)<<(bits.Len64(left)-1), most)
			}
			if !yield(size) {
				return
			}
			left -= min(left, size)
		}
	}
}
