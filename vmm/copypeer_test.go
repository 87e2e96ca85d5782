package vmm_test

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
)

// twoTanks returns reservations of a page of memory each on the first two devices, without
// grants.
func twoTanks(t *testing.T, w *world) (to, from *tank) {
	t.Helper()
	return newTank(t, w.devs[0]), newTank(t, w.devs[1])
}

// closeTanks closes them.
func closeTanks(t *testing.T, all ...*tank) {
	t.Helper()
	for _, k := range all {
		require.NoError(t, k.r.Close())
	}
}

// TestCopyPeer copies in the stream's order between memory to which the other device has no
// access, on a stream of either device, or of a third one.
func TestCopyPeer(t *testing.T) {
	w := newWorld(t, peers())
	to, from := twoTanks(t, w)
	got := make([]byte, page)
	for i, d := range w.devs {
		s := stream(t, d)
		require.NoError(t, w.devs[1].CopyIn(from.r.Ptr(), pattern(page, byte(i))))
		require.NoError(t, s.CopyPeer(to.r.Ptr(), w.devs[0], from.r.Ptr(), w.devs[1], page))
		require.NoError(t, s.Sync())
		require.NoError(t, w.devs[0].CopyOut(got, to.r.Ptr()))
		require.Equal(t, pattern(page, byte(i)), got)
		require.NoError(t, s.CopyPeer(0, w.devs[0], 0, w.devs[1], 0), "nothing")
		require.NoError(t, s.CopyPeer(to.r.Ptr(), w.devs[0], to.r.Ptr()+page/2, w.devs[0], page/2), "of one device")
		require.NoError(t, s.Close())
	}
	closeTanks(t, to, from)
	w.end()
}

// TestCopyPeerIsWaitedFor by calls that unmap either side, though the stream's device has no access
// to it. Without the wait the device is lost.
func TestCopyPeerIsWaitedFor(t *testing.T) {
	for side := range 2 {
		w := newWorld(t, peers())
		third := len(w.devs) - 1
		to, from := twoTanks(t, w)
		taken := []*tank{to, from}[side]
		s := stream(t, w.devs[third])
		open := gate(t, s.Device(), s.Raw())
		require.NoError(t, s.CopyPeer(to.r.Ptr(), w.devs[0], from.r.Ptr(), w.devs[1], page))
		w.arm()
		unmapped := begun(func() error { return taken.r.Unmap(0, page) })
		for !w.waiting(third) {
			select {
			case err := <-unmapped:
				t.Fatalf("did not wait: %v", err)
			default:
				runtime.Gosched()
			}
		}
		w.disarm()
		open()
		require.NoError(t, <-unmapped)
		require.NoError(t, w.devs[third].Sync(), "all is well")
		require.NoError(t, s.Close())
		closeTanks(t, to, from)
		w.end()
	}
}

// TestCopyPeerRefuses what it can see to be wrong, and queues nothing.
func TestCopyPeerRefuses(t *testing.T) {
	w, other := newWorld(t, 3), newWorld(t, 1)
	to, from := twoTanks(t, w)
	a, b := w.devs[0], w.devs[1]
	asleep := ranged(t, w, page)
	require.NoError(t, vmm.Sleep(vmm.SleepKeep, asleep))
	s, named, closed := stream(t, b), stream(t, a), stream(t, a)
	require.NoError(t, closed.Close())
	useOf := newTank(t, a)
	require.NoError(t, useOf.r.UsedBy(named))
	require.NoError(t, named.CopyPeer(useOf.r.Ptr(), a, from.r.Ptr(), b, page), "the stream that is named")
	require.NoError(t, named.Sync())
	gone, err := vmm.OpenDriver(w.drv, 2)
	require.NoError(t, err)
	require.NoError(t, gone.Close())
	p, q := to.r.Ptr(), from.r.Ptr()
	captured := stream(t, a)
	require.NoError(t, captured.BeginCapture())

	w.arm()
	for name, c := range map[string]struct {
		s    *vmm.Stream
		dst  vmm.Ptr
		to   *vmm.Device
		src  vmm.Ptr
		from *vmm.Device
		n    uint64
		want error
	}{
		"no stream":            {s: nil, dst: p, to: a, src: q, from: b, n: page, want: vmm.ErrInvalid},
		"a closed stream":      {s: closed, dst: p, to: a, src: q, from: b, n: page, want: vmm.ErrClosed},
		"no device":            {s: s, dst: p, to: nil, src: q, from: b, n: page, want: vmm.ErrInvalid},
		"an empty device":      {s: s, dst: p, to: a, src: q, from: &vmm.Device{}, n: page, want: vmm.ErrInvalid},
		"a closed device":      {s: s, dst: p, to: gone, src: q, from: b, n: page, want: vmm.ErrClosed},
		"another driver":       {s: s, dst: p, to: a, src: q, from: other.devs[0], n: page, want: vmm.ErrInvalid},
		"beyond what is there": {s: s, dst: p, to: a, src: q, from: b, n: page + 1, want: vmm.ErrBounds},
		"an overflow":          {s: s, dst: p, to: a, src: q, from: b, n: ^uint64(0), want: vmm.ErrBounds},
		"asleep":               {s: s, dst: asleep.Ptr(), to: a, src: q, from: b, n: page, want: vmm.ErrAsleep},
		"another stream named": {s: s, dst: useOf.r.Ptr(), to: a, src: q, from: b, n: page, want: vmm.ErrInvalid},
		"captured":             {s: captured, dst: p, to: a, src: q, from: b, n: page, want: vmm.ErrCapturing},
	} {
		require.ErrorIs(t, c.s.CopyPeer(c.dst, c.to, c.src, c.from, c.n), c.want, name)
	}
	require.NotContains(t, w.disarm(), "CopyPeer")
	w.refuse("CopyPeer", 1, errInjected)
	require.ErrorIs(t, s.CopyPeer(p, a, q, b, page), errInjected)
	w.refuse("CopyPeer", 1, vmm.ErrNotSupported)
	require.ErrorIs(t, s.CopyPeer(p, a, q, b, page), vmm.ErrNotSupported)

	g, err := captured.EndCapture()
	require.NoError(t, err)
	require.NoError(t, g.Close())
	require.NoError(t, vmm.Wake(asleep))
	closeAll(t, asleep)
	for _, s := range []*vmm.Stream{s, named, captured} {
		require.NoError(t, s.Close())
	}
	closeTanks(t, to, from, useOf)
	w.end()
	other.end()
}

// TestCopyPeerWithoutTheDriver is not supported.
func TestCopyPeerWithoutTheDriver(t *testing.T) {
	w := worldOf(t, 1, &afterRecord{Driver: host.New(host.Config{})}, nil)
	s := stream(t, w.devs[0])
	require.ErrorIs(t, s.CopyPeer(4096, w.devs[0], 8192, w.devs[0], 1), vmm.ErrNotSupported)
	require.NoError(t, s.Close())
	w.end()
}
