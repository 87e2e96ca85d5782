package vmm_test

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
)

// TestStreamClosesAtOnce: each of two Closes at once waits by itself. One that fails does not open
// the stream again beside the other.
func TestStreamClosesAtOnce(t *testing.T) {
	w := newWorld(t, 1)
	s := stream(t, w.devs[0])
	h := haltAt(w, func(c drivertest.Call) bool { return c.Name == "SyncEvent" })
	_, _, release, err := s.Hold()
	require.NoError(t, err)
	one, other := begun(s.Close), begun(s.Close)
	require.Eventually(t, func() bool { return vmm.Closing(s) }, 10*time.Second, time.Millisecond)
	select {
	case err := <-one:
		t.Error("it has not waited:", err)
	case err := <-other:
		t.Error("it has not waited:", err)
	default:
	}
	h.armed.Store(true)
	w.refuse("FreeStream", 1, errInjected)
	release()
	<-h.reached
	select { // the one that is not halted
	case err = <-one:
		one = other
	case err = <-other:
	}
	require.ErrorIs(t, err, errInjected)
	require.ErrorIs(t, s.Usable(), vmm.ErrClosed)
	h.let()
	require.NoError(t, <-one)
	require.NoError(t, s.Close())
	w.end()
}

// TestDeviceClosesAtOnce: a second Close of a Device waits for the first, and tries again if that
// fails. Of two Devices on one GPU that close at once, one closes the driver's device.
func TestDeviceClosesAtOnce(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	raw(t, d)
	h := haltAt(w, func(c drivertest.Call) bool { return c.Name == "Close" })
	h.armed.Store(true)
	w.refuse("Close", 1, errInjected)
	first := begun(d.Close)
	<-h.reached
	second := begun(d.Close)
	select {
	case err := <-second:
		t.Error("it has not waited:", err)
	default:
	}
	h.let()
	require.ErrorIs(t, <-first, errInjected)
	require.NoError(t, <-second)
	w.end()

	for range testgate.Effort(20, 200, 200) {
		drv := drivertest.Inject(host.New(host.Config{Granularity: 4096}), nil)
		var devs []*vmm.Device
		for range 2 {
			d, err := vmm.OpenDriver(drv, 0)
			require.NoError(t, err)
			raw(t, d)
			devs = append(devs, d)
		}
		var all sync.WaitGroup
		for _, d := range devs {
			all.Go(func() { assert.NoError(t, d.Close()) })
		}
		all.Wait()
		require.NoError(t, drv.Balanced())
	}
}
