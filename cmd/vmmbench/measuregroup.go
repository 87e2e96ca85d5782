package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"time"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/measure"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/stat"
	"github.com/cuvmm/cuvmm/vmm"
)

// group measures one group and reports it.
func (s *runner) measureGroup(ctx context.Context, g group) {
	cases := make([]report.Case, len(g.tasks))
	for i, t := range g.tasks {
		cases[i] = t.c
	}
	err := s.measureTasks(ctx, g, cases)
	for i := range cases {
		if err != nil && cases[i].Status != report.Error && cases[i].Status != report.Failed {
			endWithError(&cases[i], err)
		}
	}
	s.add(cases, s.compare(g, cases))
}

// contend fills in the cases. An error of its own is one that concerns all.
func (s *runner) measureTasks(ctx context.Context, g group, cases []report.Case) (err error) {
	// Each group begins with the memory of the last one given back.
	defer debug.FreeOSMemory()
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("not started: %w", err)
	}
	if free, ok := freeMemory("/"); ok && g.memory > free {
		return fmt.Errorf("needs about %d bytes of host memory, %d are free: %w", g.memory, free, vmm.ErrOutOfMemory)
	}
	if g.setup != nil {
		undo, failed := g.setup(ctx)
		if failed != nil {
			return failed
		}
		defer func() { err = errors.Join(err, undo()) }()
	}

	var which []int
	var open []contender
	var work []measure.Func
	defer func() {
		for k, c := range open {
			if err := c.close(); err != nil {
				endWithError(&cases[which[k]], fmt.Errorf("close: %w", err))
			}
		}
	}()
	for i, t := range g.tasks {
		c, err := t.open(ctx)
		if err != nil {
			endWithError(&cases[i], err)
			continue
		}
		which, open, work = append(which, i), append(open, c), append(work, c.measure)
	}
	outcomes := measure.Run(ctx, measure.Config{
		Samples: min(s.flags.samples, g.samples), MinBlocks: g.minSamples, MinTime: s.flags.minTime, MaxTime: s.flags.maxTime, MaxLoops: g.maxLoops,
		Fixed: s.flags.order.value == "fixed", Seed: measure.Seed(s.flags.seed, g.name), Now: time.Now,
	}, work)
	for k, i := range which {
		s.finishCase(ctx, &cases[i], open[k], outcomes[k])
	}
	return nil
}

// conclude turns what a contender did into its case.
func (s *runner) finishCase(ctx context.Context, c *report.Case, by contender, o measure.Outcome) {
	c.Samples = o.Times()
	if o.Stop == measure.Failed {
		endWithError(c, o.Err)
		return
	}
	if len(c.Samples) > 0 {
		s.summarize(c, o)
		by.describe(c, o.Samples)
	}
	if err := cmp.Or(o.Err, ctx.Err()); err != nil {
		endWithError(c, fmt.Errorf("after %d samples, not verified: %w", len(c.Samples), err))
		return
	}
	result, err := by.verify(ctx, s.flags.verify, s.flags.corrupt)
	switch bad := result.FirstBad; {
	case bad != nil: // which stands, even if the check got no further
		c.Verify, c.Status, c.Reason = &result, report.Failed, report.Text(bad.String())
	case err != nil:
		endWithError(c, fmt.Errorf("verify: %w", err))
	default:
		c.Verify, c.Status = &result, report.Passed
	}
}

// summarize adds the statistics.
func (s *runner) summarize(c *report.Case, o measure.Outcome) {
	seed := measure.Seed(s.flags.seed, c.ID)
	sum := stat.Summarize(c.Samples, seed)
	c.Stats = &report.Stats{
		N: sum.N, Loops: o.Loops, Stop: string(o.Stop),
		Median: sum.Median, MAD: sum.MAD, Min: sum.Min, Max: sum.Max, P5: sum.P5, P95: sum.P95,
		Low: sum.Interval.Low, High: sum.Interval.High,
		Value: inUnit(c, sum.Median), ValueLow: inUnit(c, sum.Interval.Low), ValueHigh: inUnit(c, sum.Interval.High),
	}
	if v := c.Stats; v.ValueLow > v.ValueHigh {
		v.ValueLow, v.ValueHigh = v.ValueHigh, v.ValueLow // the longest time is the least bandwidth
	}
	if !stat.Enough(sum.N) {
		c.Flags = append(c.Flags, "few-samples")
	}
	if sum.CV > 0.05 {
		c.Flags = append(c.Flags, "noisy")
	}
	if stat.Drifts(c.Samples, float64(s.flags.margin), seed) {
		c.Flags = append(c.Flags, "drift")
	}
}

// Units of a case.
const (
	unitGBs = "GB/s"
	unitMs  = "ms"
	unitUs  = "us"
)

// inUnit is a time as the value of a case. One byte a nanosecond is 1 GB/s.
func inUnit(c *report.Case, ns float64) float64 {
	switch c.Unit {
	case unitMs:
		return ns / 1e6
	case unitUs:
		return ns / 1e3
	}
	return bandwidth(c.Bytes, ns)
}

// bandwidth is in GB/s, 1e9 bytes a second. A clock too coarse to see the work
// gives 0, which is as little as infinity would be and is a number.
func bandwidth(bytes uint64, ns float64) float64 {
	if ns <= 0 {
		return 0
	}
	return float64(bytes) / ns
}

// compare makes the comparisons of a group.
func (s *runner) compare(g group, cases []report.Case) []report.Comparison {
	var list []report.Comparison
	for _, p := range g.pairs() {
		a, b := cases[p.a], cases[p.b]
		c := report.Comparison{
			ID: fmt.Sprintf("%s: %s against %s", g.name, g.tasks[p.b].label, g.tasks[p.a].label),
			A:  a.ID, B: b.ID, Margin: float64(s.flags.margin), Conclusion: stat.Unclear,
		}
		for _, side := range []report.Case{a, b} {
			if side.Status != report.Passed && c.Reason == "" {
				c.Reason = report.Text(fmt.Sprintf("%s: %s", side.ID, side.Status))
			}
		}
		if c.Reason == "" {
			ratio, of, err := stat.Ratio(a.Samples, b.Samples, measure.Seed(s.flags.seed, c.ID))
			if err != nil {
				c.Reason = report.Text(err.Error())
			} else {
				c.Ratio, c.Low, c.High, c.Conclusion = &ratio, &of.Low, &of.High, stat.Conclude(of, c.Margin)
			}
		}
		list = append(list, c)
	}
	return list
}

// emit adds to the report and tells the outputs.
func (s *runner) add(cases []report.Case, comparisons []report.Comparison) {
	for _, c := range cases {
		if c.Samples == nil {
			c.Samples = []float64{}
		}
		if c.Flags == nil {
			c.Flags = []string{}
		}
		s.report.Cases = append(s.report.Cases, c)
		s.eachOutput(func(o *output) error { return o.Case(c) })
	}
	for _, c := range comparisons {
		s.report.Comparisons = append(s.report.Comparisons, c)
		s.eachOutput(func(o *output) error { return o.Comparison(c) })
	}
}

// settle ends a case with an error. What this machine cannot do is waived.
// Nothing is done under another context than that of the signals, so an error
// that says canceled is an interruption.
func endWithError(c *report.Case, err error) {
	c.Status, c.Reason = report.Error, oneLine(err)
	switch {
	case notAvailable(err):
		c.Status = report.Waived
	case errors.Is(err, context.Canceled):
		c.Status, c.Reason = report.Interrupted, "interrupted: "+c.Reason
	}
}

// oneLine is an error as a reason. Errors that were joined stand on lines of
// their own.
func oneLine(err error) report.Text {
	return report.Text(strings.ReplaceAll(err.Error(), "\n", "; "))
}

// absent says whether err is about something that this machine does not have.
func notAvailable(err error) bool {
	return errors.Is(err, vmm.ErrNotSupported) || errors.Is(err, vmm.ErrNoDriver) || errors.Is(err, vmm.ErrNoDevice)
}
