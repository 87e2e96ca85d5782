// Package sizes says by how much a range grows and in what sizes of chunk.
package sizes

import (
	"iter"
	"math/bits"
)

// Ladder is how a range chooses the sizes of its chunks. All sizes are multiples of Gran.
type Ladder struct {
	Gran  uint64 // the granularity, a power of two
	Most  uint64 // of one chunk, a power of two
	Fixed uint64 // the size of every chunk; 0: they grow with the range
	Few   bool   // as few chunks as possible: each is a handle that other processes import
}

// Growth is how many bytes a range of committed bytes grows by when it needs need. It is more than
// that, so that a large range grows seldom, by large chunks: a quarter of what it has, and never
// wastes more. With Few it is 15 %: 16 GiB in granules of 2 MiB are 64 chunks at most, whatever the
// steps. It is at most left, the addresses that are left. need <= left, and all are multiples of
// Gran. With chunks of a fixed size it is the need alone.
func (l Ladder) Growth(need, committed, left uint64) uint64 {
	if l.Fixed != 0 {
		return need
	}
	more := committed / 4
	if l.Few {
		more = committed / 20 * 3
	}
	return min(max(need, more/l.Gran*l.Gran), left)
}

// Chunks are the sizes of the chunks that fill want bytes: powers of two, the largest first, none
// above Most. With Few it is one chunk, or as many of Most as it takes and the rest. With a fixed
// size, want is a multiple of it.
func (l Ladder) Chunks(want uint64) iter.Seq[uint64] {
	return func(yield func(uint64) bool) {
		for left := want; left > 0; {
			size := l.Fixed
			switch {
			case size != 0:
			case l.Few:
				size = min(left, l.Most)
			default:
				size = min(uint64(1)<<(bits.Len64(left)-1), l.Most)
			}
			if !yield(size) {
				return
			}
			left -= min(left, size)
		}
	}
}
