package vmm_test

import (
	"encoding/binary"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
)

// TestConcurrentUse: writers, readers, growth, clips, grants, streams and a
// Close at the end, all on one Range. Each Append is whole, and none is lost.
func TestConcurrentUse(t *testing.T) {
	const writers, record = 4, 64
	each := testgate.Effort(100, 400, 400)
	w := newWorld(t, 2)
	d := w.devs[0]
	g, err := d.NewRange(vmm.RangeOptions{Max: 1024 * page})
	require.NoError(t, err)

	var wg, others sync.WaitGroup
	var stop atomic.Bool
	for id := range writers {
		wg.Go(func() {
			for k := range each {
				rec := pattern(record, byte(id))
				binary.LittleEndian.PutUint32(rec, uint32(id<<16|k))
				if err := g.Append(rec); err != nil {
					t.Error(err)
				}
			}
		})
	}
	busy := func(f func() error) {
		others.Go(func() {
			for !stop.Load() {
				if err := f(); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	busy(func() error { return g.Grow(20 * page) })
	busy(g.Clip)
	busy(func() error { return g.Grant(vmm.AccessReadWrite, w.devs[1]) })
	busy(func() error { return g.Grant(vmm.AccessRead, w.devs[1]) })
	busy(func() error { return g.Revoke(w.devs[1]) })
	busy(func() error {
		b := make([]byte, 3*record)
		if _, err := g.ReadAt(b, 0); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		return nil
	})
	busy(func() error {
		release, err := g.Hold(0, g.Len())
		if err == nil {
			release()
		}
		return err
	})
	busy(func() error {
		for _, s := range g.Segments() {
			if err := d.CopyOut(make([]byte, 8), s.Addr); err != nil && !errors.Is(err, vmm.ErrBounds) {
				return err
			}
		}
		return nil
	})
	busy(func() error { g.Stats(); d.Report(); g.Changed(); d.Lookup(g.Ptr()); return nil })
	busy(func() error {
		s, err := d.NewStream()
		if err != nil {
			return err
		}
		if g.Len() > 0 {
			// This fill writes the bytes that are there already.
			if err := s.Fill(g.Ptr(), 0, 1, 0); err != nil {
				return err
			}
		}
		return s.Close()
	})
	wg.Wait()
	stop.Store(true)
	others.Wait()

	require.EqualValues(t, writers*each*record, g.Len())
	all := make([]byte, g.Len())
	_, err = g.ReadAt(all, 0)
	require.NoError(t, err)
	next := [writers]int{}
	for ; len(all) > 0; all = all[record:] {
		tag := binary.LittleEndian.Uint32(all)
		id := int(tag >> 16)
		require.Equal(t, next[id], int(tag&0xffff), "a writer's records in its order")
		next[id]++
		require.Equal(t, pattern(record, byte(id))[4:], all[4:record], "a record is whole")
	}
	require.NoError(t, g.Close())
	w.end()
}

// TestCloseRacesEverything: a call that comes too late returns ErrClosed, and nothing is
// left.
func TestCloseRacesEverything(t *testing.T) {
	for range 50 {
		w := newWorld(t, 2)
		g := ranged(t, w, 2*page)
		var wg sync.WaitGroup
		for _, f := range []func() error{
			func() error { return g.Append(pattern(page, 1)) },
			func() error { return g.Grow(5 * page) },
			g.Clip,
			func() error { return g.SetLen(page) },
			func() error { return g.Grant(vmm.AccessRead, w.devs[1]) },
			func() error { return g.Revoke(w.devs[1]) },
			func() error { _, err := g.ReadAt(make([]byte, page), 0); return err },
			func() error { _, err := g.WriteAt([]byte{1}, 0); return err },
			g.Close, g.Close,
			func() error { return g.CloseContext(t.Context()) },
		} {
			wg.Go(func() {
				for range 3 {
					if err := f(); err != nil && !errors.Is(err, vmm.ErrClosed) {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		require.NoError(t, g.Close())
		w.end()
	}
}

func TestDevicesShareAContext(t *testing.T) {
	w := newWorld(t, 1)
	again, err := vmm.OpenDriver(w.drv, 0)
	require.NoError(t, err)
	g := ranged(t, w, page)
	require.NoError(t, again.CopyOut(make([]byte, page), g.Ptr()))
	require.Equal(t, 1, w.drv.Counts()["Open"].Made)
	r, _, ok := again.Lookup(g.Ptr())
	require.True(t, ok)
	require.Same(t, w.devs[0], r.Device())
	require.NoError(t, again.Close())
	require.NoError(t, g.Append([]byte{1}), "the context is still there")
	require.NoError(t, g.Close())
	w.end()
	require.ErrorIs(t, again.Sync(), vmm.ErrClosed)
}

func TestOwningMemoryCostsNoContext(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	g, err := d.NewRange(vmm.RangeOptions{Max: 8 * page, Share: vmm.ShareFD})
	require.NoError(t, err)
	require.NoError(t, g.Grow(3*page))
	c, err := g.Segments()[0].Chunk()
	require.NoError(t, err)
	require.NoError(t, c.Close())
	require.NoError(t, g.Clip())
	require.NoError(t, g.Close())
	require.Zero(t, w.drv.Counts()["Open"].Made)
	w.end()
}

func TestChangedAndGeneration(t *testing.T) {
	w := newWorld(t, 1)
	g := ranged(t, w, page)
	fired := func(c <-chan struct{}) bool {
		select {
		case <-c:
			return true
		default:
			return false
		}
	}
	for _, c := range []struct {
		name string
		do   func() error
		want bool
	}{
		{"grow", func() error { return g.Grow(8 * page) }, true},
		{"append", func() error { return g.Append([]byte{1}) }, true},
		{"length", func() error { return g.SetLen(g.Len() + 1) }, true},
		{"read", func() error { _, err := g.ReadAt(make([]byte, 1), 0); return err }, false},
	} {
		gen, ch := g.Generation(), g.Changed()
		require.False(t, fired(ch))
		require.NoError(t, c.do())
		require.Equal(t, c.want, fired(ch), c.name)
		require.Equal(t, gen, g.Generation(), c.name)
	}
	gen, ch := g.Generation(), g.Changed()
	require.NoError(t, g.Clip())
	require.True(t, fired(ch))
	require.Equal(t, gen+1, g.Generation())
	ch = g.Changed()
	require.NoError(t, g.Close())
	require.True(t, fired(ch), "Close wakes")
	require.True(t, fired(g.Changed()), "and stays so")
	w.end()
}

func TestReport(t *testing.T) {
	w := newWorld(t, 2)
	g := ranged(t, w, 2*page)
	require.NoError(t, g.Grant(vmm.AccessRead, w.devs[1]))
	c := chunk(t, w, page)
	rep := w.devs[0].Report()
	require.Equal(t, w.devs[0].String(), rep.Device)
	require.Len(t, rep.Open, 2)
	require.Equal(t, "chunk", rep.Open[0].Kind)
	require.Equal(t, "range", rep.Open[1].Kind)
	require.Equal(t, g.Ptr(), rep.Open[1].Addr)
	require.Equal(t, []vmm.Mapping{{Off: 0, Size: page, State: "accessible"}, {Off: page, Size: page, State: "accessible"}}, rep.Open[1].Chunks)
	require.Contains(t, rep.Open[1].Made, "_test.go:")
	require.Equal(t, "grant", w.devs[1].Report().Open[0].Kind)
	st := w.devs[0].Stats()
	require.EqualValues(t, 2*page, st.Used)
	require.EqualValues(t, 3*page, st.Committed)
	require.EqualValues(t, 256*page, st.Reserved)
	require.NoError(t, c.Close())
	require.NoError(t, g.Close())
	require.EqualValues(t, 3*page, w.devs[0].Stats().PeakCommitted)
	w.end()
}

func TestEnablePeers(t *testing.T) {
	w := newWorld(t, peers())
	g, h := ranged(t, w, page), ranged(t, w, page)
	require.NoError(t, vmm.EnablePeers(vmm.AccessReadWrite, w.devs, g, h))
	for _, r := range []*vmm.Range{g, h} {
		for _, d := range w.devs {
			require.NoError(t, d.CopyIn(r.Ptr(), []byte{1}))
		}
		require.NoError(t, r.Close())
	}
	w.end()
}

// TestWriteAtBesideClose: if Close overtakes a write while the device opens for it, the
// write returns ErrClosed, because its bytes are within no length any more.
func TestWriteAtBesideClose(t *testing.T) {
	w := newWorld(t, 1)
	g, err := w.devs[0].NewRange(vmm.RangeOptions{Max: page})
	require.NoError(t, err)
	require.NoError(t, g.Grow(page))
	require.NoError(t, g.SetLen(page))
	h := haltAt(w, func(c drivertest.Call) bool { return c.Name == "Open" })
	h.armed.Store(true)
	wrote := make(chan error, 1)
	go func() { _, err := g.WriteAt([]byte{1}, 0); wrote <- err }()
	<-h.reached
	require.NoError(t, g.Close())
	h.let()
	require.ErrorIs(t, <-wrote, vmm.ErrClosed)
	_, err = g.Hold(0, page)
	require.ErrorIs(t, err, vmm.ErrClosed)
}
