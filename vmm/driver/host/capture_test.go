//go:build linux

package host

import (
	"testing"

	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/stretchr/testify/require"
)

// TestCaptureIsApart: what is captured and what is not do not wait for each other, nor do
// two captures.
func TestCaptureIsApart(t *testing.T) {
	d := New(Config{Memory: 64 * mib})
	v := open(t, d, 0)
	a, err := v.NewStream()
	require.NoError(t, err)
	b, err := v.NewStream()
	require.NoError(t, err)
	e, err := v.NewEvent(0)
	require.NoError(t, err)

	require.NoError(t, v.BeginCapture(a, driver.CaptureGlobal))
	require.NoError(t, v.Record(e, a))
	require.NoError(t, v.Wait(a, e))
	require.ErrorIs(t, v.Wait(0, e), driver.ErrInvalid, "the legacy stream joins no capture")
	require.NoError(t, v.BeginCapture(b, driver.CaptureGlobal))
	require.ErrorIs(t, v.Wait(b, e), driver.ErrInvalid, "two captures")
	require.NoError(t, endCapture(v, b))
	require.ErrorIs(t, v.SyncEvent(e), driver.ErrCapturing)
	require.NoError(t, v.SyncStream(b))
	require.NoError(t, endCapture(v, a), "none of it destroyed the capture")
	require.ErrorIs(t, v.SyncEvent(e), driver.ErrInvalid, "the point is in no stream")
	require.ErrorIs(t, v.Wait(b, e), driver.ErrInvalid, "nor can a stream wait for it")
	require.NoError(t, v.Record(e, a))
	require.NoError(t, v.SyncEvent(e))

	// Nor does a capture depend on what is outside it.
	require.NoError(t, v.BeginCapture(a, driver.CaptureGlobal))
	require.ErrorIs(t, v.Wait(a, e), driver.ErrInvalid)
	require.NoError(t, endCapture(v, a))
	require.ErrorIs(t, v.BeginCapture(0, driver.CaptureRelaxed), driver.ErrInvalid)
}

// TestAllocDuringCapture: plain memory is neither allocated nor freed while a capture
// forbids it. Pinned memory is.
func TestAllocDuringCapture(t *testing.T) {
	d := New(Config{Memory: 64 * mib})
	v := open(t, d, 0)
	s, err := v.NewStream()
	require.NoError(t, err)
	p, err := v.AllocPlain(mib)
	require.NoError(t, err)

	calls := map[string]func() error{
		"AllocPlain": func() error { _, err := v.AllocPlain(mib); return err },
		"FreePlain":  func() error { return v.FreePlain(p) },
	}
	used := d.states[0].used
	for name, call := range calls {
		for _, mode := range []driver.CaptureMode{driver.CaptureGlobal, driver.CaptureThreadLocal} {
			require.NoError(t, v.BeginCapture(s, mode))
			require.ErrorIs(t, call(), driver.ErrCapturing, name)
			require.ErrorIs(t, endCapture(v, s), driver.ErrInvalid, name)
		}
	}
	require.Equal(t, used, d.states[0].used)
	require.NoError(t, v.BeginCapture(s, driver.CaptureGlobal))
	pinned, _, err := v.AllocHost(mib)
	require.NoError(t, err)
	require.NoError(t, v.FreeHost(pinned))
	require.NoError(t, endCapture(v, s))
	require.NoError(t, v.BeginCapture(s, driver.CaptureRelaxed))
	for name, call := range calls {
		require.NoError(t, call(), name)
	}
	require.NoError(t, endCapture(v, s))
}

// TestElapsedIsOfOneDevice holds that the clocks of two devices are not
// compared.
func TestElapsedIsOfOneDevice(t *testing.T) {
	d := New(Config{Devices: 2, Memory: 64 * mib})
	var events [2]driver.Event
	for i := range events {
		v := open(t, d, i)
		e, err := v.NewEvent(driver.EventTiming)
		require.NoError(t, err)
		require.NoError(t, v.Record(e, 0))
		events[i] = e
	}
	_, err := open(t, d, 0).Elapsed(events[0], events[1])
	require.ErrorIs(t, err, driver.ErrInvalid)
}

// endCapture ends a capture and drops the graph.
func endCapture(d driver.Grapher, s driver.Stream) error {
	g, err := d.EndCapture(s)
	if err == nil {
		err = d.FreeGraph(g)
	}
	return err
}
