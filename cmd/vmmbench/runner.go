package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// session is one report in the making.
type runner struct {
	app     *app
	to      *outputFlags
	flags   *measureFlags // nil if nothing is measured
	report  *report.Report
	outputs []*output
	started bool
	lost    error // of outputs that were dropped
}

// planner says what to measure on a device, with data made from a seed.
type planFunc func(dev *vmm.Device, raw driver.Device, seed uint64) ([]group, error)

// stage opens devices, plans what to measure on them, and calls use while they
// are open.
type deviceOpener func(use func(devs []*vmm.Device, groups []group) error) error

// measure is a command that measures one device, from its flags to its exit code.
func (a *app) measure(ctx context.Context, name string, m *measureFlags, plan planFunc) error {
	return a.measureOn(ctx, name, m, func(use func([]*vmm.Device, []group) error) error {
		return a.onDevice(m.device, func(dev *vmm.Device, raw driver.Device) error {
			groups, err := plan(dev, raw, m.seed)
			if err != nil {
				return err
			}
			return use([]*vmm.Device{dev}, groups)
		})
	})
}

// measureOn is a measuring command on the devices that on opens.
func (a *app) measureOn(ctx context.Context, name string, m *measureFlags, on deviceOpener) error {
	if err := m.check(); err != nil {
		return err
	}
	if m.dryRun {
		return a.dryRun(m, on)
	}
	return a.withReport(name, &m.outputFlags, func(s *runner) error {
		s.flags = m
		s.report.Run.Measure = m.describe()
		err := on(func(devs []*vmm.Device, groups []group) error {
			return s.measureGroups(ctx, a.stderr, devs, groups)
		})
		c, err := a.waivedCase(m.device, err)
		if c == nil {
			return err
		}
		if err := s.start(); err != nil {
			return err
		}
		s.add([]report.Case{*c}, nil)
		return nil
	})
}

// dryRun prints the names of the cases. It ends as the run would, as far as
// that is known without measuring.
func (a *app) dryRun(m *measureFlags, on deviceOpener) error {
	err := on(func(_ []*vmm.Device, groups []group) error { return a.printNames(groups) })
	c, err := a.waivedCase(m.device, err)
	if c != nil {
		a.code = report.ExitWaived
	}
	return err
}

// session writes the report that fill makes, and leaves its exit code. Once
// fill has called start, what it gathered is written even if it fails.
func (a *app) withReport(name string, o *outputFlags, fill func(*runner) error) error {
	begun := time.Now()
	s := &runner{app: a, to: o, report: report.New(a.runInfo(name, begun), hostInfo())}
	err := fill(s)
	if !s.started {
		return err
	}
	run := &s.report.Run
	run.Seconds = time.Since(begun).Seconds()
	run.Interrupted = s.report.Count()[report.Interrupted] > 0
	if err != nil {
		run.Error = oneLine(err)
	}
	s.eachOutput(func(o *output) error { return o.finish(s.report) })
	a.code = s.report.Exit()
	return errors.Join(err, s.lost)
}

// start opens the outputs. Nothing has been written before: a run that cannot
// start leaves the files of the last one alone.
func (s *runner) start() error {
	outputs, err := s.app.openOutputs(s.to)
	if err != nil {
		return err
	}
	s.outputs, s.started = outputs, true
	s.eachOutput(func(o *output) error { return o.Started(s.report) })
	return nil
}

// each calls f for each output. One that fails is dropped, and the others go on.
func (s *runner) eachOutput(f func(*output) error) {
	s.outputs = slices.DeleteFunc(s.outputs, func(o *output) bool {
		err := f(o)
		if err != nil {
			s.lost = errors.Join(s.lost, err, o.drop())
		}
		return err != nil
	})
}

// absentError says that there is no such device here.
type noDeviceError struct{ err error }

func (e noDeviceError) Error() string { return e.err.Error() }
func (e noDeviceError) Unwrap() error { return e.err }

// open opens a device. A name that is none is a usageError, a device that is
// not there an absentError.
func open(name string) (*vmm.Device, error) {
	dev, err := vmm.Open(name)
	switch {
	case errors.Is(err, vmm.ErrInvalid):
		err = usageError{err}
	case notAvailable(err):
		err = noDeviceError{err}
	}
	return dev, err
}

// onDevice calls f with an open device.
func (a *app) onDevice(name string, f func(*vmm.Device, driver.Device) error) (err error) {
	dev, err := open(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	raw, err := dev.Raw()
	if err != nil {
		return err
	}
	return f(dev, raw)
}

// unlessAbsent turns an absentError into a waived case, and lets others pass.
func (a *app) waivedCase(device string, err error) (*report.Case, error) {
	var gone noDeviceError
	if !errors.As(err, &gone) {
		return nil, err
	}
	a.printError(err)
	c := report.Case{ID: "open/" + device, Axes: report.Axes{{Name: "device", Value: device}}}
	endWithError(&c, err)
	return &c, nil
}

// list prints the names of the cases.
func (a *app) printNames(groups []group) error {
	for _, g := range groups {
		for _, t := range g.tasks {
			if _, err := fmt.Fprintln(a.stdout, t.c.ID); err != nil {
				return err
			}
		}
	}
	return nil
}

// work measures groups on devices that are open.
func (s *runner) measureGroups(ctx context.Context, stderr io.Writer, devs []*vmm.Device, groups []group) error {
	for _, dev := range devs {
		s.report.Devices = append(s.report.Devices, describeDevice(dev))
	}
	if err := s.start(); err != nil {
		return err
	}
	p := newProgress(stderr, s.flags.progress.value, len(groups))
	defer p.close()
	for _, g := range groups {
		p.begin(g.name)
		s.measureGroup(ctx, g)
	}
	return nil
}
