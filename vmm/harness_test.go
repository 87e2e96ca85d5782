package vmm_test

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
)

const mib = 1 << 20

// onCUDA reports whether these tests run on the machine's GPUs, as VMM_TEST_DRIVER says,
// instead of on host drivers of their own.
var onCUDA = os.Getenv("VMM_TEST_DRIVER") == "cuda"

// peers is how many devices tests of peers use: as many as the usual machine has.
func peers() int {
	if onCUDA {
		return 2
	}
	return 3
}

// errInjected is the error of an injected fault.
var errInjected = errors.New("injected")

// fault fails chosen calls, counted from the moment it is armed.
type fault struct {
	mu    sync.Mutex
	armed bool
	seen  []string
	waits map[int]bool // devices for which a wait was begun
	at    []int
	err   error

	refused map[string]refusal
}

// refusal says how many calls of a name are refused, and with what error.
type refusal struct {
	left int
	err  error
}

// refuse fails the next n calls of a name, armed or not.
func (f *fault) refuse(name string, n int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.refused == nil {
		f.refused = map[string]refusal{}
	}
	f.refused[name] = refusal{n, err}
}

// left is how many calls of a name are still to be refused.
func (f *fault) left(name string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.refused[name].left
}

func (f *fault) hook(c drivertest.Call) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if r := f.refused[c.Name]; r.left > 0 {
		f.refused[c.Name] = refusal{r.left - 1, r.err}
		return r.err
	}
	if !f.armed {
		return nil
	}
	f.seen = append(f.seen, c.Name)
	if c.Name == "SyncIfActive" || c.Name == "RecordContext" || c.Name == "SyncEvent" || c.Name == "Done" {
		f.waits[c.Dev] = true
	}
	if slices.Contains(f.at, len(f.seen)) {
		return f.err
	}
	return nil
}

// arm fails the calls numbered at, from 1.
func (f *fault) arm(at ...int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.armed, f.seen, f.at, f.err, f.waits = true, nil, at, errInjected, map[int]bool{}
}

// waiting reports whether a wait for the device was begun since arm.
func (f *fault) waiting(dev int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.waits[dev]
}

// disarm returns the names of the calls seen since arm.
func (f *fault) disarm() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.armed = false
	return f.seen
}

// world is a fresh host driver with faults to inject and devices opened on it. Its cleanup
// closes the devices and checks that the driver's counts balance.
type world struct {
	t    testing.TB
	drv  *drivertest.Injected
	devs []*vmm.Device
	fault
	before func(drivertest.Call) error // called first; set while no call is under way

	inner      driver.Driver // without faults
	registries []*registry
}

// newWorld has n devices whose granularity is page.
func newWorld(t testing.TB, n int) *world {
	t.Helper()
	return worldWith(t, n, nil)
}

// worldWith is newWorld with a hook that sees each call before the faults do.
func worldWith(t testing.TB, n int, before func(drivertest.Call)) *world {
	t.Helper()
	if onCUDA {
		return worldOf(t, n, cudaDriver(t, n), before)
	}
	return worldOf(t, n, host.New(host.Config{Devices: n, Memory: 512 * 512 * page, Granularity: page}), before)
}

// cudaDriver returns the machine's, if it has n devices.
func cudaDriver(t testing.TB, n int) driver.Driver {
	t.Helper()
	d, err := vmm.Open("cuda:0")
	testgate.Require(t, "cuda", err)
	drv := d.Driver()
	require.NoError(t, d.Close())
	all, err := drv.Devices()
	require.NoError(t, err)
	if len(all) < n {
		testgate.Require(t, "p2p", fmt.Errorf("%d devices wanted, %d here", n, len(all)))
	}
	return drv
}

// mayLose skips the test if a lost device cannot be used again. The rules of drivertest lose
// devices in processes of their own.
func mayLose(t testing.TB) {
	t.Helper()
	if onCUDA {
		t.Skip("a GPU that is lost does not come back in this process")
	}
}

// worldOn returns host devices of the test's choice, wherever it runs.
func worldOn(t testing.TB, n int, c host.Config) *world {
	t.Helper()
	return worldOf(t, n, host.New(c), nil)
}

func worldOf(t testing.TB, n int, drv driver.Driver, before func(drivertest.Call)) *world {
	t.Helper()
	w := &world{t: t, inner: drv}
	w.drv = drivertest.Inject(drv, func(c drivertest.Call) error {
		if before != nil {
			before(c)
		}
		if w.before != nil {
			if err := w.before(c); err != nil {
				return err
			}
		}
		return w.hook(c)
	})
	for i := range n {
		d, err := vmm.OpenDriver(w.drv, i)
		require.NoError(t, err)
		w.devs = append(w.devs, d)
	}
	return w
}

// end closes the devices and checks that nothing is left open or unbalanced.
func (w *world) end() {
	w.t.Helper()
	w.disarm()
	w.registered("at the end")
	for _, r := range w.registries {
		require.Empty(w.t, r.have, "left registered")
	}
	for _, d := range w.devs {
		require.NoError(w.t, d.Close())
		st := d.Stats()
		require.Zero(w.t, st.Reserved)
		require.Zero(w.t, st.Committed)
		require.Zero(w.t, st.Used)
		require.Zero(w.t, st.Retiring)
		require.Zero(w.t, st.Quarantined)
	}
	require.NoError(w.t, w.drv.Balanced())
}

// registered checks that what registries have is what is mapped.
func (w *world) registered(note string) {
	w.t.Helper()
	for _, r := range w.registries {
		require.Empty(w.t, r.check(), note)
	}
}

// raw returns the driver's device.
func raw(t testing.TB, d *vmm.Device) driver.Device {
	t.Helper()
	r, err := d.Raw()
	require.NoError(t, err)
	return r
}

// gate makes later work of s wait until open is called. A test that fails opens it: its cleanup would
// wait for ever.
func gate(t testing.TB, d *vmm.Device, s driver.Stream) (open func()) {
	t.Helper()
	dev := raw(t, d)
	word, _, err := dev.(driver.HostAllocator).AllocHost(page)
	require.NoError(t, err)
	// Made first: cuStreamCreate has waited for a device whose stream waits.
	other, err := dev.NewStream()
	require.NoError(t, err)
	values := dev.(driver.StreamMemOps)
	require.NoError(t, values.WaitValue(s, word, 1, 4))
	free := func() {
		require.NoError(t, dev.FreeStream(other))
		require.NoError(t, dev.(driver.HostAllocator).FreeHost(word))
	}
	open = sync.OnceFunc(func() {
		if err := values.WriteValue(other, word, 1, 4); err != nil {
			require.ErrorIs(t, err, driver.ErrDeviceLost)
			return
		}
		require.NoError(t, dev.SyncStream(other))
		if err := dev.SyncStream(s); errors.Is(err, driver.ErrDeviceLost) {
			return
		} else if err != nil {
			require.ErrorIs(t, err, driver.ErrInvalid, "closed already, its work done")
		}
		free()
	})
	t.Cleanup(func() {
		if t.Failed() {
			open()
		}
	})
	return open
}

// pattern returns n bytes that differ by position.
func pattern(n int, seed byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i) ^ byte(i>>8)*31 ^ seed
	}
	return b
}

// endCapture ends a capture and drops the graph.
func endCapture(d driver.Grapher, s driver.Stream) error {
	g, err := d.EndCapture(s)
	if err == nil {
		err = d.FreeGraph(g)
	}
	return err
}

// memory returns ranges as EnablePeers takes them.
func memory(ranges ...*vmm.Range) (all []vmm.Memory) {
	for _, g := range ranges {
		all = append(all, g)
	}
	return all
}
