package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/machine"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// runner runs one command and makes its report.
type runner struct {
	app     *app
	to      *outputFlags
	flags   *measureFlags // nil if nothing is measured
	report  *report.Report
	outputs []*output
	started bool
	lost    error // from outputs that were dropped
}

// planFunc plans what to measure on a device, with data made from a seed.
type planFunc func(dev *vmm.Device, raw driver.Device, seed uint64) ([]group, error)

// deviceOpener opens devices, plans what to measure on them, and calls use while
// they are open.
type deviceOpener func(use func(devs []*vmm.Device, groups []group) error) error

// measure runs a command that measures one device, from its flags to its exit code.
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

// measureOn is measure for the devices that on opens.
func (a *app) measureOn(ctx context.Context, name string, m *measureFlags, on deviceOpener) error {
	if err := m.check(); err != nil {
		return err
	}
	if m.dryRun {
		return a.dryRun(m, on)
	}
	return a.withReport(name, &m.outputFlags, func(r *runner) error {
		r.flags = m
		r.report.Run.Measure = m.describe()
		err := on(func(devs []*vmm.Device, groups []group) error {
			return r.measureGroups(ctx, a.stderr, devs, groups)
		})
		// A report is written also if there is no such device: its only case is waived.
		c, err := a.waivedCase(m.device, err)
		if c == nil {
			return err
		}
		if err := r.start(); err != nil {
			return err
		}
		r.add([]report.Case{*c}, nil)
		return nil
	})
}

// dryRun prints the names of the cases. Its exit code is that of a run, as far as
// it is known without measuring.
func (a *app) dryRun(m *measureFlags, on deviceOpener) error {
	err := on(func(_ []*vmm.Device, groups []group) error { return a.printNames(groups) })
	c, err := a.waivedCase(m.device, err)
	if c != nil {
		a.code = report.ExitWaived
	}
	return err
}

// withReport writes the report that fill makes, and sets its exit code. After fill
// has called start, the report is written even if fill fails.
func (a *app) withReport(name string, o *outputFlags, fill func(*runner) error) error {
	begun := time.Now()
	r := &runner{app: a, to: o, report: report.New(a.runInfo(name, begun), hostInfo())}
	err := fill(r)
	if !r.started {
		return err
	}
	run := &r.report.Run
	run.Seconds = time.Since(begun).Seconds()
	run.Interrupted = r.report.Count()[report.Interrupted] > 0
	if err != nil {
		run.Error = oneLine(err)
	}
	r.eachOutput(func(o *output) error { return o.finish(r.report) })
	a.code = r.report.Exit()
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
	r.eachOutput(func(o *output) error { return o.Started(r.report) })
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

// noDeviceError says that this machine does not have the device.
type noDeviceError struct{ err error }

func (e noDeviceError) Error() string { return e.err.Error() }
func (e noDeviceError) Unwrap() error { return e.err }

// open opens a device. For a name that is not valid it returns a usageError, for a
// device that this machine does not have a noDeviceError.
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

// onDevice calls f while a device is open.
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

// waivedCase returns a waived case for a noDeviceError. It returns any other error
// as it is.
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

// printNames prints the names of the cases.
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

// measureGroups measures groups on open devices.
func (r *runner) measureGroups(ctx context.Context, stderr io.Writer, devs []*vmm.Device, groups []group) error {
	for _, dev := range devs {
		r.report.Devices = append(r.report.Devices, describeDevice(dev))
	}
	if err := r.start(); err != nil {
		return err
	}
	p := newProgress(stderr, r.flags.progress.value, len(groups))
	defer p.close()
	for _, g := range groups {
		p.begin(g.name)
		r.measureGroup(ctx, g)
	}
	return nil
}
