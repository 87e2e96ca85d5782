package budget_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/shareable/budget"
	"github.com/cuvmm/cuvmm/vmm"
)

// TestLeaveWhileAsked: a member that leaves while the broker sends it something is gone all the same.
func TestLeaveWhileAsked(t *testing.T) {
	path := serve(t, 1024*unit)
	d, _ := join(t, path, "b", 0)
	g := vector(t, d)
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-end:
				return
			default:
				_ = g.Grow(1022 * unit) // too much: a gives what it has idle
				_ = g.Clip()
			}
		}
	}()
	defer func() { close(end); <-ended }()
	a := process(t)
	for i := range testgate.Effort(200, 1500, 5000) {
		m, err := budget.Join(t.Context(), path, a, budget.JoinOptions{Name: "a"})
		require.NoError(t, err)
		ga, err := a.NewRange(vmm.RangeOptions{Max: 1 << 30, Chunk: unit})
		require.NoError(t, err)
		_ = ga.Grow(4 * unit)
		require.NoError(t, ga.Close())
		require.NoError(t, m.Close())
		all, err := budget.Reports(t.Context(), path, d, shareable.AttachOptions{})
		require.NoError(t, err)
		require.Len(t, all[0].Members, 1, "after %d", i)
	}
}

// TestAllIsReleased: the broker hears of it also from a member that had memory when it joined.
func TestAllIsReleased(t *testing.T) {
	t.Parallel()
	path := serve(t, 64*unit)
	d := process(t)
	g := vector(t, d)
	require.NoError(t, g.Grow(8*unit))
	m, err := budget.Join(t.Context(), path, d, budget.JoinOptions{Name: "a"})
	require.NoError(t, err)
	require.NoError(t, g.Clip())
	require.Eventually(t, func() bool {
		all, err := budget.Reports(t.Context(), path, d, shareable.AttachOptions{})
		return err == nil && all[0].Members[0].Created == 0
	}, 10*time.Second, time.Millisecond)
	require.NoError(t, m.Close())
}
