package vmm_test

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
)

// hungry is the operations that take two pages of memory. The range has one page, or
// two if it sleeps; each leaves behind what it made.
func hungry() map[string]func(t *testing.T, w *world, g *vmm.Range) (do func() error) {
	return map[string]func(t *testing.T, w *world, g *vmm.Range) (do func() error){
		"Append": func(_ *testing.T, _ *world, g *vmm.Range) func() error {
			return func() error { return g.Append(pattern(2*page, 1)) }
		},
		"AppendOn": func(t *testing.T, w *world, g *vmm.Range) func() error {
			s := stream(t, w.devs[0])
			return func() error {
				err := g.AppendOn(s, pattern(2*page, 1))
				if err == nil {
					err = s.Close()
				}
				return err
			}
		},
		"Grow": func(_ *testing.T, _ *world, g *vmm.Range) func() error {
			return func() error { return g.Grow(2 * page) }
		},
		"Wake": func(t *testing.T, _ *world, g *vmm.Range) func() error {
			require.NoError(t, g.Grow(page))
			require.NoError(t, vmm.Sleep(vmm.SleepKeep, g))
			return func() error { return vmm.Wake(g) }
		},
		"Create": func(_ *testing.T, w *world, _ *vmm.Range) func() error {
			return func() error {
				c, err := w.devs[0].Create(2*page, vmm.Prop{})
				if err == nil {
					err = c.Close()
				}
				return err
			}
		},
		"Alloc": func(_ *testing.T, w *world, _ *vmm.Range) func() error {
			return func() error {
				g, err := w.devs[0].Alloc(2 * page)
				if err == nil {
					err = g.Close()
				}
				return err
			}
		},
		"Map": func(t *testing.T, w *world, _ *vmm.Range) func() error {
			r, c := holed(t, w), chunk(t, w, page)
			return func() error {
				err := r.Map(16*page, c)
				if err == nil {
					require.NoError(t, c.Close())
					err = r.Close()
				}
				return err
			}
		},
	}
}

// spent leaves no memory on the device: two pages are the hog's.
func spent(t *testing.T, w *world) (hog *vmm.Chunk) {
	t.Helper()
	return spentOn(t, w.devs[0])
}

func spentOn(t *testing.T, d *vmm.Device) (hog *vmm.Chunk) {
	t.Helper()
	d.SetLimit(d.Stats().Committed + 2*page)
	hog, err := d.Create(2*page, vmm.Prop{})
	require.NoError(t, err)
	return hog
}

// TestPressure: an operation that runs out of memory asks once, and tries again if
// something was released. What it asks may use the device and its ranges.
func TestPressure(t *testing.T) {
	for name, prepare := range hungry() {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 1)
			d := w.devs[0]
			g, h := ranged(t, w, page), ranged(t, w, page)
			do := prepare(t, w, g)
			hog := spent(t, w)
			calls, give := 0, false
			stop := d.OnPressure(func(need error) bool {
				calls++
				require.ErrorIs(t, need, vmm.ErrOutOfMemory)
				if name != "Wake" {
					require.NoError(t, g.SetLen(g.Len()))
					require.NoError(t, g.Clip())
					require.NoError(t, g.Append(nil))
					_, err := g.ReadAt(make([]byte, 1), 0)
					require.NoError(t, err)
				}
				require.NoError(t, h.SetLen(1))
				require.NoError(t, h.Grow(page-1))
				require.NoError(t, h.Append([]byte{1}))
				d.Stats()
				g.Stats()
				d.Report()
				_, err := d.Trim(0)
				require.NoError(t, err)
				d.OnPressure(func(error) bool { return false })() // another one, and its stop
				if give {
					require.NoError(t, hog.Close())
				}
				return give
			})
			refused := func() {
				if name == "Map" {
					w.refuse("Map", 1, vmm.ErrOutOfMemory)
				}
			}
			refused()
			require.ErrorIs(t, do(), vmm.ErrOutOfMemory)
			require.Equal(t, 1, calls)
			give = true
			refused()
			require.NoError(t, do())
			require.Equal(t, 2, calls)
			stop()
			stop()
			require.NoError(t, g.Close())
			require.NoError(t, h.Close())
			w.end()
		})
	}
}

// TestPressureComesLast: after what the package itself can release, and never for
// growth ahead.
func TestPressureComesLast(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *paced) {
		d := w.devs[0]
		calls := 0
		stop := d.OnPressure(func(error) bool { calls++; return false })
		d.SetLimit(4 * page)
		d.SetReleaseThreshold(4 * page)
		keepChunks(t, w.world, 2, 2)
		c := chunk(t, w.world, 4*page)
		require.Zero(t, calls, "the cache was enough")
		pass(time.Second) // growth ahead rests while memory has just run out
		g := newRange(t, d, vmm.RangeOptions{Max: 8 * page, GrowAhead: 4 * page})
		pass(time.Second)
		require.Zero(t, g.Cap())
		require.NotZero(t, d.Stats().GrowAheadFailures)
		require.Zero(t, calls, "growth ahead does without")
		require.ErrorIs(t, g.Grow(page), vmm.ErrOutOfMemory)
		require.Equal(t, 1, calls)
		require.NoError(t, c.Close())
		require.NoError(t, g.Close())
		stop()
	})
}

// TestPressureStops: stop waits for a call that is running, and no other begins.
func TestPressureStops(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *paced) {
		d := w.devs[0]
		held := chunk(t, w.world, page)
		hog := spent(t, w.world)
		entered, let := make(chan struct{}), make(chan struct{})
		stop := d.OnPressure(func(error) bool {
			close(entered)
			<-let
			return false
		})
		other := 0
		stopOther := d.OnPressure(func(error) bool {
			other++
			return other == 1 && hog.Close() == nil
		})
		created := begun(func() error { _, err := d.Create(3*page, vmm.Prop{}); return err })
		<-entered
		stopped := begun(func() error { stop(); return nil })
		pass(time.Second)
		require.Empty(t, stopped)
		close(let)
		require.NoError(t, <-stopped)
		require.ErrorIs(t, <-created, vmm.ErrOutOfMemory, "after a second try")
		require.Equal(t, 2, other)
		stopOther()
		_, err := d.Create(3*page, vmm.Prop{})
		require.ErrorIs(t, err, vmm.ErrOutOfMemory)
		require.Equal(t, 2, other)
		require.NoError(t, held.Close())
		(*vmm.Device)(nil).OnPressure(func(error) bool { panic("of no device") })()
		d.OnPressure(nil)()
	})
}

// TestPressureOfSeveral that need memory at once: functions run one at a time, and what one of
// them has released is for all.
func TestPressureOfSeveral(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *paced) {
		d := w.devs[0]
		hog := spent(t, w.world)
		calls, let := 0, make(chan struct{})
		stop := d.OnPressure(func(error) bool {
			calls++ // the race detector reports whether two run at once
			<-let
			return calls == 1 && hog.Close() == nil
		})
		var made [2]*vmm.Chunk
		var all []<-chan error
		for i := range made {
			all = append(all, begun(func() (err error) {
				made[i], err = d.Create(page, vmm.Prop{})
				return err
			}))
		}
		pass(time.Second) // all are out of memory
		close(let)
		for i, err := range all {
			require.NoError(t, <-err)
			require.NoError(t, made[i].Close())
		}
		require.Equal(t, 1, calls)
		stop()
	})
}

// TestPressureOfTheImpossible: what is larger than the limit fails at once, whatever others release
// meanwhile.
func TestPressureOfTheImpossible(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	d.SetLimit(4 * page)
	calls := 0
	stop := d.OnPressure(func(error) bool { calls++; return true })
	defer stop()
	_, err := d.Create(5*page, vmm.Prop{})
	require.ErrorIs(t, err, vmm.ErrOutOfMemory)
	g := newRange(t, d, vmm.RangeOptions{Max: 8 * page, Chunk: page})
	require.ErrorIs(t, g.Grow(5*page), vmm.ErrOutOfMemory)
	require.Zero(t, calls)
	require.NoError(t, g.Close())
	w.end()
}

// TestPressureOfOthersCounts: what others release while the functions run has the operation tried
// again once, and does not keep it for ever.
func TestPressureOfOthersCounts(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	d.SetLimit(4 * page)
	held := chunk(t, w, 2*page)
	calls := 0
	stop := d.OnPressure(func(error) bool {
		calls++
		c, err := d.Create(page, vmm.Prop{})
		require.NoError(t, err)
		require.NoError(t, c.Close()) // as another goroutine may
		return false
	})
	defer stop()
	_, err := d.Create(3*page, vmm.Prop{})
	require.ErrorIs(t, err, vmm.ErrOutOfMemory)
	require.Equal(t, 2, calls)
	require.NoError(t, held.Close())
	w.end()
}

// TestPressureEnds: who waits for functions that take long ends after a while, also the one that
// calls them.
func TestPressureEnds(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *paced) {
		d := w.devs[0]
		hog := spent(t, w.world)
		calls := 0
		stop := d.OnPressure(func(error) bool {
			calls++
			pass(4 * time.Second)
			return true // and it has released nothing
		})
		var all []<-chan error
		for range 3 {
			all = append(all, begun(func() error {
				_, err := d.Create(page, vmm.Prop{})
				return err
			}))
		}
		began := time.Now()
		for _, err := range all {
			require.ErrorIs(t, <-err, vmm.ErrOutOfMemory)
		}
		require.LessOrEqual(t, time.Since(began), 16*time.Second)
		require.Greater(t, calls, 1)
		stop()
		require.NoError(t, hog.Close())
	})
}

// needy has the functions of two devices need each other's memory, and one also memory of its own.
func needy(t *testing.T, w *world) (depth *atomic.Int64) {
	t.Helper()
	depth = new(atomic.Int64)
	for _, d := range w.devs {
		hog := spentOn(t, d)
		t.Cleanup(func() { require.NoError(t, hog.Close()) })
		stop := d.OnPressure(func(error) bool {
			if depth.Add(1) > 100 {
				return false
			}
			for _, short := range w.devs {
				_, err := short.Create(page, vmm.Prop{})
				require.ErrorIs(t, err, vmm.ErrOutOfMemory)
			}
			return false
		})
		t.Cleanup(stop)
	}
	return depth
}

// TestPressureDoesNotNest: functions that need memory themselves, also of each other's device.
func TestPressureDoesNotNest(t *testing.T) {
	w := newWorld(t, 2)
	depth := needy(t, w)
	var all []<-chan error
	for _, d := range w.devs {
		all = append(all, begun(func() error {
			_, err := d.Create(page, vmm.Prop{})
			return err
		}))
	}
	for _, err := range all {
		require.ErrorIs(t, <-err, vmm.ErrOutOfMemory)
	}
	require.LessOrEqual(t, depth.Load(), int64(4), "each of the two, and each once more since the other has run")
}

// TestPressureNestsWithoutGuard is the negative control: without the guard the operations stand
// until their time is up.
func TestPressureNestsWithoutGuard(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *paced) {
		d := w.devs[0]
		vmm.SetNoPressureGuard(d, true)
		hog := spent(t, w.world)
		stop := d.OnPressure(func(error) bool {
			_, err := d.Create(page, vmm.Prop{})
			require.ErrorIs(t, err, vmm.ErrOutOfMemory)
			return false
		})
		began := time.Now()
		_, err := d.Create(page, vmm.Prop{})
		require.ErrorIs(t, err, vmm.ErrOutOfMemory)
		require.GreaterOrEqual(t, time.Since(began), 10*time.Second)
		stop()
		require.NoError(t, hog.Close())
	})
}

// TestPressureSleepsWhatGrows: a function puts a range to sleep whose growth waits for it.
func TestPressureSleepsWhatGrows(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *paced) {
		d := w.devs[0]
		g, h := ranged(t, w.world, page), ranged(t, w.world, page)
		hog := spent(t, w.world)
		let := make(chan struct{})
		stop := d.OnPressure(func(error) bool {
			<-let
			return vmm.Sleep(vmm.SleepKeep, g) == nil
		})
		first := begun(func() error { return h.Append(make([]byte, page)) })
		pass(time.Second)
		second := begun(func() error { return g.Append(make([]byte, page)) })
		pass(time.Second)
		close(let)
		require.NoError(t, <-first)
		require.ErrorIs(t, <-second, vmm.ErrAsleep)
		stop()
		require.NoError(t, errors.Join(hog.Close(), g.Close(), h.Close()))
	})
}

// TestPressureOfTheDeviceThatIsShort: others are not asked, also where one Wake is for
// ranges of several.
func TestPressureOfTheDeviceThatIsShort(t *testing.T) {
	w := newWorld(t, 2)
	d, peer := w.devs[0], w.devs[1]
	h := newRange(t, peer, vmm.RangeOptions{Max: page})
	require.NoError(t, h.Append(pattern(page, 1)))
	g := ranged(t, w, 2*page)
	require.NoError(t, vmm.Sleep(vmm.SleepKeep, h, g))
	hog := spent(t, w)
	asked := 0
	stop := d.OnPressure(func(error) bool { return hog.Close() == nil })
	defer stop()
	stopPeer := peer.OnPressure(func(error) bool { asked++; return false })
	defer stopPeer()
	require.NoError(t, vmm.Wake(h, g))
	require.Zero(t, asked)
	require.NoError(t, g.Close())
	require.NoError(t, h.Close())
	w.end()
}

// TestPressureEndsWithItsDevice: another Device on the ordinal asks no function of one
// that is closed.
func TestPressureEndsWithItsDevice(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	again, err := vmm.OpenDriver(w.drv, 0)
	require.NoError(t, err)
	asked := 0
	stop := again.OnPressure(func(error) bool { asked++; return false })
	hog := spent(t, w)
	_, err = d.Create(page, vmm.Prop{})
	require.ErrorIs(t, err, vmm.ErrOutOfMemory)
	require.Equal(t, 1, asked, "one limit, one memory")
	require.NoError(t, again.Close())
	again.OnPressure(func(error) bool { asked++; return false })()
	_, err = d.Create(page, vmm.Prop{})
	require.ErrorIs(t, err, vmm.ErrOutOfMemory)
	require.Equal(t, 1, asked)
	stop()
	require.NoError(t, hog.Close())
	w.end()
}

// TestPressureKeepsWhatItFrees: functions that release little at a time do so for the request that
// asked them, and not for smaller ones that come meanwhile. These get theirs after it.
func TestPressureKeepsWhatItFrees(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	d.SetLimit(d.Stats().Committed + 4*page)
	var mu sync.Mutex
	var idle []*vmm.Chunk // least recently used first
	small := func() error {
		c, err := d.Create(page, vmm.Prop{})
		mu.Lock()
		defer mu.Unlock()
		idle = append(idle, c)
		return err
	}
	for range 4 {
		require.NoError(t, small())
	}
	calls := 0
	var under atomic.Bool
	var end func() error
	stop := d.OnPressure(func(error) bool {
		mu.Lock()
		if calls++; calls > 100 || len(idle) == 0 {
			mu.Unlock()
			return false
		}
		c := idle[0]
		idle = idle[1:]
		mu.Unlock()
		require.NoError(t, c.Close())
		if under.CompareAndSwap(false, true) {
			end = parked(func() error {
				defer under.Store(false)
				return small()
			})
		}
		return true
	})
	c, err := d.Create(3*page, vmm.Prop{})
	require.NoError(t, err)
	require.NoError(t, end())
	require.Equal(t, 4, calls, "three, and one for the small one")
	stop()
	require.NoError(t, c.Close())
	for _, c := range idle {
		require.NoError(t, c.Close())
	}
	w.end()
}

// TestPressureSeesWhatWasFreedBefore the functions are called: what others release while a growth
// that has failed undoes its steps.
func TestPressureSeesWhatWasFreedBefore(t *testing.T) {
	w := worldOn(t, 1, host.Config{Devices: 1, Memory: 8 * page, Granularity: page})
	d := w.devs[0]
	c := chunk(t, w, 6*page)
	calls := 0
	stop := d.OnPressure(func(error) bool { calls++; return false })
	g := newRange(t, d, vmm.RangeOptions{Max: 4 * page, Chunk: page})
	w.before = once("Release", func() {
		closed := make(chan error, 1)
		go func() { closed <- c.Close() }()
		require.NoError(t, <-closed)
	})
	require.NoError(t, g.Grow(4*page))
	require.Zero(t, calls)
	stop()
	require.NoError(t, g.Close())
	w.end()
}

// TestGrowthBeyondTheLimitCreatesNothing that others would miss meanwhile.
func TestGrowthBeyondTheLimitCreatesNothing(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	d.SetLimit(d.Stats().Committed + 4*page)
	c := chunk(t, w, 2*page)
	g := newRange(t, d, vmm.RangeOptions{Max: 8 * page, Chunk: page})
	w.arm()
	require.ErrorIs(t, g.Grow(3*page), vmm.ErrOutOfMemory)
	require.NotContains(t, w.disarm(), "Create")
	require.NoError(t, g.Grow(2*page))
	require.ErrorIs(t, g.Grow(3*page), vmm.ErrOutOfMemory)
	require.NoError(t, c.Close())
	require.NoError(t, g.Grow(4*page))
	require.NoError(t, g.Close())
	other := newRange(t, d, vmm.RangeOptions{Max: 8 * page, Chunk: page})
	w.arm(2)
	require.ErrorIs(t, other.Grow(4*page), errInjected)
	w.disarm()
	require.NoError(t, other.Grow(4*page), "what a failed growth was charged is given back")
	require.NoError(t, other.Close())
	w.end()
}

// TestPressureOfAnImpossibleWake: the sum of its ranges is beyond the limit.
func TestPressureOfAnImpossibleWake(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	g, h := ranged(t, w, 2*page), ranged(t, w, 2*page)
	require.NoError(t, vmm.Sleep(vmm.SleepKeep, g, h))
	d.SetLimit(d.Stats().Committed + 3*page)
	calls := 0
	stop := d.OnPressure(func(error) bool { calls++; return calls < 10 })
	require.ErrorIs(t, vmm.Wake(g, h), vmm.ErrOutOfMemory)
	require.Zero(t, calls)
	require.NoError(t, vmm.Wake(h))
	stop()
	require.NoError(t, errors.Join(g.Close(), h.Close()))
	w.end()
}

// TestPressureElsewhere: memory that is to live on another device is that device's, and what is
// asked to release some is what has it there.
func TestPressureElsewhere(t *testing.T) {
	w := worldOn(t, 2, host.Config{Devices: 2, Memory: 4 * page, Granularity: page})
	d, peer := w.devs[0], w.devs[1]
	there := vmm.Prop{Location: vmm.Location{Kind: vmm.LocationDevice, ID: 1}}
	create := func() {
		c, err := d.Create(2*page, there)
		require.NoError(t, err)
		require.NoError(t, c.Close())
	}
	peer.SetReleaseThreshold(4 * page)
	c, err := peer.Create(4*page, vmm.Prop{})
	require.NoError(t, err)
	require.NoError(t, c.Close()) // into the cache
	create()
	peer.SetReleaseThreshold(0)
	c, err = peer.Create(4*page, vmm.Prop{})
	require.NoError(t, err)
	calls, callsPeer := 0, 0
	stop := d.OnPressure(func(error) bool { calls++; return false })
	stopPeer := peer.OnPressure(func(error) bool { callsPeer++; return c.Close() == nil })
	create()
	require.Zero(t, calls)
	require.Equal(t, 1, callsPeer)
	d.SetLimit(page * 3)
	hog := chunk(t, w, 2*page)
	_, err = d.Create(2*page, there)
	require.ErrorIs(t, err, vmm.ErrOutOfMemory)
	require.Equal(t, 1, calls, "the limit is that of the device that creates it")
	require.Equal(t, 1, callsPeer)
	stop()
	stopPeer()
	require.NoError(t, hog.Close())
	w.end()
}
