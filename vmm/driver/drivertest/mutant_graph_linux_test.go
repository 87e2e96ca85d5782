package drivertest_test

import (
	"errors"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// graphMutants are the mutants for graphs.
func graphMutants(device func(rule string, wrap func(full) driver.Device) mutant) map[string]mutant {
	waits := device("graph-free", func(f full) driver.Device { return &waitsToFree{f} })
	waits.hangs = true
	return map[string]mutant{
		"captures have one number":          device("capture-id", func(f full) driver.Device { return &oneID{f} }),
		"a graph does nothing":              device("graph-copies", func(f full) driver.Device { return &launchesNoGraph{f} }),
		"a graph runs beside the stream":    device("graph-free", func(f full) driver.Device { return &launchesGraphAside{f} }),
		"a capture stays on its stream":     device("graph-fork", func(f full) driver.Device { return &neverJoins{f} }),
		"work need not be joined":           device("graph-unjoined", func(f full) driver.Device { return &endAny{f} }),
		"any stream ends a capture":         device("graph-origin", func(f full) driver.Device { return &endAny{f} }),
		"an update does nothing":            device("graph-update", func(f full) driver.Device { return &updatesNothing{f} }),
		"a graph takes any update":          device("graph-update", func(f full) driver.Device { return &updatesAll{f} }),
		"an executable ends with its graph": device("graph-free", func(f full) driver.Device { return &freesBoth{f, map[driver.Graph]driver.GraphExec{}} }),
		"freeing a graph waits":             waits,
		"each launch has an executable":     device("graph-serial", func(f full) driver.Device { return &manyExecs{full: f} }),
		"a captured kernel runs":            device("capture-launch", func(f full) driver.Device { return &runsCapturedKernels{f} }),
		"a graph launches only once":        device("capture-launch", func(f full) driver.Device { return &launchesOnce{full: f} }),
	}
}

type oneID struct{ full }

func (d *oneID) CaptureID(s driver.Stream) (uint64, error) {
	id, err := d.full.CaptureID(s)
	return min(id, 1), err
}

type launchesNoGraph struct{ full }

func (d *launchesNoGraph) LaunchGraph(driver.GraphExec, driver.Stream) error { return nil }

type launchesGraphAside struct{ full }

func (d *launchesGraphAside) LaunchGraph(x driver.GraphExec, _ driver.Stream) error {
	return errors.Join(d.full.LaunchGraph(x, d.CopyStream()), d.SyncStream(d.CopyStream()))
}

// neverJoins ignores events of captures in other streams.
type neverJoins struct{ full }

func (d *neverJoins) Wait(s driver.Stream, e driver.Event) error {
	captured, err := d.Capturing(s)
	if err != nil {
		return err
	}
	if _, err := d.Done(e); !captured && errors.Is(err, driver.ErrCapturing) {
		return nil
	}
	return pass(d.full.Wait(s, e), driver.ErrInvalid)
}

type updatesNothing struct{ full }

func (d *updatesNothing) UpdateGraphExec(x driver.GraphExec, g driver.Graph) error {
	again, err := d.Instantiate(g)
	if err != nil {
		return err
	}
	defer func() { _ = d.FreeGraphExec(again) }()
	return d.full.UpdateGraphExec(again, g)
}

type updatesAll struct{ full }

func (d *updatesAll) UpdateGraphExec(x driver.GraphExec, g driver.Graph) error {
	return pass(d.full.UpdateGraphExec(x, g), driver.ErrInvalid)
}

type freesBoth struct {
	full
	of map[driver.Graph]driver.GraphExec
}

func (d *freesBoth) Instantiate(g driver.Graph) (driver.GraphExec, error) {
	x, err := d.full.Instantiate(g)
	d.of[g] = x
	return x, err
}

func (d *freesBoth) FreeGraph(g driver.Graph) error {
	return errors.Join(d.full.FreeGraphExec(d.of[g]), d.full.FreeGraph(g))
}

type waitsToFree struct{ full }

func (d *waitsToFree) FreeGraphExec(x driver.GraphExec) error {
	return errors.Join(d.Sync(), d.full.FreeGraphExec(x))
}

// manyExecs launches each graph by another executable graph.
type manyExecs struct {
	full
	graph driver.Graph
	first driver.Stream // of the first launch
}

func (d *manyExecs) Instantiate(g driver.Graph) (driver.GraphExec, error) {
	d.graph = g
	return d.full.Instantiate(g)
}

func (d *manyExecs) LaunchGraph(_ driver.GraphExec, s driver.Stream) error {
	x, err := d.full.Instantiate(d.graph)
	err = errors.Join(err, d.full.LaunchGraph(x, s))
	if d.first == 0 {
		d.first = s
	} else if s != d.first { // it has run by the time that the rule looks
		err = errors.Join(err, d.SyncStream(s))
	}
	return err
}

type runsCapturedKernels struct{ full }

func (d *runsCapturedKernels) Launch(f driver.Function, l *driver.Launch, s driver.Stream) error {
	return errors.Join(d.full.Launch(f, l, s), d.full.Launch(f, l, d.CopyStream()))
}

type launchesOnce struct {
	full
	done bool
}

func (d *launchesOnce) LaunchGraph(x driver.GraphExec, s driver.Stream) error {
	if d.done {
		return nil
	}
	d.done = true
	return d.full.LaunchGraph(x, s)
}
