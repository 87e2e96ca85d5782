package main

import (
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/measure"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/verify"
)

// contender does the same work as the others of its group, on its own memory.
type contender interface {
	// measure does the work loops times and times it.
	measure(loops int) (measure.Sample, error)
	// verify does the work once more, into poisoned memory, and checks what
	// arrived. The byte of the device buffer at corrupt is flipped before, if
	// there is one.
	verify(mode verify.Mode, corrupt int64) (verify.Result, error)
	// describe adds to a case what only the contender knows.
	describe(c *report.Case, samples []measure.Sample)
	close() error
}

// task is a case to be.
type task struct {
	label string      // its name within the group
	c     report.Case // ID, Axes, Unit and Bytes are set
	open  func() (contender, error)
}

// group is what is measured against each other. Each pair becomes a comparison
// of task b with task a.
type group struct {
	name     string
	tasks    []task
	pairs    []pair
	samples  int                                   // of each at most
	maxLoops int                                   // repetitions in a sample at most; 0 is no bound
	setup    func() (undo func() error, err error) // what the contenders share; may be nil
}

type pair struct{ a, b int }
