package collectivetest_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/shareable/collective"
	"github.com/cuvmm/cuvmm/shareable/collective/collectivetest"
	"github.com/cuvmm/cuvmm/shareable/collective/internal/engine"
	"github.com/cuvmm/cuvmm/shareable/collective/internal/hostengine"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// freeing is a member whose engine takes a while to free.
type freeing struct {
	*hostengine.Member
	begun, returned chan struct{}
	early           bool
}

func (e *freeing) Free() error {
	close(e.begun)
	select {
	case <-e.returned:
		e.early = true
	case <-time.After(200 * time.Millisecond):
	}
	return e.Member.Free()
}

// TestAbortDuringClose: neither Abort nor Close returns before the group has given all back, also
// where another call does that: the device can be closed next.
func TestAbortDuringClose(t *testing.T) {
	t.Parallel()
	type end = func(*collective.Group) error
	for name, of := range map[string][2]end{
		"Abort during Close": {(*collective.Group).Close, (*collective.Group).Abort},
		"Abort during Abort": {(*collective.Group).Abort, (*collective.Group).Abort},
		"Close during Abort": {(*collective.Group).Abort, (*collective.Group).Close},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var e *freeing
			g := onEngine(t, func(m *hostengine.Member) engine.Engine {
				e = &freeing{Member: m, begun: make(chan struct{}), returned: make(chan struct{})}
				return e
			})
			done := make(chan error)
			go func() { done <- of[0](g) }()
			<-e.begun
			require.NoError(t, of[1](g))
			close(e.returned)
			require.NoError(t, <-done)
			require.False(t, e.early, "returned before Free of the engine")
		})
	}
}

// TestEverythingAtOnce: each member makes all calls at once, and ends meanwhile. All return, and
// give all back.
func TestEverythingAtOnce(t *testing.T) {
	t.Parallel()
	for round := range testgate.Effort(20, 40, 40) {
		devs := []*vmm.Device{vmmtest.Device(t), vmmtest.Device(t)}
		groups := collectivetest.New(t, collectivetest.Options{Timeout: 300 * time.Millisecond, Silent: round%2 == 0}, devs...)
		var wg sync.WaitGroup
		for _, g := range groups {
			own := newStream(t, g.Device())
			r, src := newRange(t, g.Device(), 1<<20), newRange(t, g.Device(), 1<<10)
			legacy := g.Device().WrapStream(uintptr(round % 3))
			t.Cleanup(func() { _ = legacy.Close() })
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(round)*time.Millisecond)
			t.Cleanup(cancel)
			for i, st := range []*vmm.Stream{own, legacy} {
				wg.Go(func() {
					_ = g.Do(ctx, st, collective.AllReduce(src, src, collective.Uint8, collective.Sum))
					_ = g.Sync(ctx, st)
				})
				wg.Go(func() { _, _ = g.AllGather(t.Context(), st, r, src) })
				wg.Go(func() {
					if reg, err := g.Register(t.Context(), r, collective.RegisterOptions{}); err == nil {
						_ = reg.Close()
					}
				})
				wg.Go(func() { _ = g.Sync(t.Context(), st) })
				wg.Go(func() {
					if i == round%2 || g.Rank() == 0 {
						_ = g.Close()
					} else {
						_ = g.Abort()
					}
				})
			}
			wg.Go(func() { _ = own.Close() })
		}
		ended := make(chan struct{})
		go func() { wg.Wait(); close(ended) }()
		select {
		case <-ended:
		case <-time.After(20 * time.Second):
			panic("a call waits")
		}
	}
}

// TestGroupOfAResetDevice: calls say that the device was reset, not that it is lost, and the device
// can be closed after the group.
func TestGroupOfAResetDevice(t *testing.T) {
	for name, call := range map[string]func(*collective.Group, *vmm.Stream, *vmm.Range) error{
		"Do": func(g *collective.Group, st *vmm.Stream, r *vmm.Range) error {
			return g.Do(t.Context(), st, collective.AllReduce(r, r, collective.Uint8, collective.Sum))
		},
		"Sync": func(g *collective.Group, st *vmm.Stream, _ *vmm.Range) error { return g.Sync(t.Context(), st) },
		"AllGather": func(g *collective.Group, st *vmm.Stream, r *vmm.Range) error {
			_, err := g.AllGather(t.Context(), st, r, collective.Part(r, 0, 1))
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			drv := host.New(host.Config{})
			dev, err := vmm.OpenDriver(drv, 0)
			require.NoError(t, err)
			g := collectivetest.GroupsOn(t, dev)[0]
			r, st := newRange(t, dev, 100), newStream(t, dev)
			_, err = g.Register(t.Context(), r, collective.RegisterOptions{})
			require.NoError(t, err)
			require.NoError(t, drv.ResetContext(0))
			require.ErrorIs(t, call(g, st, r), vmm.ErrContextReset)
			_ = g.Close()
			require.NoError(t, g.Close())
			_ = r.Close()
			_ = st.Close()
			require.NoError(t, dev.Close())
		})
	}
}
