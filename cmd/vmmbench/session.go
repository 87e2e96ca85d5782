package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// session is one report in the making.
type session struct {
	flags   *measureFlags // nil if nothing is measured
	report  *report.Report
	outputs []report.Output
}

// planner says what to measure on a device.
type planner func(dev *vmm.Device, raw driver.Device) ([]group, error)

// measure is a measuring command from its flags to its exit code.
func (a *app) measure(ctx context.Context, name string, m *measureFlags, plan planner) error {
	if err := m.check(); err != nil {
		return err
	}
	if m.dryRun {
		return a.onDevice(m.device, func(dev *vmm.Device, raw driver.Device) error { return a.list(dev, raw, plan) })
	}
	return a.session(name, &m.outputFlags, func(s *session) error {
		s.flags = m
		s.report.Run.Measure = m.describe()
		err := a.onDevice(m.device, func(dev *vmm.Device, raw driver.Device) error {
			return s.run(ctx, a.stderr, dev, raw, plan)
		})
		return s.unlessAbsent(a.stderr, m.device, err)
	})
}

// session writes the report that fill makes, and leaves its exit code.
func (a *app) session(name string, o *outputFlags, fill func(*session) error) (err error) {
	start := time.Now()
	outputs, closeOutputs, err := a.outputs(o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeOutputs()) }()
	s := &session{outputs: outputs, report: report.New(a.runInfo(name, start), hostInfo())}
	if err := fill(s); err != nil {
		return err
	}
	s.report.Run.Seconds = time.Since(start).Seconds()
	s.report.Run.Interrupted = s.report.Count()[report.Interrupted] > 0
	a.code = s.report.Exit()
	for _, out := range outputs {
		err = errors.Join(err, out.Finished(s.report))
	}
	return err
}

// absentError says that there is no such device here.
type absentError struct{ err error }

func (e absentError) Error() string { return e.err.Error() }
func (e absentError) Unwrap() error { return e.err }

// open opens a device. A name that is none is a usageError, a device that is
// not there an absentError.
func open(name string) (*vmm.Device, error) {
	dev, err := vmm.Open(name)
	switch {
	case errors.Is(err, vmm.ErrInvalid):
		err = usageError{err}
	case absent(err):
		err = absentError{err}
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
func (s *session) unlessAbsent(stderr io.Writer, device string, err error) error {
	var gone absentError
	if !errors.As(err, &gone) {
		return err
	}
	fmt.Fprintln(stderr, "vmmbench:", err)
	c := report.Case{ID: "open/" + device, Axes: report.Axes{{Name: "device", Value: device}}}
	settle(&c, err)
	return s.emit([]report.Case{c}, nil)
}

// list prints the names of the cases.
func (a *app) list(dev *vmm.Device, raw driver.Device, plan planner) error {
	groups, err := plan(dev, raw)
	if err != nil {
		return err
	}
	for _, g := range groups {
		for _, t := range g.tasks {
			if _, err := fmt.Fprintln(a.stdout, t.c.ID); err != nil {
				return err
			}
		}
	}
	return nil
}

// run measures on a device what is planned for it.
func (s *session) run(ctx context.Context, stderr io.Writer, dev *vmm.Device, raw driver.Device, plan planner) error {
	groups, err := plan(dev, raw)
	if err != nil {
		return err
	}
	s.report.Devices = append(s.report.Devices, describeDevice(dev))
	for _, o := range s.outputs {
		if err := o.Started(s.report); err != nil {
			return err
		}
	}
	p := newProgress(stderr, s.flags.progress.value, len(groups))
	defer p.close()
	for _, g := range groups {
		p.begin(g.name)
		if err := s.group(ctx, g); err != nil {
			return err
		}
	}
	return nil
}

// outputs opens where the report goes, so that a path that cannot be written is
// known before anything is measured.
func (a *app) outputs(o *outputFlags) (list []report.Output, done func() error, err error) {
	list = []report.Output{{W: a.stdout, Format: o.format}}
	var files []*os.File
	done = func() error {
		var err error
		for _, f := range files {
			err = errors.Join(err, f.Close())
		}
		return err
	}
	for _, name := range o.files {
		format, err := report.FormatOf(name)
		if err != nil {
			return nil, nil, errors.Join(usageError{err}, done())
		}
		f, err := os.Create(name)
		if err != nil {
			return nil, nil, errors.Join(err, done())
		}
		files = append(files, f)
		list = append(list, report.Output{W: f, Format: format})
	}
	return list, done, nil
}
