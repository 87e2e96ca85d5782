package pool_test

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
	"github.com/cuvmm/cuvmm/vmm/pool"
)

// scene is a pool before the operation of which driver calls fail.
type scene struct {
	w    *world
	p    *pool.Pool
	s    *vmm.Stream
	to   *vmm.Stream
	open func()
	live []pool.Block
	more []*pool.Pool
}

// newScene has live blocks, idle memory between them, and memory that waits for s.
func newScene(t *testing.T) *scene {
	t.Helper()
	w := newWorld(t, 2, 16*mib)
	x := &scene{w: w, s: w.stream(0), to: w.stream(0)}
	g := w.gates(0)
	x.p = w.pool(pool.Options{Max: 32 * chunk, ReleaseThreshold: 16 * mib})
	var idle []pool.Block
	for range 3 {
		x.live = append(x.live, alloc(t, x.p, x.s, 3*chunk), alloc(t, x.p, x.s, 100))
		idle = append(idle, alloc(t, x.p, x.s, 3*chunk))
	}
	for _, b := range idle {
		require.NoError(t, x.p.Free(x.s, b))
	}
	require.NoError(t, x.s.Sync())
	pending := alloc(t, x.p, x.s, 2*chunk)
	x.open = g.hold(x.s)
	require.NoError(t, x.s.Fill(pending.Ptr(), 1, 4, 100))
	require.NoError(t, x.p.Free(x.s, pending))
	require.NoError(t, pool.Check(x.p))
	return x
}

// check is that the pool knows what it has, unless a Close has begun.
func (x *scene) check(t *testing.T, note ...any) {
	t.Helper()
	if _, err := x.p.Reuse(); err == nil {
		require.NoError(t, pool.Check(x.p), note...)
		require.Equal(t, len(x.live), statsOf(t, x.p).Blocks, note...)
	}
}

// end frees everything: nothing is lost.
func (x *scene) end(t *testing.T) {
	t.Helper()
	x.open()
	x.check(t)
	for _, b := range x.live {
		require.NoError(t, x.p.FreeNow(b))
	}
	for _, p := range x.more {
		closeAll(t, p)
	}
	closeAll(t, x.s, x.to, x.p)
	x.w.end()
}

// faulty are operations that make driver calls.
func faulty() map[string]func(x *scene) error {
	one := func(x *scene, on *vmm.Stream, n uint64) error {
		b, err := x.p.Alloc(on, n)
		if err == nil {
			x.live = append(x.live, b)
		}
		return err
	}
	return map[string]func(x *scene) error{
		"of new chunks":   func(x *scene) error { return one(x, x.to, 12*chunk) },
		"of moved chunks": func(x *scene) error { return one(x, x.to, 6*chunk) },
		"of a slab":       func(x *scene) error { return one(x, x.to, 3*kib) },
		"behind a wait": func(x *scene) error {
			x.open()
			return one(x, x.to, 17*chunk)
		},
		"resize": func(x *scene) error {
			b, err := x.p.Resize(x.s, x.live[len(x.live)-2], 12*chunk)
			if err == nil {
				x.live[len(x.live)-2] = b
			}
			return err
		},
		"trim": func(x *scene) error {
			_, err := x.p.TrimTo(0)
			return err
		},
		"sync": func(x *scene) error {
			x.open()
			return x.s.Sync()
		},
		"grant": func(x *scene) error { return x.p.Grant(vmm.AccessReadWrite, x.w.devs[1]) },
		"revoke": func(x *scene) error {
			x.open()
			if err := x.p.Grant(vmm.AccessReadWrite, x.w.devs[1]); err != nil {
				return err
			}
			return x.p.Revoke(x.w.devs[1])
		},
		"close": func(x *scene) error {
			x.open()
			for _, b := range x.live {
				if err := x.p.FreeNow(b); err != nil {
					return err
				}
			}
			x.live = nil
			return x.p.Close()
		},
		"new": func(x *scene) error {
			p, err := pool.New(x.w.devs[0], pool.Options{})
			if err != nil {
				return err
			}
			x.more = append(x.more, p)
			return p.Close()
		},
	}
}

// TestFaultAtEveryCall fails each driver call of each operation, and then each two of them.
// Whatever the operation returns, the pool knows what it has and no block is lost; the
// operation works at the next try, at the latest after a trim; and Close gives back everything.
func TestFaultAtEveryCall(t *testing.T) {
	for name, do := range faulty() {
		t.Run(name, func(t *testing.T) {
			n := failing(t, do)
			require.Positive(t, n)
			for i := 1; i <= n; i++ {
				for k := range min(failing(t, do, i), testgate.Effort(2, math.MaxInt, math.MaxInt)) {
					failing(t, do, i, i+1+k)
				}
			}
		})
	}
}

// failing runs an operation of which the calls with those numbers fail, and returns how many
// calls came after the last of them.
func failing(t *testing.T, do func(x *scene) error, at ...int) (after int) {
	t.Helper()
	x := newScene(t)
	calls := 0
	var names []string
	x.w.watch(func(c drivertest.Call) error {
		// What the gate does comes first, and is not the operation's.
		if c.Name == "WriteValue" || c.Name == "SyncStream" {
			return nil
		}
		calls++
		for _, n := range at {
			if n == calls {
				names = append(names, c.Name)
				return errInjected
			}
		}
		return nil
	})
	err := do(x)
	x.w.watch(nil)
	if len(at) == 0 {
		require.NoError(t, err)
	}
	note := []any{"calls %v, %v, failed: %v", at, names, err}
	if err != nil {
		require.ErrorIs(t, err, errInjected, note...)
	}
	x.check(t, note...)
	if err != nil {
		x.open() // access that is in doubt is set again after a wait
	}
	if err != nil && do(x) != nil {
		// Only addresses where the driver has refused to map, or to take back, are in doubt.
		require.True(t, slices.ContainsFunc(names, func(n string) bool {
			return n == "Map" || n == "SetAccess"
		}), note...)
		_, again := x.p.TrimTo(math.MaxUint64) // mends what can be mended
		require.NoError(t, again, note...)
		require.NoError(t, do(x), note...)
	}
	x.end(t)
	if len(at) == 0 {
		return calls
	}
	return calls - at[len(at)-1]
}
