package pool_test

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/pool"
)

// overlapChecker is an allocator whose Alloc fails if two live blocks have a byte in common.
type overlapChecker struct {
	pool.Allocator
	runs [][]pool.Block // the live blocks by address, in runs that are short enough to insert into
}

// overlapRun is how long a run gets.
const overlapRun = 256

func checkOverlaps(a pool.Allocator) *overlapChecker {
	return &overlapChecker{a, nil}
}

// bounds are a block's first byte and last.
func bounds(b pool.Block) (first, last uint64) {
	return uint64(b.Ptr()), uint64(b.Ptr()) + b.Size() - 1
}

// find returns the run and the index of the first block that ends at an address or above it. If there
// is none, that is the end of the last run.
func (c *overlapChecker) find(at uint64) (run, i int) {
	endsBelow := func(b pool.Block, at uint64) int {
		_, last := bounds(b)
		return cmp.Compare(last, at)
	}
	run, _ = slices.BinarySearchFunc(c.runs, at, func(r []pool.Block, at uint64) int { return endsBelow(r[len(r)-1], at) })
	run = min(run, len(c.runs)-1)
	i, _ = slices.BinarySearchFunc(c.runs[run], at, endsBelow)
	return run, i
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
	if len(c.runs) == 0 {
		c.runs = [][]pool.Block{{b}}
		return b, nil
	}
	run, i := c.find(first)
	if i < len(c.runs[run]) {
		// Those after it begin above its end.
		if from, to := bounds(c.runs[run][i]); from <= last {
			return b, fmt.Errorf("block [%#x, %#x) overlaps block [%#x, %#x)", first, last+1, from, to+1)
		}
	}
	c.runs[run] = slices.Insert(c.runs[run], i, b)
	if r := c.runs[run]; len(r) > overlapRun {
		half := len(r) / 2
		c.runs = slices.Insert(c.runs, run+1, slices.Clone(r[half:]))
		c.runs[run] = r[:half]
	}
	return b, nil
}

func (c *overlapChecker) Free(s *vmm.Stream, b pool.Block) error {
	if first, _ := bounds(b); len(c.runs) > 0 {
		run, i := c.find(first)
		if r := c.runs[run]; i < len(r) && r[i] == b {
			c.runs[run] = slices.Delete(r, i, i+1)
			if len(c.runs[run]) == 0 {
				c.runs = slices.Delete(c.runs, run, run+1)
			}
		}
	}
	return c.Allocator.Free(s, b)
}
