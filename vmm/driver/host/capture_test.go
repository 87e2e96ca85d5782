//go:build linux

package host

import (
	"testing"

	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/stretchr/testify/require"
)

// TestCaptureSpreadsToNoOtherStream holds where this driver stops short of the
// card: an event recorded in a capture is good inside that capture alone.
func TestCaptureSpreadsToNoOtherStream(t *testing.T) {
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
	require.ErrorIs(t, v.Wait(b, e), driver.ErrInvalid)
	require.ErrorIs(t, v.SyncEvent(e), driver.ErrCapturing)
	require.NoError(t, v.SyncStream(b))
	require.NoError(t, v.EndCapture(a), "none of it destroyed the capture")
	require.ErrorIs(t, v.SyncEvent(e), driver.ErrInvalid, "the point is in no stream")
	require.NoError(t, v.Record(e, a))
	require.NoError(t, v.SyncEvent(e))

	// Nor does a capture depend on what is outside it.
	require.NoError(t, v.BeginCapture(a, driver.CaptureGlobal))
	require.ErrorIs(t, v.Wait(a, e), driver.ErrInvalid)
	require.NoError(t, v.EndCapture(a))
	require.ErrorIs(t, v.BeginCapture(0, driver.CaptureRelaxed), driver.ErrInvalid)
}

// TestFreeDuringCapture holds that memory that waits for the device is not
// freed while a capture forbids waits.
func TestFreeDuringCapture(t *testing.T) {
	d := New(Config{Memory: 64 * mib})
	v := open(t, d, 0)
	s, err := v.NewStream()
	require.NoError(t, err)
	p, err := v.AllocPlain(mib)
	require.NoError(t, err)

	require.NoError(t, v.BeginCapture(s, driver.CaptureGlobal))
	require.ErrorIs(t, v.FreePlain(p), driver.ErrCapturing)
	require.ErrorIs(t, v.EndCapture(s), driver.ErrInvalid)
	require.NoError(t, v.BeginCapture(s, driver.CaptureRelaxed))
	require.NoError(t, v.FreePlain(p))
	require.NoError(t, v.EndCapture(s))
}
