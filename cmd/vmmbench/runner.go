package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/machine"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/verify"
)

// runner runs one command and makes its report.
type runner struct {
	app     *app
	to      *outputFlags
	flags   *measureFlags // nil if nothing is measured
	report  *report.Report
	outputs []*output
	started bool
	earlier earlier // nil if there is nothing to go on with
	worse   bool    // than the baseline, by --fail-on, or than --at-least
	lost    error   // of outputs that could not be written and were dropped
}

// plan says what to measure.
type plan interface {
	// groups plans the cases, with data made from a seed. A plan for one device takes
	// the first.
	groups(devs []device, seed uint64) ([]group, error)
}

// measure runs a command that measures the devices with these names, from its flags to
// its exit code.
func (a *app) measure(ctx context.Context, name string, m *measureFlags, names []string, p plan) (err error) {
	if err := m.check(); err != nil {
		return err
	}
	if m.manyRuns() && !m.dryRun {
		return a.againstBaseline(ctx, name, m)
	}
	devs, err := openDevices(a.settings, names)
	defer func() { err = errors.Join(err, closeDevices(devs)) }()
	// A report is written also if there is no such device: its only case is waived.
	absent, err := a.waivedCase(m.device, err)
	if err != nil {
		return err
	}
	var groups []group
	if absent == nil {
		if groups, err = m.plan(p, devs); err != nil {
			return err
		}
	}
	if m.dryRun {
		return a.dryRun(groups, absent)
	}
	return a.withReport(name, &m.outputFlags, func(r *runner) error {
		r.flags = m
		r.report.Run.Measure = m.describe()
		r.addDevices(devs)
		if m.resume != "" { // before the outputs, of which it may be one
			if r.earlier, err = readEarlier(m.resume, r.report); err != nil {
				return err
			}
		}
		older, err := r.readBaseline()
		if err != nil {
			return err
		}
		if err := r.start(); err != nil {
			return err
		}
		if m.verify != verify.Off {
			loadKernels(devs)
		}
		if absent != nil {
			r.add([]report.Case{*absent}, nil)
			return nil
		}
		r.measureGroups(ctx, groups)
		if r.report.Run.AtLeast, err = m.floors.of(r.report.Cases); err != nil {
			return err
		}
		r.worse = slices.ContainsFunc(r.report.Run.AtLeast, report.Floor.Missed)
		return r.compareWith(older)
	})
}

// readBaseline reads the reports to compare with, if there are any. It compares with no case yet,
// so that runs that may not be compared are refused before anything is measured.
func (r *runner) readBaseline() ([]*report.Report, error) {
	if r.flags.baseline == "" {
		return nil, nil
	}
	older, err := loadReports(r.flags.baseline)
	if err != nil {
		return nil, err
	}
	_, _, err = r.flags.against.compare(older, []*report.Report{r.report}, float64(r.flags.margin))
	return older, err
}

// compareWith adds the comparisons with older runs, if there are any.
func (r *runner) compareWith(older []*report.Report) error {
	if older == nil {
		return nil
	}
	newer := []*report.Report{r.report}
	base, list, err := r.flags.against.compare(older, newer, float64(r.flags.margin))
	if err != nil {
		return err
	}
	r.report.Baseline = base
	r.add(nil, list)
	r.worse = r.worse || r.flags.against.fails(base, list, older, newer)
	return nil
}

// dryRun prints the names of the cases, and to stderr how many there are.
// Its exit code is that of a run, as far as it is known without measuring.
func (a *app) dryRun(groups []group, absent *report.Case) error {
	if absent != nil {
		a.code = report.ExitWaived
		return nil
	}
	cases := casesOf(groups)
	for _, c := range cases {
		if _, err := fmt.Fprintln(a.stdout, c.ID); err != nil {
			return err
		}
	}
	_, _ = fmt.Fprintf(a.stderr, "%d cases in %d groups\n", len(cases), len(groups))
	return nil
}

// withReport writes the report that fill makes, and sets its exit code. After fill
// has called start, the report is written even if fill fails.
func (a *app) withReport(name string, o *outputFlags, fill func(*runner) error) error {
	begun := time.Now()
	r := &runner{app: a, to: o, report: report.New(a.runInfo(name, begun), machine.Host("/"))}
	err := fill(r)
	if !r.started {
		return err
	}
	// The state is read first: writing large reports is work too.
	if r.report.Run.Measure != nil {
		machine.AddEndState(r.report)
	}
	run := &r.report.Run
	run.Seconds = time.Since(begun).Seconds()
	run.Interrupted = run.Interrupted || r.report.Count()[report.Interrupted] > 0
	if err != nil {
		run.Error = oneLine(err)
	}
	r.eachOutput(func(o *output) error { return o.finish(r.report) })
	a.code = r.report.Exit()
	if r.worse && slices.Contains([]int{report.ExitPassed, report.ExitError, report.ExitWaived}, a.code) {
		a.code = report.ExitWorse
	}
	return errors.Join(err, r.lost)
}

// start opens the outputs. Before it, nothing is written: a run that cannot start
// leaves the files of an earlier run alone.
func (r *runner) start() error {
	outputs, err := r.app.openOutputs(r.to)
	if err != nil {
		return err
	}
	r.outputs, r.started = outputs, true
	machine.AddState(r.report)
	r.eachOutput(func(o *output) error { return o.start(r.report) })
	return nil
}

// eachOutput calls f for each output. An output that fails is dropped, and the
// others go on.
func (r *runner) eachOutput(f func(*output) error) {
	r.outputs = slices.DeleteFunc(r.outputs, func(o *output) bool {
		err := f(o)
		if err != nil {
			r.lost = errors.Join(r.lost, err, o.drop())
		}
		return err != nil
	})
}

// waivedCase returns a waived case if opening a device has failed because this machine does not have
// it. It returns any other error as it is.
func (a *app) waivedCase(device string, err error) (*report.Case, error) {
	if err == nil || !notAvailable(err) {
		return nil, err
	}
	a.printError(err)
	c := report.Case{ID: "open/" + device, Axes: report.Axes{{Name: "device", Value: device}}}
	endWithError(&c, err)
	return &c, nil
}

// measureGroups measures one group after the other.
func (r *runner) measureGroups(ctx context.Context, groups []group) {
	for i, g := range groups {
		r.app.progress(r.flags, i+1, len(groups), g.name)
		r.measureGroup(ctx, g)
	}
}

// progress prints which one of all begins, unless --progress is off. An error is ignored: the
// measurement is more important.
func (a *app) progress(m *measureFlags, n, all int, name string) {
	if m.progress != "off" {
		_, _ = fmt.Fprintf(a.stderr, "%d of %d: %s\n", n, all, name)
	}
}
