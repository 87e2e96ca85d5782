package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/measure"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/stat"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/verify"
	"github.com/cuvmm/cuvmm/internal/freememory"
	"github.com/cuvmm/cuvmm/vmm"
)

// measureGroup measures one group and adds its cases to the report.
func (r *runner) measureGroup(ctx context.Context, g group) {
	cases := r.earlier.cases(g)
	if cases == nil {
		cases = casesOf([]group{g})
		err := r.measureTasks(ctx, g, cases)
		// An error of the whole group does not replace what is known of a case.
		for i := range cases {
			if err != nil && cases[i].Status != report.Error && cases[i].Status != report.Failed {
				endWithError(&cases[i], err)
			}
		}
	}
	r.add(cases, r.compare(g, cases))
}

// measureTasks completes the cases. It returns an error that concerns all of them.
func (r *runner) measureTasks(ctx context.Context, g group, cases []report.Case) (err error) {
	defer r.app.settings.freeMemory()
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("not started: %w", err)
	}
	if free, ok := freememory.Bytes("/"); ok && g.memory+g.shared > free {
		return fmt.Errorf("needs about %d bytes of host memory, %d are free: %w", g.memory+g.shared, free, vmm.ErrOutOfMemory)
	}
	if g.setup != nil {
		undo, failed := g.setup(ctx)
		if failed != nil {
			return failed
		}
		defer func() { err = errors.Join(err, undo()) }()
	}

	// A contender that cannot be opened ends its own case only, with the error of its work.
	open := make([]contender, len(g.tasks))
	failed := make([]error, len(g.tasks))
	work := make([]measure.Func, len(g.tasks))
	defer func() {
		for i, c := range open {
			if err := closeContender(c); err != nil {
				endWithError(&cases[i], err)
			}
		}
	}()
	for i, t := range g.tasks {
		c, err := t.open(ctx)
		if failed[i] = err; err == nil {
			open[i] = c
		}
		work[i] = func(ctx context.Context, loops int) (measure.Sample, error) {
			if failed[i] != nil {
				return measure.Sample{}, failed[i]
			}
			return open[i].measure(ctx, loops)
		}
	}
	c := measure.Config{
		Samples: min(r.flags.samples, g.samples), MinBlocks: g.minSamples, MinTime: r.flags.minTime, MaxTime: r.flags.maxTime, MaxLoops: g.maxLoops,
		WarmTime: r.flags.settings.warmTime, Seed: measure.Seed(r.flags.seed, g.name), Now: r.flags.settings.now,
	}
	if g.keepsMemory {
		c.Rounds = r.flags.rounds
		c.Renew = func(ctx context.Context, order []int) []error { return g.renew(ctx, open, order) }
	}
	mode := r.flags.verify
	if g.edges && mode == verify.Full {
		mode = verify.Edges
	}
	for i, o := range measure.Run(ctx, c, work) {
		o.Err = cmp.Or(o.Err, failed[i]) // after an interrupt, Run may have asked for no sample
		r.finishCase(ctx, g, &cases[i], open[i], o, mode)
	}
	return nil
}

// renew closes the contenders in this order and opens them again, so that they have other
// memory. All are closed before the first is opened, so that
// they exchange their memory.
func (g group) renew(ctx context.Context, open []contender, order []int) []error {
	errs := make([]error, len(order))
	for n, i := range order {
		errs[n] = closeContender(open[i])
		open[i] = nil
	}
	for n, i := range order {
		if errs[n] == nil {
			open[i], errs[n] = g.tasks[i].open(ctx)
		}
	}
	return errs
}

// closeContender closes a contender, if there is one.
func closeContender(c contender) error {
	if c == nil {
		return nil
	}
	if err := c.close(); err != nil {
		return fmt.Errorf("close: %w", err)
	}
	return nil
}

// finishCase completes a case from the samples of its contender.
func (r *runner) finishCase(ctx context.Context, g group, c *report.Case, by contender, o measure.Outcome, mode verify.Mode) {
	c.Samples = o.Times()
	for _, s := range o.Samples {
		c.At = append(c.At, math.Round(s.At.Seconds()*1e4)/1e4)
	}
	if o.Stop == measure.Failed || by == nil { // it is nil after an interrupt while memory was renewed
		endWithError(c, o.Err)
		return
	}
	if len(c.Samples) > 0 {
		r.summarize(g, c, o)
		by.describe(c, o.Samples)
	}
	// Verifying takes as long as a sample, so an interrupt leaves it out.
	if err := cmp.Or(o.Err, ctx.Err()); err != nil {
		endWithError(c, fmt.Errorf("after %d samples, not verified: %w", len(c.Samples), err))
		return
	}
	result, err := by.verify(ctx, mode, r.flags.corrupt)
	switch bad := result.FirstBad; {
	case bad != nil: // whether or not the check came to its end
		c.Verify, c.Status, c.Reason = &result, report.Failed, report.Text(bad.String())
	case err != nil:
		endWithError(c, fmt.Errorf("verify: %w", err))
	default:
		c.Verify, c.Status = &result, report.Passed
	}
}

// summarize adds the statistics to a case.
func (r *runner) summarize(g group, c *report.Case, o measure.Outcome) {
	var places []int
	if g.keepsMemory {
		places = o.Places
	}
	sum := stat.Summarize(c.Samples, places...)
	c.Stats = &report.Stats{
		N: sum.N, Loops: o.Loops, Stop: string(o.Stop),
		Median: sum.Median, MAD: sum.MAD, Min: sum.Min, Max: sum.Max, P5: sum.P5, P95: sum.P95,
		Value: inUnit(c, sum.Median), Places: places, Rounds: len(places),
	}
	if of := sum.Interval; of != nil {
		low, high := inUnit(c, of.Low), inUnit(c, of.High)
		low, high = min(low, high), max(low, high) // the longest time is the lowest bandwidth
		c.Stats.Low, c.Stats.High, c.Stats.Level, c.Stats.ValueLow, c.Stats.ValueHigh = &of.Low, &of.High, of.Level, &low, &high
	}
	flag := func(name string, is bool) {
		if is {
			c.Flags = append(c.Flags, name)
		}
	}
	flag("few-samples", sum.Interval == nil)
	flag("short-samples", g.maxLoops > 1 && o.Loops == g.maxLoops && sum.Median*float64(o.Loops) < float64(r.flags.minTime)/2)
	flag("noisy", sum.CV > 0.05)
	flag("drift", stat.Drifts(c.Samples, float64(r.flags.margin)))
}

// Units of a case.
const (
	unitGBs = "GB/s"
	unitMs  = "ms"
	unitUs  = "us"
	unitNs  = "ns"
)

// inUnit converts a time to the unit of a case. One byte a nanosecond is 1 GB/s.
func inUnit(c *report.Case, ns float64) float64 {
	if unit := (map[string]float64{unitMs: 1e6, unitUs: 1e3, unitNs: 1})[c.Unit]; unit > 0 {
		return ns / unit
	}
	return bandwidth(c.Bytes, ns)
}

// bandwidth is in GB/s, 1e9 bytes a second. If the clock is too coarse to measure
// the work it is 0, because JSON has no infinity.
func bandwidth(bytes uint64, ns float64) float64 {
	if ns <= 0 {
		return 0
	}
	return float64(bytes) / ns
}

// compare compares the tasks of a group in pairs.
func (r *runner) compare(g group, cases []report.Case) []report.Comparison {
	var list []report.Comparison
	for _, p := range g.pairs() {
		a, b := cases[p.a], cases[p.b]
		c := report.Comparison{
			ID: fmt.Sprintf("%s: %s against %s", g.name, g.tasks[p.b].label, g.tasks[p.a].label),
			A:  a.ID, B: b.ID, Margin: float64(r.flags.margin), Verdict: stat.NotMeasured,
		}
		// If a side is waived, that is the reason, however the other ended.
		for _, side := range []report.Case{a, b} {
			if side.Status != report.Passed && c.Verdict != stat.Waived {
				c.Reason = report.Text(fmt.Sprintf("%s: %s", side.ID, side.Status))
			}
			if side.Status == report.Waived {
				c.Verdict = stat.Waived
			}
		}
		switch {
		case c.Reason != "":
		case isGated(a) != isGated(b):
			// Queueing is in the time of one of them only.
			c.Reason = "one was timed behind a gate and the other not"
		default:
			c.Judge(stat.Ratio(a.Samples, b.Samples, a.Places()...))
		}
		list = append(list, c)
	}
	return list
}

func isGated(c report.Case) bool { return slices.Contains(c.Flags, gated) }

// add adds to the report and to the outputs.
func (r *runner) add(cases []report.Case, comparisons []report.Comparison) {
	for _, c := range cases {
		if c.Samples == nil {
			c.Samples = []float64{}
		}
		if c.Flags == nil {
			c.Flags = []string{}
		}
		r.report.Cases = append(r.report.Cases, c)
		r.eachOutput(func(o *output) error { return o.Case(c) })
	}
	for _, c := range comparisons {
		r.report.Comparisons = append(r.report.Comparisons, c)
		r.eachOutput(func(o *output) error { return o.Comparison(c) })
	}
}

// endWithError ends a case with an error. If this machine cannot do it, the case is
// waived. The only context is that of the signals, so an error that says canceled
// is an interrupt.
func endWithError(c *report.Case, err error) {
	c.Status, c.Reason = report.Error, oneLine(err)
	switch {
	case notAvailable(err):
		c.Status = report.Waived
	case errors.Is(err, context.Canceled):
		c.Status, c.Reason = report.Interrupted, "interrupted: "+c.Reason
	}
}

// oneLine returns an error as a reason. Each of several joined errors has a line
// of its own, which does not fit into a table.
func oneLine(err error) report.Text {
	return report.Text(strings.ReplaceAll(err.Error(), "\n", "; "))
}

// notAvailable reports whether err is about something that this machine does not have.
func notAvailable(err error) bool {
	return errors.Is(err, vmm.ErrNotSupported) || errors.Is(err, vmm.ErrNoDriver) || errors.Is(err, vmm.ErrNoDevice)
}
