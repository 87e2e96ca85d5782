package main

import (
	"context"
	"fmt"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/measure"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/verify"
)

// contender does the same work as the others of its group, on its own memory.
// Whatever may take long breaks off with the error of ctx.
type contender interface {
	// measure does the work loops times and times it.
	measure(ctx context.Context, loops int) (measure.Sample, error)
	// verify does the work once more, where other data stood before, and
	// checks what arrived. The byte of the device buffer at corrupt is flipped
	// before, if there is one.
	verify(ctx context.Context, mode verify.Mode, corrupt int64) (verify.Result, error)
	// describe adds to a case what only the contender knows.
	describe(c *report.Case, samples []measure.Sample)
	close() error
}

// task is a case to be.
type task struct {
	label string      // its name within the group
	grows bool        // on memory of this project, which the others are compared with
	c     report.Case // ID, Axes, Unit and Bytes are set
	open  func(context.Context) (contender, error)
}

// group is what is measured against each other.
type group struct {
	name       string
	tasks      []task
	samples    int    // of each at most
	minSamples int    // of each, however long they take
	maxLoops   int    // repetitions in a sample at most; 0 is no bound
	memory     uint64 // bytes of the host that it needs at once, about
	// setup makes what the contenders share. It may be nil.
	setup func(context.Context) (undo func() error, err error)
}

// pairs are the comparisons to make: each task that grows, b, with each that
// does not, a.
func (g group) pairs() []pair {
	var list []pair
	for a := range g.tasks {
		for b := range g.tasks {
			if g.tasks[b].grows && !g.tasks[a].grows {
				list = append(list, pair{a, b})
			}
		}
	}
	return list
}

type pair struct{ a, b int }

// largest is the largest size that is measured, 64 TiB: no machine has more,
// and sums of it do not overflow.
const maxSize = 1 << 46

// checkSize refuses a size that makes no sense.
func checkSize(n uint64) error {
	if n == 0 || n > maxSize {
		return usageError{fmt.Errorf("--size %d bytes: want 1 to %d", n, uint64(maxSize))}
	}
	return nil
}
