package pool_test

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/inside"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
	"github.com/cuvmm/cuvmm/vmm/pool"
)

// TestIdleMemoryOfOthers: whatever this process keeps idle on a device, whoever needs memory there
// can have. In the controls the pools are not asked. What its own pools keep idle a GPU's driver gives to
// a Create by itself, so these controls are for the host driver.
func TestIdleMemoryOfOthers(t *testing.T) {
	idle := func(p pool.Allocator) func(*testing.T, *world, *vmm.Stream, uint64) pool.Allocator {
		return func(t *testing.T, _ *world, s *vmm.Stream, n uint64) pool.Allocator {
			require.NoError(t, p.Free(s, take(t, p, s, n)))
			require.NoError(t, s.Sync())
			return p
		}
	}
	driverPool := func(w *world) *pool.DriverPool {
		return w.driverPool(pool.Options{ReleaseThreshold: math.MaxUint64})
	}
	idlers := map[string]func(*world) func(*testing.T, *world, *vmm.Stream, uint64) pool.Allocator{
		"driver's pool": func(w *world) func(*testing.T, *world, *vmm.Stream, uint64) pool.Allocator {
			return idle(driverPool(w))
		},
		"default pool": func(w *world) func(*testing.T, *world, *vmm.Stream, uint64) pool.Allocator {
			p, err := pool.DriverDefault(w.devs[0])
			require.NoError(w.t, err)
			require.NoError(w.t, p.SetReleaseThreshold(math.MaxUint64))
			return idle(p)
		},
		"pool": func(w *world) func(*testing.T, *world, *vmm.Stream, uint64) pool.Allocator {
			return idle(w.pool(pool.Options{ReleaseThreshold: math.MaxUint64}))
		},
		"cache": func(w *world) func(*testing.T, *world, *vmm.Stream, uint64) pool.Allocator {
			return func(t *testing.T, w *world, _ *vmm.Stream, n uint64) pool.Allocator {
				w.devs[0].SetReleaseThreshold(math.MaxUint64)
				g, err := w.devs[0].Alloc(n)
				require.NoError(t, err)
				require.NoError(t, g.Close())
				return nil
			}
		},
	}
	fromPool := func(t *testing.T, p pool.Allocator, s *vmm.Stream, n uint64) error {
		b, err := p.Alloc(s, n)
		if err == nil {
			require.NoError(t, p.Free(s, b))
		}
		closeAll(t, p.(interface{ Close() error }))
		return err
	}
	users := map[string]func(*testing.T, *world, *vmm.Stream, uint64) error{
		"driver's pool": func(t *testing.T, w *world, s *vmm.Stream, n uint64) error { return fromPool(t, driverPool(w), s, n) },
		"pool": func(t *testing.T, w *world, s *vmm.Stream, n uint64) error {
			return fromPool(t, w.pool(pool.Options{}), s, n)
		},
		"range": func(t *testing.T, w *world, _ *vmm.Stream, n uint64) error {
			g, err := w.devs[0].NewRange(vmm.RangeOptions{Max: n})
			require.NoError(t, err)
			err = g.Grow(n)
			require.NoError(t, g.Close())
			return err
		},
	}
	for idler, keep := range idlers {
		for user, use := range users {
			for _, control := range []bool{false, true} {
				name := idler + " for " + user
				if control && (idler == "cache" || idler != "pool" && user == "driver's pool") {
					continue // the device's cache, and the driver among its own pools, need no function
				}
				if control && onCUDA && idler != "pool" {
					continue
				}
				if control {
					name += ", control"
				}
				t.Run(name, func(t *testing.T) {
					w := oneDevice(t, 64*mib)
					s := w.stream(0)
					n := w.free(0) / 10 * 6 / (2 * mib) * (2 * mib)
					p := keep(w)(t, w, s, n)
					if control {
						pool.SetNoPressure(p)
					}
					err := use(t, w, s, n)
					if control {
						require.ErrorIs(t, err, vmm.ErrOutOfMemory)
					} else {
						require.NoError(t, err)
					}
					if p != nil {
						closeAll(t, p.(interface{ Close() error }))
					}
					closeAll(t, s)
					w.end()
				})
			}
		}
	}
}

// TestDriverPoolAsks: an Alloc that finds no memory calls functions of OnPressure, then OnOOM. One
// beyond the pool's Max calls none but OnOOM, nor does a closed pool take part.
func TestDriverPoolAsks(t *testing.T) {
	w := newWorld(t, 1, 64*mib)
	d, s := w.devs[0], w.stream(0)
	hog, err := d.Create(60*mib, vmm.Prop{})
	require.NoError(t, err)
	var order []string
	stop := d.OnPressure(func(error) bool {
		order = append(order, "asked")
		return len(order) == 2 && hog.Close() == nil
	})
	p := w.driverPool(pool.Options{OnOOM: func(*vmm.Stream, uint64) bool {
		order = append(order, "OnOOM")
		return len(order) == 2
	}})
	order = nil
	_, err = p.Alloc(s, 32*mib)
	require.ErrorIs(t, err, vmm.ErrOutOfMemory)
	require.Equal(t, []string{"asked", "OnOOM", "asked", "OnOOM"}, order)
	order = []string{"once before"}
	require.NoError(t, p.Free(s, take(t, p, s, 32*mib)))
	require.Equal(t, []string{"once before", "asked"}, order)

	small := w.driverPool(pool.Options{Max: 8 * mib})
	b := take(t, small, s, 4*mib)
	order = nil
	_, err = small.Alloc(s, 8*mib)
	require.ErrorIs(t, err, vmm.ErrOutOfMemory)
	require.Empty(t, order)
	require.NoError(t, small.Free(s, b))
	stop()
	closeAll(t, small, p, s)
	require.NotContains(t, w.calls(func() {
		_, err := d.Create(128*mib, vmm.Prop{})
		require.ErrorIs(t, err, vmm.ErrOutOfMemory)
	}), "TrimPool", "the pools are closed")
	w.end()
}

// TestDriverPoolClosesUnderPressure: a Close waits for the call that gives memory back, and works
// beside calls that need memory.
func TestDriverPoolClosesUnderPressure(t *testing.T) {
	w := newWorld(t, 1, 64*mib)
	d, s := w.devs[0], w.stream(0)
	p := w.driverPool(pool.Options{ReleaseThreshold: math.MaxUint64})
	require.NoError(t, p.Free(s, take(t, p, s, 40*mib)))
	require.NoError(t, s.Sync())
	trimming, goOn := make(chan bool), make(chan bool)
	w.watch(func(c drivertest.Call) error {
		if c.Name == "TrimPool" {
			trimming <- true
			<-goOn
		}
		return nil
	})
	created := make(chan error)
	go func() {
		c, err := d.Create(40*mib, vmm.Prop{})
		if err == nil {
			err = c.Close()
		}
		created <- err
	}()
	<-trimming
	closed := make(chan error)
	go func() { closed <- p.Close() }()
	goOn <- true
	require.NoError(t, <-created)
	require.NoError(t, <-closed)
	closeAll(t, s)
	w.end()
}

// piece is what the driver reserves for a pool at a time.
var piece = map[bool]uint64{false: mib, true: 32 * mib}[onCUDA]

// TestDriverPoolStaysWithin a limit, though the driver may reserve more than a block needs.
func TestDriverPoolStaysWithin(t *testing.T) {
	w := oneDevice(t, 64*mib)
	d, s := w.devs[0], w.stream(0)
	limit := piece + 16*mib
	d.SetLimit(limit)
	one, two := w.driverPool(pool.Options{}), w.driverPool(pool.Options{})
	b := take(t, one, s, 8*mib)
	c, err := two.Alloc(s, 8*mib)
	now, _ := inside.VMM.Created(d)
	require.LessOrEqual(t, now, limit)
	require.Equal(t, onCUDA, errors.Is(err, vmm.ErrOutOfMemory), "%v", err)
	require.NoError(t, one.Free(s, b))
	if err == nil {
		require.NoError(t, two.Free(s, c))
	}
}

// TestDriverPoolCounts: what the driver has reserved for a pool counts against SetLimit, with chunks, and no longer
// once it is trimmed or closed.
func TestDriverPoolCounts(t *testing.T) {
	w := oneDevice(t, 64*mib)
	d, s := w.devs[0], w.stream(0)
	d.SetLimit(16 * piece)
	p := w.driverPool(pool.Options{ReleaseThreshold: 64 * piece})
	b := take(t, p, s, 6*piece)
	created, _ := inside.VMM.Created(d)
	st, err := p.Stats()
	require.NoError(t, err)
	require.Equal(t, st.Reserved, created)
	g, err := d.NewRange(vmm.RangeOptions{Max: 64 * piece})
	require.NoError(t, err)
	defer func() { require.NoError(t, g.Close()) }()
	require.ErrorIs(t, g.Grow(12*piece), vmm.ErrOutOfMemory)
	require.NoError(t, g.Grow(4*piece))
	_, err = p.Alloc(s, 14*piece)
	require.ErrorIs(t, err, vmm.ErrOutOfMemory)
	require.ErrorContains(t, err, "limit")
	require.NoError(t, p.Free(s, b))
	require.NoError(t, s.Sync())
	require.NoError(t, g.Grow(12*piece), "the pool has released what no block uses")
	created, _ = inside.VMM.Created(d)
	require.LessOrEqual(t, created, uint64(16*piece))
	require.NoError(t, p.Close())
	after, _ := inside.VMM.Created(d)
	require.LessOrEqual(t, after, created)
}

// TestDriverPoolCountsBesideTrim: a TrimTo beside an Alloc does not take back what that Alloc has counted, or others get
// the same bytes.
func TestDriverPoolCountsBesideTrim(t *testing.T) {
	w := oneDevice(t, 64*mib)
	d, s := w.devs[0], w.stream(0)
	d.SetLimit(16 * piece)
	p := w.driverPool(pool.Options{})
	trimmed := make(chan error, 1)
	var counted uint64
	w.watch(func(c drivertest.Call) error {
		if c.Name == "AllocFromPool" {
			go func() {
				_, err := p.TrimTo(0)
				trimmed <- err
			}()
			<-time.After(50 * time.Millisecond) // a TrimTo must not end meanwhile
			counted, _ = inside.VMM.Created(d)
		}
		return nil
	})
	b := take(t, p, s, 12*piece)
	w.watch(nil)
	require.NoError(t, <-trimmed)
	require.EqualValues(t, 12*piece, counted)
	require.NoError(t, p.Free(s, b))
}
