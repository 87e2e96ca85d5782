package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/cuvmm/cuvmm/cmd/internal/size"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/measure"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/verify"
)

// contender does the same work as the others of its group, on memory of its own.
// If ctx is done, work that may take long stops with the error of ctx.
type contender interface {
	// measure does the work loops times and times it.
	measure(ctx context.Context, loops int) (measure.Sample, error)
	// verify does the work once more, over other data, and checks the result.
	// Before the check it inverts the byte of the device buffer at corrupt, if
	// there is one.
	verify(ctx context.Context, mode verify.Mode, corrupt int64) (verify.Result, error)
	// describe adds flags and figures that only the contender knows.
	describe(c *report.Case, samples []measure.Sample)
	close() error
}

// noData is a part of contenders that write no data: there is nothing to check, and the host
// takes the time.
type noData struct{}

func (noData) verify(context.Context, verify.Mode, int64) (verify.Result, error) {
	return verify.Result{Mode: verify.Off}, nil
}

func (noData) describe(c *report.Case, _ []measure.Sample) { c.Flags = append(c.Flags, wallClock) }

// task is a case that has not been measured yet.
type task struct {
	label string      // its name within the group
	grows bool        // uses memory of this project; it is compared with those that do not
	c     report.Case // Axes, Unit and Bytes are set, and ID once it is in its group
	open  func(context.Context) (contender, error)
	data  bool // there are some, which are checked after the samples
}

// group has the tasks that are measured against each other.
type group struct {
	name         string
	tasks        []task
	samples      int    // of each task, at most
	minSamples   int    // of each task, also if --max-time is over
	maxLoops     int    // repetitions in a sample at most; 0: no limit
	deviceChecks bool   // the device fills and checks, not the host
	memory       uint64 // bytes of the host that the cases need at once, estimated
	shared       uint64 // bytes of the host that they share
	// keepsMemory says that a contender works on the same memory in all samples. It is
	// opened again now and then, because it matters where that lies.
	keepsMemory bool
	edges       bool   // checking all of the data would take too long: --verify full means edges
	compared    []pair // the comparisons, if they do not follow from grows
	// setup makes what the contenders share. It may be nil.
	setup func(context.Context) (undo func() error, err error)
}

// add adds a case, whose name follows from its label.
func (g *group) add(t task) {
	t.c.ID = g.name + "/" + t.label
	g.tasks = append(g.tasks, t)
}

// axes are those of a case: names, each with its value.
func axes(of ...any) (list report.Axes) {
	for i := 0; i < len(of); i += 2 {
		list = append(list, report.Axis{Name: fmt.Sprint(of[i]), Value: of[i+1]})
	}
	return list
}

// casesOf are the cases of all groups.
func casesOf(groups []group) (list []report.Case) {
	for _, g := range groups {
		for _, t := range g.tasks {
			list = append(list, t.c)
		}
	}
	return list
}

// addControls adds each task once more. The comparisons are then those of a task with
// itself: what is not equal is an error of the measurement.
func (g *group) addControls() {
	g.memory, g.compared = 2*g.memory, nil
	for i, t := range g.tasks {
		t.label += "-again"
		t.c.Axes = slices.Clone(t.c.Axes)
		for k, x := range t.c.Axes {
			if x.Name == "mem" {
				t.c.Axes[k].Value = fmt.Sprint(x.Value, "-again")
			}
		}
		g.compared = append(g.compared, pair{i, len(g.tasks)})
		g.add(t)
	}
}

// pairs returns the comparisons to make: each task that grows, b, with each that
// does not, a; or those of compared.
func (g group) pairs() []pair {
	if g.compared != nil {
		return g.compared
	}
	var list []pair
	for a, one := range g.tasks {
		for b, other := range g.tasks {
			if other.grows && !one.grows {
				list = append(list, pair{a, b})
			}
		}
	}
	return list
}

type pair struct{ a, b int }

// maxSize is the largest size that is measured, 64 TiB. No machine has more
// memory, and sums of such sizes do not overflow.
const maxSize = 1 << 46

// checkMost returns a usageError if one of the sizes, which a flag has, is more than maxSize.
func checkMost(flag string, sizes ...uint64) error {
	for _, n := range sizes {
		if n > maxSize {
			return usageError{fmt.Errorf("%s %s: want %s at most", flag, size.Format(n), size.Format(maxSize))}
		}
	}
	return nil
}

// checkSize returns a usageError for 0 and for more than maxSize.
func checkSize(sizes ...uint64) error {
	for _, n := range sizes {
		if n == 0 || n > maxSize {
			return usageError{fmt.Errorf("--size %d bytes: want 1 to %d", n, uint64(maxSize))}
		}
	}
	return nil
}
