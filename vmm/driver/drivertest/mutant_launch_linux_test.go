package drivertest_test

import (
	"errors"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// launchMutants are the mutants for modules, kernels and priorities.
func launchMutants(device func(rule string, wrap func(full) driver.Device) mutant) map[string]mutant {
	waits := device("launch-runs", func(f full) driver.Device { return &waitsForKernels{f} })
	waits.hangs = true
	return map[string]mutant{
		"an unloaded module stays":         device("module-unload", func(f full) driver.Device { return &unloadsNothing{f} }),
		"anything is code":                 device("module-bad-image", func(f full) driver.Device { return &loadsAll{f} }),
		"there is every kernel":            device("launch-missing", func(f full) driver.Device { return &findsAll{f} }),
		"parameters have one size":         device("launch-args", func(f full) driver.Device { return &evenParams{f} }),
		"there are no limits":              device("launch-limits", func(f full) driver.Device { return &launchesAll{f} }),
		"any grid is of clusters":          device("launch-clusters", func(f full) driver.Device { return &launchesAll{f} }),
		"nothing runs at once":             device("launch-occupancy", func(f full) driver.Device { return &occupiesNothing{f} }),
		"a kernel waits for nothing":       device("launch-runs", func(f full) driver.Device { return &launchesNow{f} }),
		"a kernel runs before the stream":  device("launch-order", func(f full) driver.Device { return &launchesNow{f} }),
		"arguments are read late":          device("launch-copies", func(f full) driver.Device { return &launchesLate{full: f} }),
		"a kernel uses all memory":         device("launch-memory", func(f full) driver.Device { return &usesMore{f} }),
		"priorities end at their range":    device("priorities", func(f full) driver.Device { return &refusesPriority{f} }),
		"a kernel's fault is silent":       device("lost-kernel", func(f full) driver.Device { return &silentLoss{f} }),
		"a graph's fault is silent":        device("lost-graph", func(f full) driver.Device { return &silentLoss{f} }),
		"a kernel's memory is not watched": device("lost-kernel-unmap", func(f full) driver.Device { return &watchesNothing{f} }),
		"a lost device still loads":        device("lost-entry", func(f full) driver.Device { return &loadsLost{f} }),
		"launching waits":                  waits,
	}
}

type unloadsNothing struct{ full }

func (d *unloadsNothing) UnloadModule(driver.Module) error { return nil }

type loadsAll struct{ full }

func (d *loadsAll) LoadModule(code driver.Code) (driver.Module, string, error) {
	if code.Host == nil {
		code.Host = map[string]driver.HostKernel{"k": {Run: func(*driver.Launch) error { return nil }}}
	}
	return d.full.LoadModule(code)
}

type findsAll struct{ full }

func (d *findsAll) Function(m driver.Module, name string) (driver.Function, error) {
	f, err := d.full.Function(m, name)
	return f, pass(err, driver.ErrInvalid)
}

type evenParams struct{ full }

func (d *evenParams) Params(f driver.Function) ([]driver.Param, error) {
	all, err := d.full.Params(f)
	for i := range all {
		all[i] = driver.Param{Offset: uint32(8 * i), Size: 8}
	}
	return all, err
}

type launchesAll struct{ full }

func (d *launchesAll) Launch(f driver.Function, l *driver.Launch, s driver.Stream) error {
	return pass(d.full.Launch(f, l, s), driver.ErrInvalid)
}

type occupiesNothing struct{ full }

func (d *occupiesNothing) Occupancy(f driver.Function, threads, shared uint32) (int, error) {
	_, err := d.full.Occupancy(f, threads, shared)
	return 0, err
}

type launchesNow struct{ full }

func (d *launchesNow) Launch(f driver.Function, l *driver.Launch, _ driver.Stream) error {
	return errors.Join(d.full.Launch(f, l, d.CopyStream()), d.SyncStream(d.CopyStream()))
}

type launchesLate struct {
	full
	late func() error
}

func (d *launchesLate) Launch(f driver.Function, l *driver.Launch, s driver.Stream) error {
	d.late = func() error { return d.full.Launch(f, l, s) }
	return nil
}

func (d *launchesLate) SyncStream(s driver.Stream) error {
	if d.late != nil {
		if err := d.late(); err != nil {
			return err
		}
	}
	return d.full.SyncStream(s)
}

// usesMore names memory that the kernel does not use, beyond a hole.
type usesMore struct{ full }

func (d *usesMore) Launch(f driver.Function, l *driver.Launch, s driver.Stream) error {
	const granule = mutantGranule
	more := *l
	more.Memory = append(more.Memory, driver.Span{Addr: l.Memory[0].Addr + 3*granule, Size: 4, Access: driver.AccessRead})
	return d.full.Launch(f, &more, s)
}

type refusesPriority struct{ full }

func (d *refusesPriority) NewStreamPriority(priority int) (driver.Stream, error) {
	if priority != 0 {
		return 0, &driver.CallError{Call: "new stream", Kind: driver.ErrInvalid}
	}
	return d.full.NewStreamPriority(priority)
}

type watchesNothing struct{ full }

func (d *watchesNothing) Launch(f driver.Function, l *driver.Launch, s driver.Stream) error {
	less := *l
	less.Memory[0].Size = 4
	return d.full.Launch(f, &less, s)
}

// SyncStream makes the kernel's own fault silent.
func (d *watchesNothing) SyncStream(s driver.Stream) error {
	return pass(d.full.SyncStream(s), driver.ErrDeviceLost)
}

type loadsLost struct{ full }

func (d *loadsLost) LoadModule(code driver.Code) (driver.Module, string, error) {
	m, log, err := d.full.LoadModule(code)
	return m, log, pass(err, driver.ErrDeviceLost)
}

type waitsForKernels struct{ full }

func (d *waitsForKernels) Launch(f driver.Function, l *driver.Launch, s driver.Stream) error {
	return errors.Join(d.full.Launch(f, l, s), d.SyncStream(s))
}
