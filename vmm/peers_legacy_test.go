package vmm_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
)

// pairDriver is the host's, whose calls a hook can refuse, and which knows the
// pairs that are enabled.
type pairDriver struct {
	driver.Driver
	hook func(drivertest.Call) error
	mu   sync.Mutex
	on   map[[2]int]bool
}

type pairDevice struct {
	driver.Device
	driver.HostAllocator
	driver.StreamMemOps
	driver.Grapher
	driver.ContextRecorder
	d *pairDriver
	n int
}

func (d *pairDriver) call(name string, dev int) error {
	if err := d.hook(drivertest.Call{Name: name, Dev: dev}); err != nil {
		return &driver.CallError{Call: name, Kind: err}
	}
	return nil
}

func (d *pairDriver) CanAccessPeer(from, to int) (bool, error) {
	if err := d.call("CanAccessPeer", from); err != nil {
		return false, err
	}
	return d.Driver.CanAccessPeer(from, to)
}

func (d *pairDriver) SyncIfActive(dev int) error {
	if err := d.call("SyncIfActive", dev); err != nil {
		return err
	}
	return d.Driver.SyncIfActive(dev)
}

func (d *pairDriver) Open(dev int) (driver.Device, error) {
	if err := d.call("Open", dev); err != nil {
		return nil, err
	}
	v, err := d.Driver.Open(dev)
	if err != nil {
		return nil, err
	}
	return &pairDevice{v, v.(driver.HostAllocator), v.(driver.StreamMemOps), v.(driver.Grapher), v.(driver.ContextRecorder), d, dev}, nil
}

func (v *pairDevice) SyncEvent(e driver.Event) error {
	if err := v.d.call("SyncEvent", v.n); err != nil {
		return err
	}
	return v.Device.SyncEvent(e)
}

func (v *pairDevice) EnablePeer(to int) error  { return v.set("EnablePeer", to, true) }
func (v *pairDevice) DisablePeer(to int) error { return v.set("DisablePeer", to, false) }

func (v *pairDevice) set(name string, to int, on bool) error {
	if err := v.d.call(name, v.n); err != nil {
		return err
	}
	v.d.mu.Lock()
	defer v.d.mu.Unlock()
	do := v.Device.(driver.LegacyPeers).DisablePeer
	if on {
		do = v.Device.(driver.LegacyPeers).EnablePeer
	}
	if err := do(to); err != nil {
		return err
	}
	if v.d.on[[2]int{v.n, to}] = on; !on {
		delete(v.d.on, [2]int{v.n, to})
	}
	return nil
}

// pairs says how many pairs are enabled, by any library.
func (d *pairDriver) pairs() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.on)
}

// legacyWorld is host devices whose pairs can be watched and made to fail.
type legacyWorld struct {
	fault
	t    *testing.T
	drv  *pairDriver
	devs []*vmm.Device
}

func newLegacyWorld(t *testing.T, n int, noPeer ...[2]int) *legacyWorld {
	t.Helper()
	w := &legacyWorld{t: t}
	w.drv = &pairDriver{
		Driver: host.New(host.Config{Devices: n, Memory: 64 * mib, Granularity: 4096, NoPeer: noPeer}),
		hook:   w.hook, on: map[[2]int]bool{},
	}
	for i := range n {
		d, err := vmm.OpenDriver(w.drv, i)
		require.NoError(t, err)
		w.devs = append(w.devs, d)
	}
	return w
}

// end closes the devices and checks that no pair is left.
func (w *legacyWorld) end() {
	w.t.Helper()
	w.disarm()
	require.Zero(w.t, w.drv.pairs())
	for _, d := range w.devs {
		require.NoError(w.t, d.Close())
	}
}

func TestLegacyPeers(t *testing.T) {
	w := newLegacyWorld(t, 3)
	disable, err := vmm.EnableLegacyPeers(w.devs...)
	require.NoError(t, err)
	require.Equal(t, 6, w.drv.pairs(), "every one to every other")

	again, err := vmm.EnableLegacyPeers(w.devs[1], w.devs[0])
	require.NoError(t, err)
	err = w.devs[0].Close()
	require.ErrorIs(t, err, vmm.ErrBusy)
	require.ErrorContains(t, err, "legacy peer access of host:0 to memory of host:1")
	require.ErrorContains(t, err, "peers_legacy_test.go", "it says where")
	require.Equal(t, "legacy peer access", w.devs[0].Report().Open[0].Kind)

	require.NoError(t, disable())
	require.Equal(t, 2, w.drv.pairs(), "another library relies on them")
	require.NoError(t, disable(), "twice is fine")
	require.Equal(t, 2, w.drv.pairs())
	require.NoError(t, w.devs[2].Close(), "nothing of it is enabled")
	require.NoError(t, again())
	w.end()
}

// TestLegacyPeersOfOthers: pairs that another library enabled are used and stay enabled.
func TestLegacyPeersOfOthers(t *testing.T) {
	w := newLegacyWorld(t, 2)
	theirs := raw(t, w.devs[0]).(driver.LegacyPeers)
	require.NoError(t, theirs.EnablePeer(1))
	for range 2 {
		disable, err := vmm.EnableLegacyPeers(w.devs...)
		require.NoError(t, err)
		require.Equal(t, 2, w.drv.pairs())
		more, err := vmm.EnableLegacyPeers(w.devs...)
		require.NoError(t, err)
		require.NoError(t, disable())
		require.NoError(t, more())
		require.Equal(t, 1, w.drv.pairs())
	}
	require.NoError(t, theirs.DisablePeer(1))
	w.end()
}

// TestLegacyPeersDisabledByOthers: a pair that another library has disabled is disabled,
// and does not keep its devices open.
func TestLegacyPeersDisabledByOthers(t *testing.T) {
	w := newLegacyWorld(t, 2)
	disable, err := vmm.EnableLegacyPeers(w.devs...)
	require.NoError(t, err)
	require.NoError(t, raw(t, w.devs[0]).(driver.LegacyPeers).DisablePeer(1))
	require.NoError(t, disable())
	w.end()
}

// TestLegacyPeersByTwoDevices: pairs are counted for the process, for all its Devices.
func TestLegacyPeersByTwoDevices(t *testing.T) {
	w := newLegacyWorld(t, 2)
	twin, err := vmm.OpenDriver(w.drv, 0)
	require.NoError(t, err)
	a, err := vmm.EnableLegacyPeers(w.devs...)
	require.NoError(t, err)
	b, err := vmm.EnableLegacyPeers(twin, w.devs[1])
	require.NoError(t, err)
	require.NoError(t, a())
	require.Equal(t, 2, w.drv.pairs())
	require.NoError(t, w.devs[0].Close())
	require.ErrorIs(t, twin.Close(), vmm.ErrBusy)
	require.NoError(t, b())
	require.NoError(t, twin.Close())
	w.end()
}

func TestLegacyPeersConcurrently(t *testing.T) {
	w := newLegacyWorld(t, 3)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 20 {
				disable, err := vmm.EnableLegacyPeers(w.devs...)
				if err != nil || w.drv.pairs() != 6 {
					t.Errorf("%d pairs: %v", w.drv.pairs(), err)
					return
				}
				var twice sync.WaitGroup
				for range 2 {
					twice.Go(func() {
						if err := disable(); err != nil {
							t.Error(err)
						}
					})
				}
				twice.Wait()
			}
		})
	}
	all.Wait()
	w.end()
}

func TestLegacyPeersBadInput(t *testing.T) {
	w := newLegacyWorld(t, 3, [2]int{1, 2})
	twin, err := vmm.OpenDriver(w.drv, 0)
	require.NoError(t, err)
	other := newLegacyWorld(t, 1)
	d := w.devs
	closed, err := vmm.OpenDriver(w.drv, 1)
	require.NoError(t, err)
	require.NoError(t, closed.Close())
	for name, c := range map[string]struct {
		devs []*vmm.Device
		want error
		pair string
	}{
		"no device":       {nil, vmm.ErrInvalid, ""},
		"nil":             {[]*vmm.Device{d[0], nil}, vmm.ErrInvalid, ""},
		"closed":          {[]*vmm.Device{d[0], closed}, vmm.ErrClosed, "host:1 host:0"},
		"closed alone":    {[]*vmm.Device{closed}, vmm.ErrClosed, "host:1 host:1"},
		"twice":           {[]*vmm.Device{d[0], d[1], twin}, vmm.ErrInvalid, "host:0 host:0"},
		"no path":         {d, vmm.ErrNotSupported, "host:1 host:2"},
		"another driver":  {[]*vmm.Device{d[0], other.devs[0]}, vmm.ErrInvalid, "host:0 host:0"},
		"no legacy peers": {nil, vmm.ErrNotSupported, "host:0 host:1"},
	} {
		if name == "no legacy peers" {
			c.devs = opened(t, &without{host.New(host.Config{Devices: 2, Memory: 64 * mib})}, 2)
		}
		w.arm()
		disable, err := vmm.EnableLegacyPeers(c.devs...)
		require.NotContains(t, w.disarm(), "EnablePeer", name)
		require.ErrorIs(t, err, c.want, name)
		require.Nil(t, disable)
		var op *vmm.OpError
		require.ErrorAs(t, err, &op, name)
		if c.pair != "" {
			var pair *vmm.PairError
			require.ErrorAs(t, err, &pair, name)
			require.Equal(t, c.pair, pair.From+" "+pair.To, name)
		}
	}
	disable, err := vmm.EnableLegacyPeers(d[0])
	require.NoError(t, err, "one device has no pairs")
	require.NoError(t, disable())
	require.NoError(t, twin.Close())
	other.end()
	w.end()
}

// without is a driver whose devices have no optional interfaces.
type without struct{ driver.Driver }

func (d *without) Open(dev int) (driver.Device, error) {
	v, err := d.Driver.Open(dev)
	return struct{ driver.Device }{v}, err
}

// TestLegacyPeersWait: disabling waits for queued work, and not for a capture.
func TestLegacyPeersWait(t *testing.T) {
	w := newLegacyWorld(t, 2)
	disable, err := vmm.EnableLegacyPeers(w.devs...)
	require.NoError(t, err)
	s, err := w.devs[1].NewStream()
	require.NoError(t, err)
	c := raw(t, w.devs[1]).(driver.Grapher)
	require.NoError(t, c.BeginCapture(s.Raw(), driver.CaptureRelaxed))
	require.ErrorIs(t, disable(), vmm.ErrCapturing)
	require.Equal(t, 2, w.drv.pairs(), "nothing changed")
	require.NoError(t, endCapture(c, s.Raw()), "the capture was not destroyed")

	open := gate(t, w.devs[1], s.Raw())
	w.arm()
	done := make(chan error, 1)
	go func() { done <- disable() }()
	for !w.waiting(1) {
		select {
		case err := <-done:
			t.Fatalf("did not wait: %v", err)
		default:
		}
	}
	require.Equal(t, 2, w.drv.pairs())
	open()
	require.NoError(t, <-done)
	require.NoError(t, s.Close())
	w.end()
}

// TestNoWaitDisablesUnderWork is the negative control of the test above.
func TestNoWaitDisablesUnderWork(t *testing.T) {
	w := newLegacyWorld(t, 2)
	disable, err := vmm.EnableLegacyPeers(w.devs...)
	require.NoError(t, err)
	s, err := w.devs[1].NewStream()
	require.NoError(t, err)
	open := gate(t, w.devs[1], s.Raw())
	vmm.SetNoWait(w.devs[0], true)
	require.NoError(t, disable(), "it did not wait")
	vmm.SetNoWait(w.devs[0], false)
	open()
	require.NoError(t, s.Close())
	w.end()
}

// TestLegacyPeersOfALostDevice: no pair of it is left, and the error is returned once.
func TestLegacyPeersOfALostDevice(t *testing.T) {
	w := newLegacyWorld(t, 2)
	disable, err := vmm.EnableLegacyPeers(w.devs...)
	require.NoError(t, err)
	w.refuse("DisablePeer", 1, vmm.ErrDeviceLost)
	require.ErrorIs(t, disable(), vmm.ErrDeviceLost)
	require.NoError(t, disable())
	require.NoError(t, w.devs[0].Close())
	require.NoError(t, w.devs[1].Close())
}

// TestLegacyPeersFault fails each call of enabling and disabling, and each with each after
// it: afterwards all pairs are enabled, or those that were before.
func TestLegacyPeersFault(t *testing.T) {
	for n := 2; n <= 4; n++ {
		for _, shared := range []bool{false, true} {
			t.Run(fmt.Sprintf("devices=%d/shared=%v", n, shared), func(t *testing.T) {
				w := newLegacyWorld(t, n)
				for _, d := range w.devs {
					raw(t, d)
				}
				before, keep := 0, func() error { return nil }
				if shared {
					var err error
					keep, err = vmm.EnableLegacyPeers(w.devs[:2]...)
					require.NoError(t, err)
					before = 2
				}
				all := n * (n - 1)
				w.arm()
				disable, err := vmm.EnableLegacyPeers(w.devs...)
				require.NoError(t, err)
				enables := len(w.disarm())
				w.arm()
				require.NoError(t, disable())
				disables := len(w.disarm())
				require.Equal(t, before, w.drv.pairs())

				for i := 1; i <= enables; i++ {
					w.arm(i)
					disable, err := vmm.EnableLegacyPeers(w.devs...)
					w.disarm()
					require.ErrorIs(t, err, errInjected)
					require.Nil(t, disable)
					require.Equal(t, before, w.drv.pairs(), "call %d: %v", i, err)
					var pair *vmm.PairError
					require.ErrorAs(t, err, &pair)
				}
				for i := 1; i <= disables; i++ {
					disable, err := vmm.EnableLegacyPeers(w.devs...)
					require.NoError(t, err)
					require.Equal(t, all, w.drv.pairs())
					w.arm(i)
					require.ErrorIs(t, disable(), errInjected)
					w.disarm()
					if before < all {
						require.NotEqual(t, before, w.drv.pairs(), "what failed stays enabled")
					}
					require.NoError(t, disable(), "and is disabled at the next try")
					require.Equal(t, before, w.drv.pairs())
				}
				for i := 1; i <= enables; i++ {
					for k := i + 1; k <= enables+all; k++ {
						w.arm(i, k)
						_, err := vmm.EnableLegacyPeers(w.devs...)
						w.disarm()
						require.ErrorIs(t, err, errInjected)
						disable, err := vmm.EnableLegacyPeers(w.devs...)
						require.NoError(t, err)
						require.Equal(t, all, w.drv.pairs())
						require.NoError(t, disable())
						require.Equal(t, before, w.drv.pairs(), "calls %d and %d", i, k)
					}
				}
				require.NoError(t, keep())
				w.end()
			})
		}
	}
}

// TestLegacyPeersLeftOver: pairs that an undo left enabled are disabled when the device
// closes.
func TestLegacyPeersLeftOver(t *testing.T) {
	w := newLegacyWorld(t, 3)
	for _, d := range w.devs {
		raw(t, d)
	}
	w.arm()
	disable, err := vmm.EnableLegacyPeers(w.devs...)
	require.NoError(t, err)
	calls := len(w.disarm())
	require.NoError(t, disable())
	w.arm(calls, calls+1) // the last EnablePeer, and undoing the one before
	_, err = vmm.EnableLegacyPeers(w.devs...)
	w.disarm()
	require.ErrorIs(t, err, errInjected)
	require.Equal(t, 1, w.drv.pairs())
	w.refuse("DisablePeer", 1, errInjected)
	var failed []error
	for _, d := range w.devs {
		failed = append(failed, d.Close())
	}
	require.Equal(t, 1, w.drv.pairs())
	require.ErrorIs(t, failed[2], errInjected)
	require.NoError(t, w.devs[2].Close(), "and again")
	w.end()
}

// TestLegacyPeersReachPlainMemory tests the driver itself, without faults.
func TestLegacyPeersReachPlainMemory(t *testing.T) {
	var drv driver.Driver = host.New(host.Config{Devices: 2, Memory: 64 * mib})
	if onCUDA {
		drv = cudaDriver(t, 2)
	}
	devs := opened(t, drv, 2)
	mem := raw(t, devs[0]).(driver.Allocator)
	p, err := mem.AllocPlain(mib)
	require.NoError(t, err)
	own, err := raw(t, devs[1]).(driver.Allocator).AllocPlain(mib)
	require.NoError(t, err)
	want := pattern(mib, 3)
	require.NoError(t, devs[0].CopyIn(p, want))
	for range 2 {
		disable, err := vmm.EnableLegacyPeers(devs...)
		require.NoError(t, err)
		s, err := devs[1].NewStream()
		require.NoError(t, err)
		require.NoError(t, s.Copy(own, p, mib))
		require.NoError(t, s.Sync())
		got := make([]byte, mib)
		require.NoError(t, devs[1].CopyOut(got, own))
		require.Equal(t, want, got)
		require.NoError(t, s.Close())
		require.NoError(t, disable())
	}
	require.NoError(t, mem.FreePlain(p))
	require.NoError(t, raw(t, devs[1]).(driver.Allocator).FreePlain(own))
}
