package budget_test

import (
	"context"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/shareable/budget"
)

// TestBrokerHangs: after one ask had no reply in time, others do not wait, until the broker says something.
func TestBrokerHangs(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "b.sock")
	entered, goOn, card := make(chan struct{}, 1), make(chan struct{}), process(t)
	s, err := budget.Serve(path, budget.ServeOptions{Budgets: []budget.Budget{{
		Device: card, Bytes: 16 * unit, Free: func() (uint64, error) {
			select {
			case entered <- struct{}{}:
			default:
			}
			<-goOn
			return card.Info().Memory, nil
		},
	}}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	release := sync.OnceFunc(func() { close(goOn) })
	defer release()
	_, m := join(t, path, "m", 0)
	borrow := func(urgent bool, within time.Duration) error { return m.Borrow(4*unit, urgent, time.Now().Add(within)) }
	first := make(chan error, 1)
	go func() { first <- borrow(true, time.Hour) }()
	<-entered
	require.ErrorContains(t, borrow(false, 20*time.Millisecond), "the broker has not replied")
	ended := make(chan error, 1)
	go func() { ended <- borrow(true, time.Hour) }()
	select {
	case err := <-ended:
		require.ErrorContains(t, err, "has said nothing since")
	case <-time.After(10 * time.Second):
		require.FailNow(t, "an ask waits for a broker that hangs")
	}
	release()
	require.NoError(t, <-first)
	require.Eventually(t, func() bool { return borrow(false, time.Hour) == nil }, 10*time.Second, time.Millisecond)
}

// TestSlowGiverIsNoHang: an ask that waits for another member longer than its operation can says nothing of the broker.
func TestSlowGiverIsNoHang(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "b.sock")
	s, err := budget.Serve(path, budget.ServeOptions{Budgets: []budget.Budget{{Device: process(t), Bytes: 16 * unit}}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	b, _ := join(t, path, "b", 0)
	asked, goOn := make(chan struct{}, 1), make(chan struct{})
	stop := b.OnPressure(func(error) bool { asked <- struct{}{}; <-goOn; return false })
	defer stop()
	defer close(goOn)
	require.NoError(t, vector(t, b).Grow(16*unit))
	_, m := join(t, path, "m", 0)
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() { failed <- m.AskUntil(ctx, unit) }()
	<-asked
	cancel()
	require.ErrorContains(t, <-failed, "the broker has not replied")
	require.NoError(t, m.Borrow(unit, false, time.Now().Add(time.Hour)))
}
