//go:build cgo && linux && !race && !asan

// Built for the sanitizers, a program allocates more.

package cuda_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

func TestAllocations(t *testing.T) {
	allocations(t, device(t))
}

func TestAllocationsOnFake(t *testing.T) {
	v, _ := rivalsOnFake(t)
	allocations(t, v.dev.Driver())
}

// A launch allocates nothing, of a kernel and of a graph.
func TestLaunchAllocations(t *testing.T) {
	launchAllocations(t, newRivals(t, device(t), libcuda).launches())
}

func TestLaunchAllocationsOnFake(t *testing.T) {
	v, _ := rivalsOnFake(t)
	launchAllocations(t, v.launches())
}

func launchAllocations(t *testing.T, w *launches) {
	kernels, graphs := w.dev.(driver.Launcher), w.dev.(driver.Grapher)
	var err error
	count := func(f func() error) float64 {
		return testing.AllocsPerRun(allocationRuns, func() { err = errors.Join(err, f()) })
	}
	require.Zero(t, count(func() error { return kernels.Launch(w.f, w.l, w.s) }), "launch")
	cooperative := *w.l
	cooperative.Cooperative = true
	require.Zero(t, count(func() error { return kernels.Launch(w.f, &cooperative, w.s) }), "launch with an attribute")
	require.NoError(t, graphs.BeginCapture(w.s, driver.CaptureRelaxed))
	require.NoError(t, kernels.Launch(w.f, w.l, w.s))
	g, captureErr := graphs.EndCapture(w.s)
	require.NoError(t, captureErr)
	exec, instantiateErr := graphs.Instantiate(g)
	require.NoError(t, instantiateErr)
	require.Zero(t, count(func() error { return graphs.LaunchGraph(exec, w.s) }), "launch a graph")
	require.NoError(t, err)
	require.NoError(t, w.dev.SyncStream(w.s))
	require.NoError(t, graphs.FreeGraphExec(exec))
	require.NoError(t, graphs.FreeGraph(g))
}

// allocations checks how often a growth allocates Go memory once the slices and maps
// are large enough: never for a kept chunk, at most once for a new one. The first
// growth of a fresh Range is only reported.
func allocations(t *testing.T, drv driver.Driver) {
	dev, err := vmm.OpenDriver(drv, 0)
	require.NoError(t, err)
	defer dev.Close()
	require.Zero(t, mapAllocations(t, dev), "map a kept chunk")
	require.LessOrEqual(t, growAllocations(t, dev), 1.0, "grow by a new chunk")
	outcome := "met"
	n := freshAllocations(t, dev)
	if n > 1 {
		outcome = "not met"
	}
	t.Logf("first growth of a Range, by one chunk: %v Go allocations, at most 1: %s", n, outcome)
}

const allocationRuns = 100

// mapAllocations is for one Map of a chunk that was mapped before.
func mapAllocations(t *testing.T, dev *vmm.Device) float64 {
	const size = 2 * mib
	chunk, err := dev.Create(size, vmm.Prop{})
	require.NoError(t, err)
	defer chunk.Close()
	r, err := dev.Reserve((allocationRuns+1)*size, vmm.ReserveOptions{})
	require.NoError(t, err)
	defer r.Close()
	var at uint64
	one := func() {
		err = errors.Join(err, r.Map(at, chunk))
		at += size
	}
	for range allocationRuns + 1 {
		one()
	}
	require.NoError(t, err)
	require.NoError(t, r.Unmap(0, at))
	at = 0
	n := testing.AllocsPerRun(allocationRuns, one)
	require.NoError(t, err)
	require.Equal(t, r.Size(), at)
	return n
}

// growAllocations is for one new chunk of a Range that had as many before.
func growAllocations(t *testing.T, dev *vmm.Device) float64 {
	const size = 2 * mib
	g, err := dev.NewRange(vmm.RangeOptions{Max: (allocationRuns + 1) * size, Chunk: size})
	require.NoError(t, err)
	defer g.Close()
	require.NoError(t, g.Grow(g.Max()))
	require.NoError(t, g.Clip())
	require.Zero(t, g.Cap())
	n := testing.AllocsPerRun(allocationRuns, func() { err = errors.Join(err, g.Grow(g.Cap()+size)) })
	require.NoError(t, err)
	require.Equal(t, g.Max(), g.Cap())
	return n
}

// freshAllocations is for the first growth of a Range, by one chunk.
func freshAllocations(t *testing.T, dev *vmm.Device) float64 {
	const size = 2 * mib
	var ranges []*vmm.Range
	for range allocationRuns + 1 {
		g, err := dev.NewRange(vmm.RangeOptions{Max: size})
		require.NoError(t, err)
		ranges = append(ranges, g)
	}
	left := ranges
	var err error
	n := testing.AllocsPerRun(allocationRuns, func() {
		err = errors.Join(err, left[0].Grow(size))
		left = left[1:]
	})
	require.NoError(t, err)
	require.Empty(t, left)
	for _, g := range ranges {
		require.NoError(t, g.Close())
	}
	return n
}
