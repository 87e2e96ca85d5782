package vmm_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/inside"
	"github.com/cuvmm/cuvmm/vmm"
)

// TestGiveWhoseFunctionDoesNotReturn: it panics, or ends its goroutine. The process may create as much as before, but for
// what it has given.
func TestGiveWhoseFunctionDoesNotReturn(t *testing.T) {
	for name, end := range map[string]func(){
		"Goexit":  runtime.Goexit,
		"panic":   func() { panic(errInjected) },
		"control": func() {},
	} {
		t.Run(name, func(t *testing.T) {
			l := &testBroker{}
			d := leased(t, l)
			l.lease.Raise(4 * leaseUnit)
			g := growing(t, d)
			require.NoError(t, g.Grow(4*leaseUnit))
			stop := d.OnPressure(func(error) bool {
				end()
				return false
			})
			defer stop()
			done := make(chan struct{})
			go func() {
				defer close(done)
				defer func() { _ = recover() }()
				_, _ = l.lease.Give(leaseUnit, time.Now().Add(time.Minute))
			}()
			<-done
			have, created, _ := l.lease.State()
			require.Equal(t, created, have, "nothing was released")
			require.NoError(t, g.Clip())
			require.NoError(t, g.Grow(4*leaseUnit))
		})
	}
}

// TestLeaseIsShown in the statistics, and in the history when it rises and falls. Without one nothing is.
func TestLeaseIsShown(t *testing.T) {
	d := newWorld(t, 1).devs[0]
	d.SetHistory(vmm.HistoryOptions{Events: 100})
	leases := func() (all []string) {
		for _, e := range d.History(0) {
			if e.Kind == "lend" || e.Kind == "give" {
				all = append(all, fmt.Sprint(e.Kind, e.Size/leaseUnit))
			}
		}
		return all
	}
	g := growing(t, d)
	require.NoError(t, g.Grow(leaseUnit))
	require.Zero(t, d.Stats().Lease)
	require.Empty(t, leases(), "control")
	lease, err := inside.VMM.Lend(d, &testBroker{})
	require.NoError(t, err)
	lease.Raise(7 * leaseUnit)
	require.EqualValues(t, 8*leaseUnit, d.Stats().Lease)
	require.Equal(t, []string{"lend1", "lend7"}, leases())
	lease.DropCached(6 * leaseUnit)
	lease.DropCached(6 * leaseUnit)
	_, busy := lease.Give(3*leaseUnit, time.Now().Add(time.Minute))
	require.False(t, busy)
	lease.Cut(2 * leaseUnit)
	require.NoError(t, lease.End())
	require.Equal(t, []string{"lend1", "lend7", "give2", "give3", "give1", "give2"}, leases())
	require.Zero(t, d.Stats().Lease)
}
