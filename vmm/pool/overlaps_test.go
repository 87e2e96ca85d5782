package pool_test

import (
	"fmt"
	"slices"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/pool"
)

// overlapChecker is an allocator whose Alloc fails if two live blocks have a byte in common.
type overlapChecker struct {
	pool.Allocator
	cells map[uint64][]pool.Block // the blocks that have a byte in each cell
}

// overlapCell is the length of a cell of addresses. A block is in each cell that it has a byte
// of, so two blocks that overlap meet in one.
const overlapCell = mib

func checkOverlaps(a pool.Allocator) *overlapChecker {
	return &overlapChecker{a, map[uint64][]pool.Block{}}
}

// bounds are a block's first byte and last.
func bounds(b pool.Block) (first, last uint64) {
	return uint64(b.Ptr()), uint64(b.Ptr()) + b.Size() - 1
}

func (c *overlapChecker) Alloc(s *vmm.Stream, n uint64) (pool.Block, error) {
	b, err := c.Allocator.Alloc(s, n)
	if err != nil {
		return b, err
	}
	first, last := bounds(b)
	if first == 0 || last < first {
		return b, fmt.Errorf("a block of %d bytes is at %#x", n, first)
	}
	for cell := first / overlapCell; cell <= last/overlapCell; cell++ {
		for _, other := range c.cells[cell] {
			if from, to := bounds(other); first <= to && from <= last {
				return b, fmt.Errorf("block [%#x, %#x) overlaps block [%#x, %#x)", first, last+1, from, to+1)
			}
		}
		c.cells[cell] = append(c.cells[cell], b)
	}
	return b, nil
}

func (c *overlapChecker) Free(s *vmm.Stream, b pool.Block) error {
	first, last := bounds(b)
	for cell := first / overlapCell; cell <= last/overlapCell; cell++ {
		c.cells[cell] = slices.DeleteFunc(c.cells[cell], func(other pool.Block) bool { return other == b })
		if len(c.cells[cell]) == 0 {
			delete(c.cells, cell)
		}
	}
	return c.Allocator.Free(s, b)
}
