package vmm_test

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
)

// What is tested here is the order of the device's goroutine and its callers. Time is
// synctest's: it stands still while any goroutine has something to do.

// bubble runs f with a world inside a synctest bubble. Before it ends no
// goroutine may be left.
func bubble(t *testing.T, devices int, f func(t *testing.T, w *paced)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p := &paced{}
		p.world = worldWith(t, devices, p.pace)
		f(t, p)
		p.end()
		synctest.Wait()
		for _, d := range p.devs {
			running, wanted := vmm.Working(d)
			require.False(t, running)
			require.Zero(t, wanted)
		}
	})
}

// paced is a world that stops a call, or records when calls are made.
type paced struct {
	*world
	mu    sync.Mutex
	stop  string // the next call of this name stops
	let   chan struct{}
	note  string // calls of this name are recorded
	times []time.Time
}

func (p *paced) pace(c drivertest.Call) {
	p.mu.Lock()
	if c.Name == p.note {
		p.times = append(p.times, time.Now())
	}
	stop := c.Name == p.stop
	let := p.let
	if stop {
		p.stop = ""
	}
	p.mu.Unlock()
	if stop {
		<-let
	}
}

// stopNext stops the next call of a name until let is called.
func (p *paced) stopNext(name string) (let func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	gone := make(chan struct{})
	p.stop, p.let = name, gone
	let = sync.OnceFunc(func() { close(gone) })
	p.t.Cleanup(let)
	return let
}

// noting forgets the recorded times and records those of calls of a name.
func (p *paced) noting(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.note, p.times = name, nil
}

// gaps is the time between the start and the first noted call, and between them.
func (p *paced) gaps(start time.Time) (all []time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, at := range p.times {
		all = append(all, at.Sub(start))
		start = at
	}
	return all
}

// pass waits so long.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// looked gives the device's goroutine the time to look for work, and to do it.
func looked() { pass(4 * time.Millisecond) }

// begun runs f and gives it time to get as far as it can, locks included.
func begun(f func() error) <-chan error {
	done, runs := make(chan error, 1), make(chan struct{})
	go func() { close(runs); done <- f() }()
	<-runs
	for range 200 {
		runtime.Gosched()
	}
	return done
}

// ahead returns a range that keeps four pages ready, and has them already.
func ahead(t *testing.T, d *vmm.Device) *vmm.Range {
	t.Helper()
	g := newRange(t, d, vmm.RangeOptions{Max: 64 * page, Chunk: page, GrowAhead: 4 * page})
	looked()
	require.EqualValues(t, 4*page, g.Cap())
	return g
}

func TestGrowthAheadIsThereBeforeTheNeed(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *paced) {
		d := w.devs[0]
		g := ahead(t, d)
		require.EqualValues(t, 1, d.Stats().GrowAheads)
		for n := range 20 {
			require.NoError(t, g.Append(pattern(page, byte(n))))
			looked()
			require.GreaterOrEqual(t, g.Cap()-g.Len(), uint64(2*page), "half of it at least")
			require.LessOrEqual(t, g.Cap()-g.Len(), uint64(4*page))
		}
		st := g.Stats()
		require.Zero(t, st.Growths, "no call waited for one")
		require.LessOrEqual(t, st.GrowAheads, uint64(11), "sparse: half of it at once")
		require.EqualValues(t, g.Cap(), d.Stats().Committed)
		require.EqualValues(t, st.GrowAheads, d.Stats().GrowAheads)
		pass(50 * time.Millisecond)
		running, _ := vmm.Working(d)
		require.False(t, running, "gone when idle")
		for n := range 20 {
			b := make([]byte, page)
			_, err := g.ReadAt(b, int64(n*page))
			require.NoError(t, err)
			require.Equal(t, pattern(page, byte(n)), b)
		}
		require.NoError(t, g.Clip())
		require.Equal(t, g.Len(), g.Cap(), "Clip releases it")
		looked()
		require.Equal(t, g.Len(), g.Cap(), "and it stays so until the range is used")
		require.NoError(t, g.Close())
	})
}

func TestGrowthAheadOfTheLadder(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *paced) {
		g := newRange(t, w.devs[0], vmm.RangeOptions{Max: 256 * page, GrowAhead: 8 * page})
		looked()
		for range 60 {
			require.NoError(t, g.Append(pattern(2*page, 1)))
			looked()
			require.GreaterOrEqual(t, g.Cap(), min(g.Max(), g.Len()+4*page))
		}
		require.Zero(t, g.Stats().Growths)
		require.NoError(t, g.Close())
	})
}

// TestTheForegroundCatchesUp with a growth ahead that is at each of its calls: it waits for
// that memory, and nothing is lost or made twice.
func TestTheForegroundCatchesUp(t *testing.T) {
	for _, name := range []string{"Create", "Map", "SetAccess"} {
		for _, pages := range []int{3, 6} {
			t.Run(fmt.Sprint(name, pages), func(t *testing.T) {
				bubble(t, 1, func(t *testing.T, w *paced) {
					d := w.devs[0]
					let := w.stopNext(name)
					g := newRange(t, d, vmm.RangeOptions{Max: 64 * page, Chunk: page, GrowAhead: 4 * page})
					looked()
					want := pattern(pages*page, 3)
					done := begun(func() error { return g.Append(want) })
					let()
					require.NoError(t, <-done)
					looked()
					require.EqualValues(t, g.Cap(), w.made("Create")*page)
					require.EqualValues(t, g.Cap(), d.Stats().Committed)
					require.GreaterOrEqual(t, g.Cap()-g.Len(), uint64(2*page))
					require.Zero(t, d.Stats().GrowAheadFailures)
					b := make([]byte, len(want))
					_, err := g.ReadAt(b, 0)
					require.NoError(t, err)
					require.Equal(t, want, b)
					require.NoError(t, g.Close())
				})
			})
		}
	}
}

// TestOthersDuringGrowthAhead: a call that ends or shrinks the range waits for the growth ahead
// or cancels it. Neither leaves anything behind.
func TestOthersDuringGrowthAhead(t *testing.T) {
	cancelled := func(t *testing.T) context.Context {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		return ctx
	}
	ops := []struct {
		name string
		do   func(t *testing.T, g *vmm.Range) error
		want error
		cap  uint64 // pages, afterwards; the growth ahead may come after the operation
	}{
		{"Close", func(_ *testing.T, g *vmm.Range) error { return g.Close() }, nil, 0},
		{"CloseContext", func(t *testing.T, g *vmm.Range) error { return g.CloseContext(cancelled(t)) }, context.Canceled, 0},
		{"Clip", func(_ *testing.T, g *vmm.Range) error { return g.Clip() }, nil, 4},
		{"Sleep", func(_ *testing.T, g *vmm.Range) error { return vmm.Sleep(vmm.SleepKeep, g) }, nil, 0},
		{"Device.Close", func(_ *testing.T, g *vmm.Range) error { return g.Device().Close() }, vmm.ErrBusy, 4},
		{"SetLen", func(_ *testing.T, g *vmm.Range) error { return g.SetLen(0) }, nil, 4},
	}
	for _, op := range ops {
		for _, name := range []string{"Create", "Map", "SetAccess"} {
			t.Run(op.name+" in "+name, func(t *testing.T) {
				bubble(t, 1, func(t *testing.T, w *paced) {
					let := w.stopNext(name)
					g := newRange(t, w.devs[0], vmm.RangeOptions{Max: 64 * page, Chunk: page, GrowAhead: 4 * page})
					looked()
					done := begun(func() error { return op.do(t, g) })
					result := sync.OnceValue(func() error { return <-done })
					if op.name == "CloseContext" { // else the close may end before its caller looks at ctx
						require.ErrorIs(t, result(), op.want)
					}
					let()
					require.ErrorIs(t, result(), op.want)
					looked()
					require.LessOrEqual(t, g.Cap(), op.cap*page)
					require.EqualValues(t, g.Cap(), w.devs[0].Stats().Committed)
					if op.name == "Sleep" {
						require.ErrorIs(t, g.Append([]byte{1}), vmm.ErrAsleep)
						require.NoError(t, vmm.Wake(g))
					}
					require.NoError(t, g.Close())
				})
			})
		}
	}
}

// TestTheDeviceClosesDuringGrowthAhead of a range whose Close stopped waiting.
func TestTheDeviceClosesDuringGrowthAhead(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *paced) {
		let := w.stopNext("Create")
		g := newRange(t, w.devs[0], vmm.RangeOptions{Max: 64 * page, Chunk: page, GrowAhead: 4 * page})
		looked()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, g.CloseContext(ctx), context.Canceled)
		done := begun(w.devs[0].Close)
		let()
		require.NoError(t, <-done, "it joins the close and the goroutine")
		require.NoError(t, w.drv.Balanced())
	})
}

// TestTheDeviceIsUsedAgainWhileItCloses: then Close does not wait for the new objects, and
// returns what is open.
func TestTheDeviceIsUsedAgainWhileItCloses(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *paced) {
		d := w.devs[0]
		let := w.stopNext("Create")
		g := newRange(t, d, vmm.RangeOptions{Max: 64 * page, Chunk: page, GrowAhead: 4 * page})
		synctest.Wait()
		ended := begun(g.Close)
		for len(d.Report().Open) > 0 {
			runtime.Gosched()
		}
		closed := begun(d.Close)
		require.Empty(t, closed, "the goroutine is at work")
		h := newRange(t, d, vmm.RangeOptions{Max: page})
		require.ErrorIs(t, <-closed, vmm.ErrBusy)
		let()
		require.NoError(t, <-ended)
		require.NoError(t, h.Close())
	})
}

// TestGrowthAheadFailsAtEachCall: the failure is counted, earlier memory is kept, the growth
// that needs the memory tries itself, and after a while growth ahead works again.
func TestGrowthAheadFailsAtEachCall(t *testing.T) {
	for call := 1; ; call++ {
		calls := 0
		bubble(t, 1, func(t *testing.T, w *paced) {
			d := w.devs[0]
			g := ahead(t, d)
			require.NoError(t, g.Append(pattern(page, 1)))
			looked()
			before := w.picture(g)
			w.arm(call)
			require.NoError(t, g.SetLen(3*page))
			looked()
			seen := w.disarm()
			calls = len(seen)
			if call > calls {
				require.NoError(t, g.Close())
				return
			}
			note := fmt.Sprintf("call %d of %v", call, seen)
			before.Len, before.Contents = 3*page, w.contents(g)
			w.extended(before, g, note)
			if seen[call-1] == "MemInfo" { // it need not know
				require.NoError(t, g.Close())
				return
			}
			st := d.Stats()
			require.EqualValues(t, 1, st.GrowAheadFailures, note)
			require.EqualValues(t, 1, g.Stats().GrowAheadFailures, note)
			require.EqualValues(t, g.Cap(), st.Committed, note)
			require.Zero(t, st.Quarantined, note)

			w.arm()
			require.NoError(t, g.SetLen(4*page))
			looked()
			require.Empty(t, w.disarm(), "it rests: "+note)
			require.NoError(t, g.Append(pattern(2*page, 7)), note)
			require.EqualValues(t, 6*page, g.Cap(), note)

			pass(100 * time.Millisecond)
			require.NoError(t, g.Append([]byte{1}), note)
			looked()
			require.GreaterOrEqual(t, g.Cap(), g.Len()+2*page, "it works again: "+note)
			require.EqualValues(t, 1, d.Stats().GrowAheadFailures, note)
			require.NoError(t, g.Close())
		})
		if t.Failed() || call > calls {
			require.Greater(t, calls, 6, "creates, maps and one call for access")
			return
		}
	}
}

// TestGrowthAheadThatCannotBeUndone is quarantined like any growth.
func TestGrowthAheadThatCannotBeUndone(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *paced) {
		g := ahead(t, w.devs[0])
		w.refuse("SetAccess", 1, errInjected)
		w.refuse("Unmap", 1, errInjected)
		require.NoError(t, g.SetLen(3*page))
		looked()
		require.NotZero(t, g.Stats().Quarantined)
		require.EqualValues(t, 4*page, g.Cap())
		require.NoError(t, g.Append(pattern(page, 1)), "what is there works")
		require.ErrorIs(t, g.Append([]byte{1}), errInjected)
		require.NoError(t, g.Close())
	})
}

func TestGrowthAheadKeepsWithinTheMaximum(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *paced) {
		g := newRange(t, w.devs[0], vmm.RangeOptions{Max: 7 * page, GrowAhead: 4 * page})
		for range 7 {
			require.NoError(t, g.Append(pattern(page, 1)))
			looked()
		}
		require.EqualValues(t, 7*page, g.Cap())
		require.ErrorIs(t, g.Append([]byte{1}), vmm.ErrFull)
		require.Zero(t, w.devs[0].Stats().GrowAheadFailures)
		w.arm()
		require.NoError(t, g.SetLen(7*page))
		looked()
		require.Empty(t, w.disarm())
		require.NoError(t, g.Close())

		// More than the remaining addresses.
		g = newRange(t, w.devs[0], vmm.RangeOptions{Max: 3 * page, GrowAhead: 1 << 63})
		looked()
		require.EqualValues(t, 3*page, g.Cap())
		require.NoError(t, g.Close())
	})
}

func TestGrowthAheadKeepsWithinTheLimit(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *paced) {
		d := w.devs[0]
		d.SetLimit(6 * page)
		g := newRange(t, d, vmm.RangeOptions{Max: 64 * page, GrowAhead: 4 * page})
		for range 6 {
			require.NoError(t, g.Append(pattern(page, 1)), "what is needed is had")
			looked()
			require.LessOrEqual(t, d.Stats().Committed, uint64(6*page))
		}
		require.EqualValues(t, 6*page, g.Cap())
		require.NotZero(t, d.Stats().GrowAheadFailures)
		require.ErrorIs(t, g.Append([]byte{1}), vmm.ErrOutOfMemory)
		d.SetLimit(0)
		pass(100 * time.Millisecond)
		require.NoError(t, g.Append([]byte{1}))
		looked()
		require.GreaterOrEqual(t, g.Cap(), uint64(8*page))
		require.NoError(t, g.Close())
	})
}

func TestARangeIsOnTheListOnce(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *paced) {
		d := w.devs[0]
		g, h := ahead(t, d), ahead(t, d)
		let := w.stopNext("Create")
		require.NoError(t, g.SetLen(3*page))
		looked() // the goroutine grows g
		for n := range uint64(3) {
			require.NoError(t, h.SetLen(4*page-n))
			require.NoError(t, h.SetLen(3*page))
		}
		running, wanted := vmm.Working(d)
		require.True(t, running)
		require.Equal(t, 1, wanted)
		require.EqualValues(t, 2, d.Stats().GrowAheads)
		let()
		looked()
		require.EqualValues(t, 4, d.Stats().GrowAheads)
		require.EqualValues(t, 7*page, g.Cap())
		require.EqualValues(t, 7*page, h.Cap())
		require.NoError(t, g.Close())
		require.NoError(t, h.Close())
	})
}
