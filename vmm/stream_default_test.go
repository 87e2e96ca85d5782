package vmm_test

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// TestDefaultStreamsAreFenced: work on the legacy stream and on a thread's own stream is
// waited for through a Stream that wraps its handle, whichever thread waits.
func TestDefaultStreamsAreFenced(t *testing.T) {
	for handle := range uintptr(3) {
		for _, twoThreads := range []bool{false, true} {
			w := newWorld(t, 1)
			d := w.devs[0]
			g := ranged(t, w, page)
			require.NoError(t, g.Grow(4*page))
			s := d.WrapStream(handle)
			require.Equal(t, driver.Stream(handle), s.Raw())
			require.Zero(t, s.Queue(), "the legacy stream: the caller's thread changes")
			require.NoError(t, g.UsedBy(s))
			var open func()
			work := func() { open = work(t, d, driver.Stream(handle), g.Ptr()+vmm.Ptr(2*page)) }
			if twoThreads {
				done := make(chan struct{})
				go func() {
					defer close(done)
					runtime.LockOSThread() // never unlocked: the thread ends with its stream
					work()
				}()
				<-done
			} else {
				work()
			}
			done, err := s.Done()
			require.NoError(t, err)
			require.False(t, done)
			vmm.SetNoWorker(d, true)
			require.NoError(t, g.Clip())
			require.NoError(t, vmm.Drain(d))
			require.NotZero(t, g.Stats().Retiring, "its work may use the memory")
			open()
			require.NoError(t, s.Sync())
			done, err = s.Done()
			require.NoError(t, err)
			require.True(t, done)
			require.NoError(t, vmm.Drain(d))
			require.Zero(t, g.Stats().Retiring)
			vmm.SetNoWorker(d, false)
			require.NoError(t, s.Close())
			require.NoError(t, g.Close())
			w.end()
		}
	}
}

// TestStreamDoneDuringACapture does not disturb the capture.
func TestStreamDoneDuringACapture(t *testing.T) {
	w := newWorld(t, 1)
	s := stream(t, w.devs[0])
	c := raw(t, w.devs[0]).(driver.Grapher)
	require.NoError(t, c.BeginCapture(s.Raw(), driver.CaptureRelaxed))
	_, err := s.Done()
	require.ErrorIs(t, err, vmm.ErrCapturing)
	require.NoError(t, endCapture(c, s.Raw()))
	require.NoError(t, s.Close())
	w.end()
}
