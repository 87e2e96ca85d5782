package budget_test

import (
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
	goOn, card := make(chan struct{}), process(t)
	s, err := budget.Serve(path, budget.ServeOptions{Budgets: []budget.Budget{{
		Device: card, Bytes: 16 * unit, Free: func() (uint64, error) { <-goOn; return card.Info().Memory, nil },
	}}})
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	release := sync.OnceFunc(func() { close(goOn) })
	defer release()
	_, m := join(t, path, "m", 0)
	borrow := func(within time.Duration) error { return m.Borrow(4*unit, true, time.Now().Add(within)) }
	require.ErrorContains(t, borrow(20*time.Millisecond), "the broker has not replied")
	ended := make(chan error, 1)
	go func() { ended <- borrow(time.Hour) }()
	select {
	case err := <-ended:
		require.ErrorContains(t, err, "has said nothing since")
	case <-time.After(10 * time.Second):
		require.FailNow(t, "an ask waits for a broker that hangs")
	}
	release()
	require.Eventually(t, func() bool { return borrow(time.Hour) == nil }, 10*time.Second, time.Millisecond)
}
