package vmm_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/errtext"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// stagedBlock makes as many pieces of a page of the host as of a GPU's, each a place for a fault.
const stagedBlock = page*3/4 - 72

// mirrorKinds are the ways in which the bytes of a mirror get to the device and back.
var mirrorKinds = []struct {
	name    string
	staging *vmm.Staging
	pinned  uint64
}{
	{"pageable", nil, 0},
	{"staged", &vmm.Staging{Block: stagedBlock, Lanes: 2}, 0},
	{"pinned", nil, 1 << 30},
	{"beyond the budget", nil, page},
}

// onMirrors runs f for each way.
func onMirrors(t *testing.T, f func(t *testing.T, w *world, pinned uint64)) {
	for _, k := range mirrorKinds {
		t.Run(k.name, func(t *testing.T) {
			w := newWorld(t, 2)
			for _, d := range w.devs {
				vmm.SetStaging(d, k.staging)
			}
			f(t, w, k.pinned)
			w.end()
		})
	}
}

func mirror(t testing.TB, d *vmm.Device, p vmm.Ptr, n uint64, o vmm.MirrorOptions) *vmm.Mirror {
	t.Helper()
	m, err := d.NewMirror(p, n, o)
	require.NoError(t, err)
	require.Equal(t, p, m.Ptr())
	require.Len(t, m.Bytes(), int(n))
	return m
}

// out is what device memory contains.
func out(t testing.TB, d *vmm.Device, p vmm.Ptr, n uint64) []byte {
	t.Helper()
	b := make([]byte, n)
	require.NoError(t, d.CopyOut(b, p))
	return b
}

// TestMirror: it shows what was there, and what is written to it shows after a Flush or a Close,
// not before, and nothing around it.
func TestMirror(t *testing.T) {
	onMirrors(t, func(t *testing.T, w *world, pinned uint64) {
		d := w.devs[0]
		g := ranged(t, w, 4*page)
		want := pattern(4*page, 7)
		off, n := uint64(100), uint64(3*page+5)
		m := mirror(t, d, g.Ptr()+vmm.Ptr(off), n, vmm.MirrorOptions{Init: true, Write: true, MaxPinned: pinned})
		require.Equal(t, want[off:off+n], m.Bytes())
		if pinned >= n {
			require.Equal(t, n, d.Stats().Pinned)
		}
		for _, last := range []func() error{m.Flush, m.Flush, m.Close} {
			for i := range m.Bytes() {
				m.Bytes()[i] += 3
			}
			require.Equal(t, want, out(t, d, g.Ptr(), 4*page), "not yet")
			require.NoError(t, last())
			for i := off; i < off+n; i++ {
				want[i] += 3
			}
			require.Equal(t, want, out(t, d, g.Ptr(), 4*page))
		}
		require.Nil(t, m.Bytes())
		require.NoError(t, m.Close())
		require.NoError(t, m.Discard())
		for _, err := range []error{m.Flush(), m.Refresh(), m.MarkDirty(0, 1)} {
			require.ErrorIs(t, err, vmm.ErrClosed)
		}
		if pinned >= n {
			require.Zero(t, d.Stats().Pinned)
		}
		require.NoError(t, g.Close())
	})
}

// TestMirrorThatIsNotInitialised is zeros, pinned memory that was used before too.
func TestMirrorThatIsNotInitialised(t *testing.T) {
	onMirrors(t, func(t *testing.T, w *world, pinned uint64) {
		d := w.devs[0]
		g := ranged(t, w, 2*page)
		for range 3 {
			m := mirror(t, d, g.Ptr(), page, vmm.MirrorOptions{Write: true, MaxPinned: pinned})
			require.Equal(t, make([]byte, page), m.Bytes())
			copy(m.Bytes(), pattern(page, 9))
			require.NoError(t, m.Discard())
			require.Equal(t, pattern(2*page, 7), out(t, d, g.Ptr(), 2*page), "nothing was written")
		}
		m := mirror(t, d, g.Ptr(), page, vmm.MirrorOptions{Write: true, MaxPinned: pinned})
		m.Bytes()[5] = 1
		require.NoError(t, m.Close())
		want := pattern(2*page, 7)
		clear(want[:page])
		want[5] = 1
		require.Equal(t, want, out(t, d, g.Ptr(), 2*page))
		require.NoError(t, g.Close())
	})
}

// TestMirrorWritesWhatIsMarked: once anything was marked, nothing else is written back.
func TestMirrorWritesWhatIsMarked(t *testing.T) {
	onMirrors(t, func(t *testing.T, w *world, pinned uint64) {
		d := w.devs[0]
		g := ranged(t, w, 2*page)
		m := mirror(t, d, g.Ptr(), 2*page, vmm.MirrorOptions{Init: true, Write: true, MaxPinned: pinned})
		theirs := bytes.Repeat([]byte{0xee}, 2*page)
		require.NoError(t, d.CopyIn(g.Ptr(), theirs)) // by a kernel, say
		for i := range m.Bytes() {
			m.Bytes()[i] = 1
		}
		want := slices.Clone(theirs)
		mark := func(off, n uint64) {
			require.NoError(t, m.MarkDirty(off, n))
			for i := off; i < off+n; i++ {
				want[i] = 1
			}
		}
		mark(0, 0)
		require.NoError(t, m.Flush())
		require.Equal(t, want, out(t, d, g.Ptr(), 2*page), "nothing is marked")
		for _, s := range [][2]uint64{{100, 10}, {200, 50}, {110, 5}, {90, 10}, {5000, 1}, {190, 100}, {2*page - 1, 1}, {0, 1}, {0, 3}} {
			mark(s[0], s[1])
		}
		writes := w.made("CopyIn")
		require.NoError(t, m.Flush())
		if pinned == 1<<30 {
			require.Equal(t, 5, w.made("CopyIn")-writes, "neighbours are written as one")
		}
		require.Equal(t, want, out(t, d, g.Ptr(), 2*page))
		require.NoError(t, d.CopyIn(g.Ptr(), theirs))
		require.NoError(t, m.Flush())
		require.Equal(t, theirs, out(t, d, g.Ptr(), 2*page), "all of it was written")
		want = slices.Clone(theirs)
		mark(7, 9)
		for _, s := range [][2]uint64{{2 * page, 1}, {2*page + 1, 0}, {1, 2 * page}, {5, ^uint64(0)}} {
			require.ErrorIs(t, m.MarkDirty(s[0], s[1]), vmm.ErrBounds)
		}
		require.NoError(t, m.Close())
		require.Equal(t, want, out(t, d, g.Ptr(), 2*page))
		require.NoError(t, g.Close())
	})
}

// TestMirrorRefresh reads again, and forgets what was marked.
func TestMirrorRefresh(t *testing.T) {
	onMirrors(t, func(t *testing.T, w *world, pinned uint64) {
		d := w.devs[0]
		g := ranged(t, w, 2*page)
		m := mirror(t, d, g.Ptr(), 2*page, vmm.MirrorOptions{Write: true, MaxPinned: pinned})
		require.NoError(t, m.Refresh())
		require.Equal(t, pattern(2*page, 7), m.Bytes())
		m.Bytes()[5] = 99
		require.NoError(t, m.MarkDirty(5, 1))
		require.NoError(t, d.CopyIn(g.Ptr(), pattern(2*page, 1)))
		require.NoError(t, m.Refresh())
		require.Equal(t, pattern(2*page, 1), m.Bytes())
		m.Bytes()[6] = 99
		require.NoError(t, m.Close())
		require.Equal(t, pattern(2*page, 1), out(t, d, g.Ptr(), 2*page))
		require.NoError(t, g.Close())
	})
}

// TestMirrorWaitsForWork that may write to the memory.
func TestMirrorWaitsForWork(t *testing.T) {
	onMirrors(t, func(t *testing.T, w *world, pinned uint64) {
		d := w.devs[0]
		g := ranged(t, w, page)
		s := stream(t, d)
		o := vmm.MirrorOptions{Init: true, MaxPinned: pinned}
		first := mirror(t, d, g.Ptr(), page, o)
		var second *vmm.Mirror
		for name, read := range map[string]func() error{
			"refresh": first.Refresh,
			"new": func() (err error) {
				second, err = d.NewMirror(g.Ptr(), page, o)
				return err
			},
		} {
			require.NoError(t, d.CopyIn(g.Ptr(), pattern(page, 7)))
			open := work(t, d, s.Raw(), g.Ptr())
			t.Cleanup(open)
			done := begun(read)
			require.Empty(t, done, name+" did not wait")
			open()
			require.NoError(t, <-done)
		}
		require.Equal(t, bytes.Repeat([]byte{0xab}, page), first.Bytes())
		require.Equal(t, bytes.Repeat([]byte{0xab}, page), second.Bytes())
		require.NoError(t, errors.Join(first.Close(), second.Close(), g.Close(), s.Close()))
	})
}

// TestMirrorOfReadOnlyMemory must be initialised, and is never written back.
func TestMirrorOfReadOnlyMemory(t *testing.T) {
	w := newWorld(t, 2)
	d, peer := w.devs[0], w.devs[1]
	r, err := d.Reserve(page, vmm.ReserveOptions{ReadOnly: true})
	require.NoError(t, err)
	c := chunk(t, w, page)
	require.NoError(t, r.Map(0, c))
	g := ranged(t, w, page)
	require.NoError(t, g.Grant(vmm.AccessRead, peer))
	for _, x := range []struct {
		d *vmm.Device
		p vmm.Ptr
	}{{d, r.Ptr()}, {peer, g.Ptr()}} {
		_, err = x.d.NewMirror(x.p, page, vmm.MirrorOptions{Write: true})
		require.ErrorIs(t, err, vmm.ErrPermission)
		_, err = x.d.NewMirror(x.p, page, vmm.MirrorOptions{Init: true, Write: true})
		require.ErrorIs(t, err, vmm.ErrPermission)
		_, err = x.d.NewMirror(x.p, page, vmm.MirrorOptions{})
		require.ErrorIs(t, err, vmm.ErrInvalid)
		m := mirror(t, x.d, x.p, page, vmm.MirrorOptions{Init: true})
		want := out(t, x.d, x.p, page)
		require.Equal(t, want, m.Bytes())
		clear(m.Bytes())
		require.ErrorIs(t, m.MarkDirty(0, 1), vmm.ErrPermission)
		require.ErrorIs(t, m.Flush(), vmm.ErrPermission)
		require.NoError(t, m.Close())
		require.Equal(t, want, out(t, x.d, x.p, page))
	}
	_, err = peer.NewMirror(r.Ptr(), page, vmm.MirrorOptions{Init: true})
	require.ErrorIs(t, err, vmm.ErrPermission, "it has no access")
	require.NoError(t, errors.Join(c.Close(), r.Close(), g.Close()))
	w.end()
}

// TestMirrorHoldsItsMemory: what would take it away returns ErrBusy, until the mirror closes.
func TestMirrorHoldsItsMemory(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	g, r := ranged(t, w, page), holed(t, w)
	require.NoError(t, g.Grow(2*page))
	o := vmm.MirrorOptions{Init: true}
	low, high := mirror(t, d, g.Ptr(), page, o), mirror(t, d, g.Ptr()+page, 2*page, o)
	in, none := mirror(t, d, r.Ptr()+8*page, 2*page, o), mirror(t, d, r.Ptr(), 0, o)
	for name, take := range map[string]func() error{
		"clip": g.Clip, "set length": func() error { return g.SetLen(0) }, "sleep": func() error { return vmm.Sleep(vmm.SleepKeep, g) },
		"close range": g.Close, "unmap": func() error { return r.Unmap(8*page, 3*page) }, "close reservation": r.Close, "close device": d.Close,
	} {
		require.ErrorIs(t, take(), vmm.ErrBusy, name)
	}
	require.ErrorContains(t, d.Close(), fmt.Sprintf("mirror of %s made at", errtext.Size(2*page)))
	require.NoError(t, r.Unmap(0, 3*page), "which is not mirrored")
	require.NoError(t, errors.Join(high.Close(), in.Close()))
	require.NoError(t, g.Clip())
	require.NoError(t, r.Unmap(8*page, 3*page))
	require.ErrorIs(t, r.Close(), vmm.ErrBusy)
	require.NoError(t, errors.Join(low.Close(), none.Close()))
	require.NoError(t, errors.Join(g.Close(), r.Close()))
	w.end()
}

// TestMirrorOfPlainMemory, which no reservation knows.
func TestMirrorOfPlainMemory(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	plain := raw(t, d).(driver.Allocator)
	p, err := plain.AllocPlain(2 * page)
	require.NoError(t, err)
	require.NoError(t, d.CopyIn(p, pattern(2*page, 3)))
	m := mirror(t, d, p, 2*page, vmm.MirrorOptions{Init: true, Write: true})
	require.Equal(t, pattern(2*page, 3), m.Bytes())
	copy(m.Bytes(), pattern(2*page, 4))
	require.NoError(t, m.Close())
	require.Equal(t, pattern(2*page, 4), out(t, d, p, 2*page))
	require.NoError(t, plain.FreePlain(p))
	w.end()
}

// TestMirrorRefused: nothing is left open.
func TestMirrorRefused(t *testing.T) {
	w := newWorld(t, 2)
	d := w.devs[0]
	g, asleep, r := ranged(t, w, page), ranged(t, w, page), holed(t, w)
	require.NoError(t, vmm.Sleep(vmm.SleepKeep, asleep))
	gone := ranged(t, w, page)
	require.NoError(t, gone.Close())
	s := stream(t, d)
	init := vmm.MirrorOptions{Init: true}
	for name, c := range map[string]struct {
		p   vmm.Ptr
		n   uint64
		o   vmm.MirrorOptions
		err error
	}{
		"neither":              {g.Ptr(), page, vmm.MirrorOptions{MaxPinned: page}, vmm.ErrInvalid},
		"beyond the capacity":  {g.Ptr(), page + 1, init, vmm.ErrBounds},
		"in front":             {g.Ptr() - 1, page, init, vmm.ErrBounds},
		"a hole":               {r.Ptr() + 2*page, 2 * page, init, vmm.ErrBounds},
		"beyond the addresses": {r.Ptr(), 1 << 62, init, vmm.ErrBounds},
		"overflow":             {r.Ptr(), ^uint64(0), init, vmm.ErrBounds},
		"more than there is":   {1 << 20, 1 << 62, init, vmm.ErrBounds},
		"plain, overflow":      {^vmm.Ptr(0), 2, init, vmm.ErrBounds},
		"asleep":               {asleep.Ptr(), page, init, vmm.ErrAsleep},
	} {
		m, err := d.NewMirror(c.p, c.n, c.o)
		require.Nil(t, m, name)
		if name == "in front" { // no reservation knows it
			require.Error(t, err, name)
			continue
		}
		require.ErrorIs(t, err, c.err, name)
		var op *vmm.OpError
		require.ErrorAs(t, err, &op, name)
		require.Equal(t, "make mirror", op.Op)
	}
	_, err := d.NewMirror(gone.Ptr(), page, init)
	require.Error(t, err)

	end := captured(t, w, s)
	_, err = d.NewMirror(g.Ptr(), page, init)
	require.ErrorIs(t, err, vmm.ErrCapturing)
	_, err = d.NewMirror(g.Ptr(), page, vmm.MirrorOptions{Write: true, MaxPinned: page})
	require.ErrorIs(t, err, vmm.ErrCapturing)
	end()
	old := vmm.SetAddressLimit(1)
	_, err = d.NewMirror(g.Ptr(), page, init)
	vmm.SetAddressLimit(old)
	require.ErrorIs(t, err, vmm.ErrAddressSpace)
	require.NoError(t, errors.Join(g.Close(), asleep.Close(), r.Close(), s.Close()))
	w.end()
	_, err = d.NewMirror(g.Ptr(), page, init)
	require.ErrorIs(t, err, vmm.ErrClosed)
}

// TestMirrorDuringACapture: what does not wait works. Pinned memory is not freed then: Close
// can be called again, and does not write back twice.
func TestMirrorDuringACapture(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	g := ranged(t, w, page)
	s := stream(t, d)
	pinned := mirror(t, d, g.Ptr(), 10, vmm.MirrorOptions{Write: true, MaxPinned: page})
	plain := mirror(t, d, g.Ptr()+10, 10, vmm.MirrorOptions{Write: true})
	end := captured(t, w, s)
	copy(pinned.Bytes(), "0123456789")
	copy(plain.Bytes(), "abcdefghij")
	require.NoError(t, pinned.Flush())
	require.ErrorIs(t, pinned.Refresh(), vmm.ErrCapturing)
	require.NoError(t, plain.Close())
	require.ErrorIs(t, pinned.Close(), vmm.ErrCapturing)
	require.Nil(t, pinned.Bytes())
	end()
	require.Equal(t, "0123456789abcdefghij", string(out(t, d, g.Ptr(), 20)))
	require.NoError(t, d.CopyIn(g.Ptr(), []byte("ABC")))
	require.NoError(t, pinned.Close())
	require.Equal(t, "ABC3456789", string(out(t, d, g.Ptr(), 10)))
	require.NoError(t, errors.Join(g.Close(), s.Close()))
	w.end()
}

// TestMirrorRefreshThatFails forgets nothing of what is to be written back.
func TestMirrorRefreshThatFails(t *testing.T) {
	onMirrors(t, func(t *testing.T, w *world, pinned uint64) {
		d := w.devs[0]
		g := ranged(t, w, page)
		s := stream(t, d)
		m := mirror(t, d, g.Ptr(), page, vmm.MirrorOptions{Init: true, Write: true, MaxPinned: pinned})
		copy(m.Bytes(), "marked")
		require.NoError(t, m.MarkDirty(0, 6))
		end := captured(t, w, s)
		require.ErrorIs(t, m.Refresh(), vmm.ErrCapturing)
		require.NoError(t, m.Flush())
		require.Equal(t, "marked", string(out(t, d, g.Ptr(), 6)))
		end()
		require.NoError(t, errors.Join(m.Close(), g.Close(), s.Close()))
	})
}

// TestMirrorCannotBeWrittenBack: Close returns the error and can be called again, or Discard.
func TestMirrorCannotBeWrittenBack(t *testing.T) {
	onMirrors(t, func(t *testing.T, w *world, pinned uint64) {
		d := w.devs[0]
		for _, last := range []func(*vmm.Mirror) error{(*vmm.Mirror).Close, (*vmm.Mirror).Discard} {
			g := ranged(t, w, 2*page)
			m := mirror(t, d, g.Ptr(), 2*page, vmm.MirrorOptions{Init: true, Write: true, MaxPinned: pinned})
			copy(m.Bytes(), pattern(2*page, 1))
			w.refuse("CopyIn", 1, errInjected)
			w.refuse("Copy", 1, errInjected)
			require.ErrorIs(t, m.Close(), errInjected)
			require.NotNil(t, m.Bytes(), "it is as before")
			require.ErrorIs(t, g.Close(), vmm.ErrBusy)
			w.refuse("CopyIn", 0, nil)
			w.refuse("Copy", 0, nil)
			require.NoError(t, last(m))
			require.NoError(t, m.Close())
			require.NoError(t, g.Close())
		}
	})
}

// TestMirrorOfALostDevice is closed all the same.
func TestMirrorOfALostDevice(t *testing.T) {
	mayLose(t)
	for _, pinned := range []uint64{0, page} {
		w := newWorld(t, 1)
		d := w.devs[0]
		other := ranged(t, w, page)
		m := mirror(t, d, other.Ptr(), page, vmm.MirrorOptions{Init: true, Write: true, MaxPinned: pinned})
		g, p := grown(t, w)
		s := stream(t, d)
		open := work(t, d, s.Raw(), p)
		vmm.SetNoWait(d, true)
		require.NoError(t, g.Clip())
		vmm.SetNoWait(d, false)
		open()
		require.ErrorIs(t, d.Sync(), vmm.ErrDeviceLost)
		require.ErrorIs(t, m.Flush(), vmm.ErrDeviceLost)
		require.ErrorIs(t, m.Close(), vmm.ErrDeviceLost)
		require.NoError(t, m.Close())
		require.Zero(t, d.Stats().Pinned)
		_ = errors.Join(other.Close(), g.Close(), s.Close())
		require.Empty(t, d.Report().Open)
	}
}

// TestMirrorsAtOnce: marks and flushes of one mirror, and others beside it.
func TestMirrorsAtOnce(t *testing.T) {
	w := newWorld(t, 1)
	vmm.SetStaging(w.devs[0], &vmm.Staging{Block: stagedBlock, Lanes: 2})
	d := w.devs[0]
	const each, goroutines = 40, 4
	g := ranged(t, w, goroutines*page)
	m := mirror(t, d, g.Ptr(), goroutines*page, vmm.MirrorOptions{Init: true, Write: true})
	copy(m.Bytes(), bytes.Repeat([]byte{5}, goroutines*page))
	var all sync.WaitGroup
	for n := range uint64(goroutines) {
		all.Go(func() {
			for i := range uint64(each) {
				err := errors.Join(m.MarkDirty(n*page+i*page/each, page/each+1-n/(goroutines-1)), m.Flush())
				own, failed := d.NewMirror(g.Ptr(), goroutines*page, vmm.MirrorOptions{Init: true, MaxPinned: n * page})
				if err = errors.Join(err, failed, own.Refresh(), own.Close()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	require.NoError(t, m.MarkDirty(0, goroutines*page))
	require.NoError(t, m.Close())
	require.Equal(t, bytes.Repeat([]byte{5}, goroutines*page), out(t, d, g.Ptr(), goroutines*page))
	require.NoError(t, g.Close())
	w.end()
}

// TestFaultsInMirrors: whichever two calls fail, memory and mirror are what they were or what
// they were to become, and nothing is lost.
func TestFaultsInMirrors(t *testing.T) {
	for _, k := range mirrorKinds {
		faults(t, func(t *testing.T, at ...int) []string {
			w := newWorld(t, 1)
			d := w.devs[0]
			vmm.SetStaging(d, k.staging)
			g := ranged(t, w, 2*page)
			before := pattern(2*page, 7)
			after := slices.Clone(before)
			copy(after[10:], pattern(page, 1))
			copy(after[page+page/2:], pattern(9, 1))

			w.arm(at...)
			m, made := d.NewMirror(g.Ptr(), 2*page, vmm.MirrorOptions{Init: true, Write: true, MaxPinned: k.pinned})
			var closed error
			if made == nil {
				require.Equal(t, before, m.Bytes())
				copy(m.Bytes(), after)
				closed = errors.Join(m.MarkDirty(10, page), m.MarkDirty(page+page/2, 9), m.Flush(), m.Close())
			}
			calls := w.disarm()
			note := fmt.Sprintf("%s, calls %v of %v: %v, %v", k.name, at, calls, made, closed)
			switch {
			case made != nil:
				isInjected(w, made)
				require.Nil(t, m, note)
			case closed != nil:
				require.ErrorIs(t, closed, errInjected, note)
			}
			if made == nil {
				require.NoError(t, m.Close(), note)
				require.Equal(t, after, out(t, d, g.Ptr(), 2*page), note)
			} else {
				require.Equal(t, before, out(t, d, g.Ptr(), 2*page), note)
			}
			require.NoError(t, g.Close(), note)
			w.end()
			return calls
		})
	}
}

// mirrorScenes are the scenes of mirrors.
func mirrorScenes() map[string]func(t *testing.T, w *world) error {
	mirrored := func(f func(w *world, g *vmm.Range) error) func(*testing.T, *world) error {
		return func(t *testing.T, w *world) error {
			g := ranged(t, w, 2*page)
			m := mirror(t, w.devs[0], g.Ptr(), page, vmm.MirrorOptions{Init: true, Write: true})
			result := f(w, g)
			require.NoError(t, m.Close())
			require.NoError(t, g.Close())
			return result
		}
	}
	return map[string]func(t *testing.T, w *world) error{
		"Close x mirrored":        mirrored(func(_ *world, g *vmm.Range) error { return g.Close() }),
		"Sleep x mirrored":        mirrored(func(_ *world, g *vmm.Range) error { return vmm.Sleep(vmm.SleepKeep, g) }),
		"SetLen below x mirrored": mirrored(func(_ *world, g *vmm.Range) error { return g.SetLen(1) }),
		"Append x mirrored":       mirrored(func(_ *world, g *vmm.Range) error { return g.Append(pattern(page, 1)) }),
		"Device.Close x mirrored": mirrored(func(w *world, _ *vmm.Range) error { return w.devs[0].Close() }),
		"Mirror.Flush x less access": func(t *testing.T, w *world) error {
			g := ranged(t, w, page)
			require.NoError(t, g.Grant(vmm.AccessReadWrite, w.devs[1]))
			m := mirror(t, w.devs[1], g.Ptr(), page, vmm.MirrorOptions{Init: true, Write: true})
			require.NoError(t, g.Grant(vmm.AccessRead, w.devs[1]))
			err := m.Flush()
			require.NoError(t, m.Discard())
			require.NoError(t, g.Close())
			return err
		},
		"NewMirror x asleep": func(t *testing.T, w *world) error {
			g := ranged(t, w, page)
			require.NoError(t, vmm.Sleep(vmm.SleepKeep, g))
			_, err := w.devs[0].NewMirror(g.Ptr(), page, vmm.MirrorOptions{Init: true})
			require.NoError(t, g.Close())
			return err
		},
		"NewMirror x captured": func(t *testing.T, w *world) error {
			g, s := ranged(t, w, page), stream(t, w.devs[0])
			end := captured(t, w, s)
			_, err := w.devs[0].NewMirror(g.Ptr(), page, vmm.MirrorOptions{Init: true})
			end()
			require.NoError(t, errors.Join(s.Close(), g.Close()))
			return err
		},
		"Mirror.Close x captured": func(t *testing.T, w *world) error {
			g, s := ranged(t, w, page), stream(t, w.devs[0])
			m := mirror(t, w.devs[0], g.Ptr(), page, vmm.MirrorOptions{Init: true, Write: true})
			end := captured(t, w, s)
			err := m.Close()
			end()
			require.NoError(t, errors.Join(s.Close(), g.Close()))
			return err
		},
	}
}
