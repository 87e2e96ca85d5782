package pool_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/door"
	"github.com/cuvmm/cuvmm/internal/inside"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
	"github.com/cuvmm/cuvmm/vmm/pool"
)

// noLender lends nothing.
type noLender struct{}

func (noLender) Borrow(uint64, bool, time.Time) error { return nil }

func (noLender) Near() {}

func lend(t *testing.T, d *vmm.Device) door.Lease {
	t.Helper()
	l, err := inside.VMM.Lend(d, noLender{})
	require.NoError(t, err)
	return l
}

func created(d *vmm.Device) uint64 {
	n, _ := inside.VMM.Created(d)
	return n
}

func reserved(t *testing.T, p *pool.DriverPool) uint64 {
	t.Helper()
	st, err := p.Stats()
	require.NoError(t, err)
	return st.Reserved
}

// TestDriverPoolCountsFromTheBoundOn: what the driver has reserved before there is a bound counts as soon as there is one,
// without a call of the pool.
func TestDriverPoolCountsFromTheBoundOn(t *testing.T) {
	bounds := map[string]func(*testing.T, *vmm.Device) (end func()){
		"limit": func(_ *testing.T, d *vmm.Device) func() {
			d.SetLimit(32 * mib)
			return func() { d.SetLimit(0) }
		},
		"around": func(_ *testing.T, d *vmm.Device) func() {
			inside.VMM.SetAround(d, 32*mib, "dmem.max")
			return func() { inside.VMM.SetAround(d, math.MaxUint64, "") }
		},
		"lease": func(t *testing.T, d *vmm.Device) func() {
			l := lend(t, d)
			lease, n, _ := l.State()
			require.Equal(t, n, lease, "the lease has what is created")
			return func() { require.NoError(t, l.End()) }
		},
	}
	for name, bound := range bounds {
		t.Run(name, func(t *testing.T) {
			w := oneDevice(t, 64*mib)
			d, s := w.devs[0], w.stream(0)
			p := w.driverPool(pool.Options{ReleaseThreshold: math.MaxUint64})
			b := take(t, p, s, 6*mib)
			require.Zero(t, created(d), "control: nothing counts without a bound")
			end := bound(t, d)
			require.Equal(t, reserved(t, p), created(d))
			require.NotZero(t, created(d))
			require.NoError(t, p.Free(s, b))
			require.NoError(t, p.Close())
			require.Zero(t, created(d))
			end()
		})
	}
}

// TestDriverPoolCountsOnce however often it is open, until the last of its users has closed it.
func TestDriverPoolCountsOnce(t *testing.T) {
	w := oneDevice(t, 64*mib)
	d, s := w.devs[0], w.stream(0)
	d.SetLimit(64 * mib)
	p := w.driverPool(pool.Options{})
	require.NoError(t, p.SetCurrent())
	again, err := pool.DriverCurrent(d)
	require.NoError(t, err)
	third, err := pool.DriverCurrent(d)
	require.NoError(t, err)
	other := w.driverPool(pool.Options{})
	a, b, c := take(t, p, s, 6*mib), take(t, again, s, 4*mib), take(t, other, s, 8*mib)
	require.Equal(t, reserved(t, p)+reserved(t, other), created(d), "control: another pool counts beside it")
	require.NoError(t, again.Free(s, b))
	require.NoError(t, again.Close())
	require.Equal(t, reserved(t, p)+reserved(t, other), created(d))
	require.NoError(t, p.Free(s, a))
	require.NoError(t, p.Close(), "it destroys the pool")
	require.Equal(t, reserved(t, other), created(d), "no one reads what is destroyed")
	require.NoError(t, third.Close())
	require.NoError(t, other.Free(s, c))
	require.NoError(t, other.Close())
	require.Zero(t, created(d))
}

// TestGiveReadsDriverPools: what the driver has released by itself, at a synchronisation, is given.
func TestGiveReadsDriverPools(t *testing.T) {
	w := oneDevice(t, 64*mib)
	d, s := w.devs[0], w.stream(0)
	l := lend(t, d)
	l.Raise(64 * mib)
	p := w.driverPool(pool.Options{})
	b := take(t, p, s, 8*mib)
	require.Equal(t, uint64(64*mib)-reserved(t, p), l.DropCached(0), "control: what is reserved stays")
	had := reserved(t, p)
	require.NoError(t, p.Free(s, b))
	require.NoError(t, s.Sync())
	require.Zero(t, reserved(t, p))
	require.Equal(t, had, l.DropCached(0))
	require.NoError(t, p.Close())
	require.NoError(t, l.End())
}

// TestBoundBesideAnAlloc: a bound that appears waits for an Alloc that is under way without one, and counts what that has.
func TestBoundBesideAnAlloc(t *testing.T) {
	w := oneDevice(t, 64*mib)
	d, s := w.devs[0], w.stream(0)
	p := w.driverPool(pool.Options{})
	limited := make(chan uint64)
	w.watch(func(c drivertest.Call) error {
		if c.Name == "AllocFromPool" {
			go func() { limited <- d.SetLimit(32 * mib) }()
			<-time.After(20 * time.Millisecond) // it must not end meanwhile
		}
		return nil
	})
	b := take(t, p, s, 6*mib)
	w.watch(nil)
	require.Zero(t, <-limited)
	require.Equal(t, reserved(t, p), created(d))
	require.NoError(t, p.Free(s, b))
}
