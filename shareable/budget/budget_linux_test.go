package budget_test

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/shareable/budget"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
)

const unit = 64 << 10

// process is what a process has: a driver of its own, so that its devices are not those of another member.
func process(t *testing.T) *vmm.Device {
	t.Helper()
	d, err := vmm.OpenDriver(host.New(host.Config{Granularity: unit}), 0)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	return d
}

func serve(t *testing.T, bytes uint64) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "b.sock")
	s, err := budget.Serve(path, budget.ServeOptions{Budgets: []budget.Budget{{Device: process(t), Bytes: bytes}}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return path
}

func join(t *testing.T, path, name string, least uint64) (*vmm.Device, *budget.Member) {
	t.Helper()
	d := process(t)
	m, err := budget.Join(t.Context(), path, d, budget.JoinOptions{Name: name, Least: least})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	return d, m
}

func vector(t *testing.T, d *vmm.Device) *vmm.Range {
	t.Helper()
	g, err := d.NewRange(vmm.RangeOptions{Max: 1 << 30, Chunk: unit})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, g.Close()) })
	return g
}

// TestTwoMembers: one has all, and gives what is beyond its share when the other needs it.
func TestTwoMembers(t *testing.T) {
	path := serve(t, 1024*unit)
	a, ma := join(t, path, "a", 0)
	b, mb := join(t, path, "b", 0)
	ga, gb := vector(t, a), vector(t, b)
	require.NoError(t, ga.Grow(1000*unit))
	require.GreaterOrEqual(t, ma.Stats().Lease, uint64(1000*unit))
	err := gb.Grow(500 * unit)
	require.ErrorIs(t, err, vmm.ErrOutOfMemory)
	require.ErrorContains(t, err, `"a"`, "who gave too little is named")
	stop := a.OnPressure(func(need error) bool {
		var e *vmm.OpError
		require.ErrorAs(t, need, &e)
		have := ga.Cap()
		keep := have - min(have, e.Size)
		if ga.Len() > keep {
			require.NoError(t, ga.SetLen(keep))
		}
		require.NoError(t, ga.Clip())
		return ga.Cap() < have
	})
	defer stop()
	require.NoError(t, ga.SetLen(1000*unit))
	require.NoError(t, gb.Grow(500*unit))
	require.ErrorIs(t, gb.Grow(600*unit), vmm.ErrOutOfMemory, "beyond its share")
	require.LessOrEqual(t, ma.Stats().Lease+mb.Stats().Lease, uint64(1024*unit))
	require.Equal(t, ga.Cap(), uint64(512*unit)+12*unit)

	rs, err := budget.Reports(context.Background(), path, a, shareable.AttachOptions{})
	require.NoError(t, err)
	require.Len(t, rs, 1)
	require.Len(t, rs[0].Members, 2)
	require.Equal(t, "a", rs[0].Members[0].Name)
	_ = time.Now
}
