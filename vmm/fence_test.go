package vmm_test

import (
	"cmp"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// danger is an operation that unmaps memory or removes access while work is queued on it.
// Contract 4: with the fence it waits, without it the device is lost.
type danger struct {
	name string
	// queue closes a gate on some stream and queues work behind it that uses the memory. It
	// returns the device that does the work, how to open the gate, and the operation.
	queue func(t *testing.T, w *world) (worker *vmm.Device, open func(), take func() error)
}

// grown returns a range with two pages beyond its Len, and their address.
func grown(t *testing.T, w *world) (*vmm.Range, vmm.Ptr) {
	t.Helper()
	g := ranged(t, w, page)
	require.NoError(t, g.Grow(2*page))
	t.Cleanup(func() { _ = g.Close() })
	return g, g.Ptr() + vmm.Ptr(g.Cap()-page)
}

// work closes a gate on s and queues a fill of a page at p behind it.
func work(t *testing.T, d *vmm.Device, s driver.Stream, p vmm.Ptr) (open func()) {
	t.Helper()
	open = gate(t, d, s)
	require.NoError(t, raw(t, d).Fill(p, 0xab, 1, page, s))
	return open
}

// clipped clips and returns when the memory is unmapped.
func clipped(g *vmm.Range) func() error {
	return func() error {
		err := g.Clip()
		for g.Stats().Retiring > 0 {
			err = cmp.Or(err, vmm.Drain(g.Device()))
		}
		return err
	}
}

func stream(t *testing.T, d *vmm.Device) *vmm.Stream {
	t.Helper()
	s, err := d.NewStream()
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func dangers() []danger {
	return []danger{
		{name: "clip under the owner's stream", queue: func(t *testing.T, w *world) (*vmm.Device, func(), func() error) {
			g, p := grown(t, w)
			return w.devs[0], work(t, w.devs[0], stream(t, w.devs[0]).Raw(), p), g.Clip
		}},
		{name: "clip under a named stream", queue: func(t *testing.T, w *world) (*vmm.Device, func(), func() error) {
			g, p := grown(t, w)
			s := stream(t, w.devs[0])
			require.NoError(t, g.UsedBy(s))
			return w.devs[0], work(t, w.devs[0], s.Raw(), p), clipped(g)
		}},
		{name: "clip under another library's stream", queue: func(t *testing.T, w *world) (*vmm.Device, func(), func() error) {
			g, p := grown(t, w)
			s, err := raw(t, w.devs[0]).NewStream()
			require.NoError(t, err)
			t.Cleanup(func() { _ = raw(t, w.devs[0]).FreeStream(s) })
			return w.devs[0], work(t, w.devs[0], s, p), g.Clip
		}},
		{name: "clip under another library's named stream", queue: func(t *testing.T, w *world) (*vmm.Device, func(), func() error) {
			g, p := grown(t, w)
			s, err := raw(t, w.devs[0]).NewStream()
			require.NoError(t, err)
			wrapped := w.devs[0].WrapStream(uintptr(s))
			t.Cleanup(func() {
				_ = wrapped.Close()
				_ = raw(t, w.devs[0]).FreeStream(s)
			})
			require.NoError(t, g.UsedBy(wrapped))
			return w.devs[0], work(t, w.devs[0], s, p), clipped(g)
		}},
		{name: "clip under the null stream", queue: func(t *testing.T, w *world) (*vmm.Device, func(), func() error) {
			g, p := grown(t, w)
			return w.devs[0], work(t, w.devs[0], 0, p), g.Clip
		}},
		{name: "clip while a peer works", queue: func(t *testing.T, w *world) (*vmm.Device, func(), func() error) {
			g, p := grown(t, w)
			require.NoError(t, g.Grant(vmm.AccessReadWrite, w.devs[1]))
			return w.devs[1], work(t, w.devs[1], stream(t, w.devs[1]).Raw(), p), g.Clip
		}},
		{name: "clip while a peer's named stream works", queue: func(t *testing.T, w *world) (*vmm.Device, func(), func() error) {
			g, p := grown(t, w)
			require.NoError(t, g.Grant(vmm.AccessReadWrite, w.devs[1]))
			s := stream(t, w.devs[1])
			require.NoError(t, g.UsedBy(s))
			return w.devs[1], work(t, w.devs[1], s.Raw(), p), clipped(g)
		}},
		{name: "unmap under the owner's stream", queue: func(t *testing.T, w *world) (*vmm.Device, func(), func() error) {
			r := holed(t, w)
			t.Cleanup(func() { _ = r.Close() })
			return w.devs[0], work(t, w.devs[0], stream(t, w.devs[0]).Raw(), r.Ptr()+8*page),
				func() error { return r.Unmap(8*page, 3*page) }
		}},
		{name: "revoke while the peer works", queue: func(t *testing.T, w *world) (*vmm.Device, func(), func() error) {
			g, p := grown(t, w)
			require.NoError(t, g.Grant(vmm.AccessReadWrite, w.devs[1]))
			return w.devs[1], work(t, w.devs[1], stream(t, w.devs[1]).Raw(), p),
				func() error { return g.Revoke(w.devs[1]) }
		}},
		{name: "plan and apply a revoke while the peer works", queue: func(t *testing.T, w *world) (*vmm.Device, func(), func() error) {
			g, p := grown(t, w)
			require.NoError(t, vmm.EnablePeers(vmm.AccessReadWrite, w.devs, g))
			plan, err := vmm.PlanPeers(vmm.AccessNone, w.devs[1:], g)
			require.NoError(t, err)
			return w.devs[1], work(t, w.devs[1], stream(t, w.devs[1]).Raw(), p), plan.Apply
		}},
		{name: "narrow while the peer writes", queue: func(t *testing.T, w *world) (*vmm.Device, func(), func() error) {
			g, p := grown(t, w)
			require.NoError(t, g.Grant(vmm.AccessReadWrite, w.devs[1]))
			return w.devs[1], work(t, w.devs[1], stream(t, w.devs[1]).Raw(), p),
				func() error { return g.Grant(vmm.AccessRead, w.devs[1]) }
		}},
		{name: "sleep under the owner's stream", queue: func(t *testing.T, w *world) (*vmm.Device, func(), func() error) {
			g, p := grown(t, w)
			return w.devs[0], work(t, w.devs[0], stream(t, w.devs[0]).Raw(), p),
				func() error { return vmm.Sleep(vmm.SleepDrop, g) }
		}},
		{name: "sleep under a named stream", queue: func(t *testing.T, w *world) (*vmm.Device, func(), func() error) {
			g, p := grown(t, w)
			s := stream(t, w.devs[0])
			require.NoError(t, g.UsedBy(s))
			return w.devs[0], work(t, w.devs[0], s.Raw(), p),
				func() error { return vmm.Sleep(vmm.SleepDrop, g) }
		}},
		{name: "sleep while a peer works, in a set", queue: func(t *testing.T, w *world) (*vmm.Device, func(), func() error) {
			h := ranged(t, w, page)
			t.Cleanup(func() { _ = h.Close() })
			g, p := grown(t, w)
			require.NoError(t, g.Grant(vmm.AccessReadWrite, w.devs[1]))
			return w.devs[1], work(t, w.devs[1], stream(t, w.devs[1]).Raw(), p),
				func() error { return vmm.Sleep(vmm.SleepKeep, h, g) }
		}},
		{name: "close under the owner's stream", queue: func(t *testing.T, w *world) (*vmm.Device, func(), func() error) {
			g, p := grown(t, w)
			return w.devs[0], work(t, w.devs[0], stream(t, w.devs[0]).Raw(), p), g.Close
		}},
		{name: "close while a peer works", queue: func(t *testing.T, w *world) (*vmm.Device, func(), func() error) {
			g, p := grown(t, w)
			require.NoError(t, g.Grant(vmm.AccessReadWrite, w.devs[1]))
			return w.devs[1], work(t, w.devs[1], stream(t, w.devs[1]).Raw(), p), g.Close
		}},
	}
}

// times says how often each danger is tried: with the fence the device is never lost,
// without it every time.
const times = 5

func TestFenceWaitsForQueuedWork(t *testing.T) {
	for _, d := range dangers() {
		t.Run(d.name, func(t *testing.T) {
			for range times {
				w := newWorld(t, 2)
				worker, open, take := d.queue(t, w)
				w.arm()
				result := make(chan error, 1)
				go func() { result <- take() }()
				for !w.waiting(worker.Info().Ordinal) {
					runtime.Gosched()
				}
				select {
				case err := <-result:
					t.Fatalf("did not wait: %v", err)
				default:
				}
				open()
				require.NoError(t, <-result)
				require.NoError(t, worker.Sync())
			}
		})
	}
}

// TestNoWaitLosesTheDevice is the negative control of the test above.
func TestNoWaitLosesTheDevice(t *testing.T) {
	mayLose(t)
	for _, d := range dangers() {
		t.Run(d.name, func(t *testing.T) {
			for range times {
				w := newWorld(t, 2)
				worker, open, take := d.queue(t, w)
				vmm.SetNoWait(worker, true)
				require.NoError(t, take())
				open()
				require.ErrorIs(t, worker.Sync(), vmm.ErrDeviceLost)
			}
		})
	}
}

// TestLostDevice: every call that names a lost device returns ErrDeviceLost at once, and
// everything that was open can still be closed.
func TestLostDevice(t *testing.T) {
	mayLose(t)
	w := newWorld(t, 2)
	d := w.devs[0]
	other := ranged(t, w, 2*page)
	r, err := d.Reserve(8*page, vmm.ReserveOptions{})
	require.NoError(t, err)
	c := chunk(t, w, page)
	g, p := grown(t, w)
	s := stream(t, d)
	open := work(t, d, s.Raw(), p)
	vmm.SetNoWait(d, true)
	require.NoError(t, g.Clip())
	vmm.SetNoWait(d, false)
	open()

	for name, op := range map[string]func() error{
		"append":  func() error { return other.Append(pattern(page, 1)) },
		"grow":    func() error { return other.Grow(9 * page) },
		"read":    func() error { _, err := other.ReadAt(make([]byte, 1), 0); return err },
		"write":   func() error { _, err := other.WriteAt([]byte{1}, 0); return err },
		"range":   func() error { _, err := d.NewRange(vmm.RangeOptions{Max: page}); return err },
		"reserve": func() error { _, err := d.Reserve(page, vmm.ReserveOptions{}); return err },
		"create":  func() error { _, err := d.Create(page, vmm.Prop{}); return err },
		"alloc":   func() error { _, err := d.Alloc(page); return err },
		"map":     func() error { return r.Map(0, c) },
		"stream":  func() error { _, err := d.NewStream(); return err },
		"sync":    d.Sync,
		"memory":  func() error { _, _, err := d.MemInfo(); return err },
		"copy":    func() error { return d.CopyIn(other.Ptr(), []byte{1}) },
		"grant":   func() error { return other.Grant(vmm.AccessRead, w.devs[1]) },
	} {
		require.ErrorIs(t, op(), vmm.ErrDeviceLost, name)
	}

	require.ErrorIs(t, other.Close(), vmm.ErrDeviceLost, "it says so, and closes all the same")
	require.NoError(t, other.Close())
	require.ErrorIs(t, g.Close(), vmm.ErrDeviceLost)
	require.NoError(t, r.Close(), "nothing was mapped in it, so there is nothing to wait for")
	require.NoError(t, c.Close())
	require.ErrorIs(t, s.Close(), vmm.ErrDeviceLost)
	require.NoError(t, d.Close())
	require.NoError(t, w.devs[1].Close())
	require.Zero(t, d.Stats().Committed)
	require.Zero(t, d.Stats().Reserved)
}

// TestClipLeavesWhatALostDeviceHas: if the wait of an operation other than Close fails,
// nothing changes.
func TestClipLeavesWhatALostDeviceHas(t *testing.T) {
	mayLose(t)
	w := newWorld(t, 1)
	g, p := grown(t, w)
	h, _ := grown(t, w)
	capacity := h.Cap()
	open := work(t, w.devs[0], stream(t, w.devs[0]).Raw(), p)
	vmm.SetNoWait(w.devs[0], true)
	require.NoError(t, g.Clip())
	vmm.SetNoWait(w.devs[0], false)
	open()
	require.ErrorIs(t, h.Clip(), vmm.ErrDeviceLost)
	require.Equal(t, capacity, h.Cap())
	require.Zero(t, h.Stats().Retiring)
}
