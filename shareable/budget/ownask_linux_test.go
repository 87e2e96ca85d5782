package budget_test

import (
	"errors"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/shareable/budget"
	"github.com/cuvmm/cuvmm/vmm"
)

// TestGivesAfterItsOwnAsk: a member above its share that needs more, while another one waits for what it has, is
// refused and then gives.
func TestGivesAfterItsOwnAsk(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "b.sock")
	s, err := budget.Serve(path, budget.ServeOptions{Budgets: []budget.Budget{{Device: process(t), Bytes: 1100 * unit}}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	a, _ := join(t, path, "a", 0)
	b, _ := join(t, path, "b", 0)
	c, _ := join(t, path, "c", 0)
	ga, gb := vector(t, a), vector(t, b)
	require.NoError(t, gb.Grow(1000*unit))
	require.NoError(t, vector(t, c).Grow(90*unit))
	require.NoError(t, gb.SetLen(1000*unit))
	busy, goOn := make(chan struct{}), make(chan struct{})
	stop := b.OnPressure(func(need error) bool {
		var e *vmm.OpError
		require.ErrorAs(t, need, &e)
		if e.Op != "give" { // its own growth has the turn
			close(busy)
			<-goOn
			return false
		}
		return gb.SetLen(gb.Len()-e.Size) == nil && gb.Clip() == nil
	})
	defer stop()
	grown := make(chan error, 2)
	go func() { grown <- gb.Grow(50 * unit) }()
	<-busy
	gives := func() bool { return s.Reports()[0].Members[1].Gives > 0 }
	go func() { grown <- ga.Grow(500 * unit) }()
	require.Eventually(t, func() bool { return gives() || len(grown) > 0 }, 10*time.Second, time.Millisecond)
	close(goOn)
	first, second := <-grown, <-grown
	require.ErrorIs(t, errors.Join(first, second), vmm.ErrOutOfMemory, "b is above its share")
	require.True(t, first == nil || second == nil, "%v\n%v", first, second)
	require.Equal(t, uint64(500*unit), ga.Cap())
}

// TestGivesThoughItsFunctionEnds: a function of OnPressure that ends its goroutine has the member reply all the same.
func TestGivesThoughItsFunctionEnds(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "b.sock")
	s, err := budget.Serve(path, budget.ServeOptions{Budgets: []budget.Budget{{Device: process(t), Bytes: 16 * unit}}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	a, _ := join(t, path, "a", 0)
	b, _ := join(t, path, "b", 0)
	require.NoError(t, vector(t, b).Grow(16*unit))
	stop := b.OnPressure(func(error) bool { runtime.Goexit(); return false })
	defer stop()
	require.ErrorContains(t, vector(t, a).Grow(unit), `"b" gave`)
	require.Zero(t, s.Reports()[0].Counts.Expired)
}
