package pool

import "math/bits"

const (
	smallMost = 64 << 10 // the longest block that lies in a slab
	slabLeast = 64 << 10
	slabItems = 8 // how many blocks a slab has at least
)

// classes are the sizes of blocks in slabs: eight to each power of two, as far as the
// alignment allows.
type classes struct {
	align  uint64
	shift  uint   // log2 of align
	most   uint64 // the longest block that lies in a slab; 0: none
	sizes  []uint64
	bySize []uint8 // the class of n bytes is bySize[(n-1)>>shift]
}

func newClasses(align uint64) *classes {
	c := &classes{align: align, shift: uint(bits.TrailingZeros64(align))} //nolint:gosec // below 64
	if align > smallMost/2 {
		return c
	}
	c.most = smallMost
	for size := align; size <= smallMost; {
		c.sizes = append(c.sizes, size)
		step := max(align, 1<<(bits.Len64(size)-1)/8)
		size += step
	}
	c.bySize = make([]uint8, smallMost/align)
	class := 0
	for i := range c.bySize {
		if uint64(i+1)*align > c.sizes[class] { //nolint:gosec // not negative
			class++
		}
		c.bySize[i] = uint8(class) //nolint:gosec // fewer than 256 classes
	}
	return c
}

// of is the class of n bytes, from 1 to most.
func (c *classes) of(n uint64) int { return int(c.bySize[(n-1)>>c.shift]) }

// slabSize is how long a slab of blocks of that size is.
func slabSize(size uint64) uint64 {
	n := max(slabLeast, slabItems*size)
	return (n + pageSize - 1) / pageSize * pageSize
}
