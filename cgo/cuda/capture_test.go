//go:build cgo && linux

package cuda_test

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// A capture that another thread tries to end goes on, and its error does not say
// that it was destroyed.
func TestEndCaptureOnAnotherThread(t *testing.T) {
	_, v, _ := opened(t)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	s, err := v.NewStream()
	require.NoError(t, err)
	require.NoError(t, v.BeginCapture(s, driver.CaptureGlobal))
	err = within(t, "end it elsewhere", func() error { return endCapture(v, s) })
	isOnly(t, err, driver.ErrInvalid)
	require.ErrorContains(t, err, "WRONG_THREAD")
	require.ErrorContains(t, err, "the capture goes on")
	yes, err := v.Capturing(s)
	require.NoError(t, err)
	require.True(t, yes)
	require.NoError(t, endCapture(v, s))

	require.NoError(t, v.BeginCapture(s, driver.CaptureGlobal))
	isOnly(t, v.SyncStream(s), driver.ErrCapturing)
	err = endCapture(v, s)
	isOnly(t, err, driver.ErrInvalid)
	require.ErrorContains(t, err, "the capture was destroyed")
	yes, err = v.Capturing(s)
	require.NoError(t, err)
	require.False(t, yes)
	require.NoError(t, v.FreeStream(s))
}
