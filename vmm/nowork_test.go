package vmm_test

import (
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
)

// TestNoWorkLosesItsMemory: launches, pools, ranges that sleep and grow and streams that come and
// go, all on the same memory. No work loses its memory, and none of it is left at the
// end. VMM_RANDOM_SECONDS is how long it runs.
func TestNoWorkLosesItsMemory(t *testing.T) {
	w := worldWith(t, 2, func(drivertest.Call) {
		if rand.IntN(4) == 0 { // so that others come between two calls
			runtime.Gosched()
		}
	})
	d, peer := w.devs[0], w.devs[1]
	d.SetLimit(40 * page)
	d.SetReleaseThreshold(4 * page)
	const slots = 16
	r, err := d.Reserve(slots*page, vmm.ReserveOptions{})
	require.NoError(t, err)
	g, h := newRange(t, d, vmm.RangeOptions{Max: 32 * page, Chunk: page, GrowAhead: 2 * page}), ranged(t, w, page)
	require.NoError(t, r.Grant(vmm.AccessReadWrite, peer))
	streams := []*vmm.Stream{stream(t, d), stream(t, d), stream(t, peer)}
	require.NoError(t, g.UsedBy(streams[:2]...))
	require.NoError(t, r.UsedBy(streams[0])) // no other is used there
	anyOf := func(n int) *vmm.Stream { return streams[rand.IntN(n)] }

	// launch queues work of its own on memory that it has locked.
	launch := func(s *vmm.Stream, dev *vmm.Device, spans ...vmm.Span) error {
		handle, _, release, err := s.Hold()
		if err != nil {
			return err
		}
		defer release()
		unlock, err := s.LockSpans(spans...)
		if err != nil {
			return err
		}
		defer unlock()
		o, err := dev.Raw()
		for _, x := range spans {
			if err == nil {
				err = o.Fill(x.Addr, uint32(rand.IntN(256)), 1, x.Size, handle)
			}
		}
		return err
	}
	slot := func() uint64 { return uint64(rand.IntN(slots)) * page }
	jobs := []func() error{
		func() error { return g.Append(pattern(page/2, 1)) },
		func() error { return g.AppendOn(anyOf(2), pattern(page/3, 1)) },
		func() error { return g.SetLen(g.Len() / 2) },
		func() error { return errors.Join(g.Clip(), h.Clip()) },
		func() error { return h.Grow(uint64(rand.IntN(4)) * page) },
		func() error {
			return launch(anyOf(2), d, vmm.Span{Addr: g.Ptr(), Size: page, Access: vmm.AccessReadWrite},
				vmm.Span{Addr: h.Ptr(), Size: 1, Access: vmm.AccessReadWrite})
		},
		func() error {
			return launch(streams[0], d, vmm.Span{Addr: r.Ptr() + vmm.Ptr(slot()), Size: page, Access: vmm.AccessReadWrite})
		},
		func() error { // memory that comes and goes
			off := slot()
			c, err := d.Create(page, vmm.Prop{})
			if err != nil {
				return err
			}
			defer c.Close() //nolint:errcheck // the world's end sees it
			if err := r.Map(off, c); err != nil {
				return err
			}
			return r.Unmap(off, page)
		},
		func() error { return r.Unmap(slot(), page) },
		func() error {
			c, err := d.Create(page, vmm.Prop{})
			if err != nil {
				return err
			}
			return errors.Join(r.Map(slot(), c), c.Close())
		},
		func() error { return errors.Join(r.Grant(vmm.AccessRead, peer), r.Grant(vmm.AccessReadWrite, peer)) },
		func() error {
			f, err := anyOf(3).Fence()
			if err != nil {
				return err
			}
			defer f.Free()
			err = anyOf(3).WaitFence(f)
			if _, again := f.Done(); err == nil {
				err = again
			}
			if rand.IntN(4) == 0 {
				err = errors.Join(err, f.Sync())
			}
			return err
		},
		func() error {
			defer runtime.Gosched()
			return errors.Join(vmm.Sleep(vmm.SleepMode(rand.IntN(2)), g, h), vmm.Wake(h, g))
		},
		func() error { return vmm.Wake(g, h) },
		func() error {
			a, err := r.Hold(slot(), page)
			b, again := g.Hold(0, min(g.Len(), 1))
			runtime.Gosched()
			for _, release := range []func(){a, b} {
				if release != nil {
					release()
				}
			}
			return errors.Join(err, again)
		},
		func() error {
			stop := d.OnPressure(func(error) bool {
				return g.Clip() == nil && r.Unmap(slot(), page) == nil
			})
			defer stop()
			c, err := d.Alloc(uint64(1+rand.IntN(16)) * page)
			return errors.Join(err, c.Close())
		},
		func() error { // one that closes behind work
			own, err := d.Reserve(4*page, vmm.ReserveOptions{})
			if err != nil {
				return err
			}
			c, err := d.Create(page, vmm.Prop{})
			if err == nil {
				s := anyOf(2)
				err = errors.Join(own.UsedBy(s), own.Map(0, c), c.Close())
				if err == nil {
					o, _ := d.Raw()
					err = o.Fill(own.Ptr(), 1, 1, page, s.Raw())
				}
			}
			return errors.Join(err, own.Close())
		},
		func() error {
			s, err := d.NewStream()
			if err != nil {
				return err
			}
			var all sync.WaitGroup
			all.Go(func() { _ = launch(s, d, vmm.Span{Addr: h.Ptr(), Size: 1, Access: vmm.AccessReadWrite}) })
			err = s.Close()
			all.Wait()
			return err
		},
		func() error { d.Stats(); g.Stats(); d.Report(); _, err := d.Trim(page); return err },
	}
	var all sync.WaitGroup
	var stop atomic.Bool
	worked := make([]atomic.Int32, len(jobs))
	for i, job := range jobs {
		all.Go(func() {
			for !stop.Load() {
				err := job()
				if err == nil {
					worked[i].Add(1)
				}
				for _, fine := range []error{nil, vmm.ErrBusy, vmm.ErrBounds, vmm.ErrAsleep, vmm.ErrInvalid, vmm.ErrFull, vmm.ErrOutOfMemory, vmm.ErrClosed} {
					if errors.Is(err, fine) {
						err = nil
					}
				}
				if err != nil {
					t.Error(i, err)
					return
				}
				<-time.After(time.Duration(rand.IntN(100)) * time.Microsecond) // the processors are for all
			}
		})
	}
	<-time.After(atRandom(2 * time.Second))
	for i := range worked {
		assert.Eventually(t, func() bool { return worked[i].Load() > 0 || t.Failed() }, time.Minute, time.Millisecond, "job %d never came through", i)
	}
	stop.Store(true)
	all.Wait()
	require.NoError(t, d.Sync(), "the device is well")
	require.NoError(t, peer.Sync())
	require.NoError(t, vmm.Wake(g, h))
	for _, x := range []interface{ Close() error }{g, h, r, streams[0], streams[1], streams[2]} {
		require.NoError(t, x.Close())
	}
	w.end()
}
