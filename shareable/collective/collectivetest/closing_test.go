package collectivetest_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/shareable/collective"
	"github.com/cuvmm/cuvmm/shareable/collective/collectivetest"
	"github.com/cuvmm/cuvmm/shareable/collective/internal/engine"
	"github.com/cuvmm/cuvmm/shareable/collective/internal/hostengine"
)

// TestCloseTwiceAtOnce: Close lets no other call of the group in before it is done.
func TestCloseTwiceAtOnce(t *testing.T) {
	for range 30 {
		groups := collectivetest.Groups(t, 2)
		var wg sync.WaitGroup
		for _, g := range groups {
			r := newRange(t, g.Device(), 1<<20)
			for range 2 {
				wg.Go(func() { _ = g.Close() })
			}
			wg.Go(func() {
				if reg, err := g.Register(t.Context(), r, collective.RegisterOptions{}); err == nil {
					_ = reg.Close()
				}
			})
		}
		wg.Wait()
	}
}

// aborting is a member whose engine takes a while to abort.
type aborting struct {
	*hostengine.Member
	begun            chan struct{}
	aborted, ordered atomic.Bool
	freed            chan struct{}
}

func (e *aborting) Abort() error {
	close(e.begun)
	select {
	case <-e.freed: // Free before Abort has returned
	case <-time.After(200 * time.Millisecond):
	}
	defer e.aborted.Store(true)
	return e.Member.Abort()
}

func (e *aborting) Free() error {
	e.ordered.Store(e.aborted.Load())
	close(e.freed)
	return e.Member.Free()
}

// TestCloseDuringAbort: the engine is not freed while Abort of it runs.
func TestCloseDuringAbort(t *testing.T) {
	t.Parallel()
	var e *aborting
	g := onEngine(t, func(m *hostengine.Member) engine.Engine {
		e = &aborting{Member: m, begun: make(chan struct{}), freed: make(chan struct{})}
		return e
	})
	done := make(chan error)
	go func() { done <- g.Abort() }()
	<-e.begun
	require.NoError(t, g.Close())
	require.NoError(t, <-done)
	require.True(t, e.ordered.Load(), "Free before the end of Abort")
}
