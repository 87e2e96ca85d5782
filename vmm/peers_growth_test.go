package vmm_test

import (
	"bytes"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
)

// follower is a peer that copies all of a range, up to its length, to memory of its own, on
// a stream of its own.
type follower struct {
	t *testing.T
	d *vmm.Device
	s *vmm.Stream
	g *vmm.Range
}

func newFollower(t *testing.T, d *vmm.Device, most uint64) *follower {
	t.Helper()
	s, err := d.NewStream()
	require.NoError(t, err)
	g, err := d.NewRange(vmm.RangeOptions{Max: most})
	require.NoError(t, err)
	require.NoError(t, g.Grow(most))
	require.NoError(t, g.SetLen(most))
	return &follower{t, d, s, g}
}

// copy copies [0, n) of the range and returns [from, n) of the copy.
func (f *follower) copy(g *vmm.Range, from, n uint64) ([]byte, error) {
	if err := f.s.Copy(f.g.Ptr(), g.Ptr(), n); err != nil {
		return nil, err
	}
	if err := f.s.Sync(); err != nil {
		return nil, err
	}
	b := make([]byte, n-from)
	return b, f.d.CopyOut(b, f.g.Ptr()+vmm.Ptr(from))
}

func (f *follower) end() {
	f.t.Helper()
	require.NoError(f.t, f.s.Close())
	require.NoError(f.t, f.g.Close())
}

// fresh is what growth number i appends: it crosses chunks.
func fresh(i int) []byte { return pattern(page-1, byte(i)) }

// TestPeerCopiesWhatGrows: after each of a thousand growths a peer copies all bytes up to
// the length, without a fault and with the right last byte.
func TestPeerCopiesWhatGrows(t *testing.T) {
	for _, c := range []struct {
		name    string
		growths int
		o       vmm.RangeOptions
		keep    bool
		every   int // tenth growths are followed by then
		then    func(g *vmm.Range) error
	}{
		{name: "growth", growths: 1000, o: vmm.RangeOptions{Chunk: page}},
		{name: "growth by the ladder", growths: 300},
		{name: "growth and a clip", growths: 1000, o: vmm.RangeOptions{Chunk: page}, every: 10, then: func(g *vmm.Range) error {
			if err := g.Grow(7 * page); err != nil {
				return err
			}
			return g.Clip()
		}},
		{name: "kept chunks", growths: 200, o: vmm.RangeOptions{Chunk: page}, keep: true, every: 10, then: func(g *vmm.Range) error {
			if err := g.Grow(20 * page); err != nil {
				return err
			}
			return g.Clip()
		}},
		{name: "growth ahead", growths: 200, o: vmm.RangeOptions{GrowAhead: 32 * page}},
		{name: "growth ahead and a clip", growths: 200, o: vmm.RangeOptions{GrowAhead: 32 * page}, every: 10, then: (*vmm.Range).Clip},
		{name: "sleep", growths: 100, o: vmm.RangeOptions{Chunk: page}, every: 10, then: func(g *vmm.Range) error {
			if err := vmm.Sleep(vmm.SleepKeep, g); err != nil {
				return err
			}
			return vmm.Wake(g)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, 2)
			c.o.Max = 1024 * page
			if c.keep {
				w.devs[0].SetReleaseThreshold(64 * page)
			}
			g, err := w.devs[0].NewRange(c.o)
			require.NoError(t, err)
			require.NoError(t, vmm.EnablePeers(vmm.AccessRead, w.devs, g))
			f := newFollower(t, w.devs[1], c.o.Max)
			var want []byte
			for i := range c.growths / testgate.Effort(4, 1, 1) {
				more := fresh(i)
				from := g.Len()
				require.NoError(t, g.Append(more))
				got, err := f.copy(g, from, g.Len())
				require.NoError(t, err, "growth %d", i)
				require.True(t, bytes.Equal(more, got), "growth %d", i)
				want = append(want, more...)
				if c.every > 0 && i%c.every == c.every-1 {
					require.NoError(t, c.then(g), "growth %d", i)
					require.NoError(t, vmm.Drain(w.devs[0]))
				}
				if i%100 == 99 {
					got, err := f.copy(g, 0, g.Len())
					require.NoError(t, err)
					require.True(t, bytes.Equal(want, got), "growth %d", i)
				}
			}
			for i, d := range w.devs {
				require.NoError(t, d.Sync(), "device %d is healthy", i)
			}
			if c.keep {
				require.NotZero(t, g.Stats().Hits)
			}
			f.end()
			require.NoError(t, g.Close())
			w.end()
		})
	}
}

// TestPeerCopiesWhileItGrows is the same without taking turns: whatever Len the peer reads,
// it may copy that much, and it may touch memory up to Cap, too.
func TestPeerCopiesWhileItGrows(t *testing.T) {
	w := newWorld(t, 2)
	const most = 1024 * page
	g, err := w.devs[0].NewRange(vmm.RangeOptions{Max: most, Chunk: page})
	require.NoError(t, err)
	require.NoError(t, vmm.EnablePeers(vmm.AccessRead, w.devs, g))
	f := newFollower(t, w.devs[1], most)
	var over atomic.Bool
	done := make(chan error, 1)
	go func() {
		defer over.Store(true)
		for i := range 1000 {
			err := g.Append(fresh(i))
			if err == nil && i%10 == 9 {
				err = g.Clip() // nothing lies beyond the length but for the chunk it ends in
			}
			if err != nil {
				done <- fmt.Errorf("growth %d: %w", i, err)
				return
			}
		}
		done <- nil
	}()
	var want []byte
	for last := false; !last; {
		last = over.Load()
		n := g.Len()
		if n == 0 {
			continue
		}
		got, err := f.copy(g, n-1, n)
		require.NoError(t, err)
		for i := uint64(len(want)) / (page - 1); uint64(len(want)) < n; i++ {
			want = append(want, fresh(int(i))...)
		}
		require.Equal(t, want[n-1], got[0])
		have := g.Cap() // memory too, though not shown, unless a Clip is faster
		if _, err = f.copy(g, have-1, have); err != nil {
			require.ErrorIs(t, err, vmm.ErrBounds)
		}
	}
	require.NoError(t, <-done)
	got, err := f.copy(g, 0, g.Len())
	require.NoError(t, err)
	require.True(t, bytes.Equal(want, got))
	f.end()
	require.NoError(t, g.Close())
	w.end()
}

// TestPeersGrantedWhileItGrows: if a grant and a growth meet, no chunk lacks the grant, and
// no device keeps access that was revoked.
func TestPeersGrantedWhileItGrows(t *testing.T) {
	w := newWorld(t, 2)
	g, err := w.devs[0].NewRange(vmm.RangeOptions{Max: 1024 * page, Chunk: page})
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() {
		for range 200 {
			if err := g.Append(pattern(page, 1)); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	for i := range 100 {
		a := []vmm.Access{vmm.AccessRead, vmm.AccessReadWrite, vmm.AccessNone}[i%3]
		require.NoError(t, vmm.EnablePeers(a, w.devs[1:], g))
		for _, s := range g.Segments() {
			got, err := w.drv.Access(s.Addr, vmm.Location{Kind: vmm.LocationDevice, ID: 1})
			require.NoError(t, err)
			require.Equal(t, a, got)
		}
	}
	require.NoError(t, <-done)
	require.NoError(t, g.Close())
	w.end()
}

// forgetful is a driver that sets the access of new chunks for their owner alone.
type forgetful struct {
	driver.Driver
	on bool
}

func (d *forgetful) SetAccess(p driver.Ptr, size uint64, grants []driver.Grant) error {
	if d.on {
		grants = grants[:1]
	}
	return d.Driver.SetAccess(p, size, grants)
}

// TestPeerMissesAGrant is the negative control of the tests above: a chunk without the
// grant is noticed.
func TestPeerMissesAGrant(t *testing.T) {
	drv := &forgetful{Driver: host.New(host.Config{Devices: 2, Memory: 64 * mib, Granularity: 4096})}
	devs := opened(t, drv, 2)
	g, err := devs[0].NewRange(vmm.RangeOptions{Max: 64 * 4096, Chunk: 4096})
	require.NoError(t, err)
	require.NoError(t, vmm.EnablePeers(vmm.AccessRead, devs, g))
	f := newFollower(t, devs[1], 64*4096)
	require.NoError(t, g.Append(pattern(4096, 1)))
	_, err = f.copy(g, 0, g.Len())
	require.NoError(t, err)
	drv.on = true
	require.NoError(t, g.Append(pattern(4096, 1)))
	_, err = f.copy(g, 0, g.Len())
	require.ErrorIs(t, err, vmm.ErrInvalid)
	f.end()
	require.NoError(t, g.Close())
}
