//go:build linux

package host

import (
	"testing"
	"testing/synctest"

	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/stretchr/testify/require"
)

// TestResetContext resets a context that has work, a wait, a capture and every kind of
// memory.
func TestResetContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := New(Config{Devices: 2, Memory: 64 * mib})
		require.NoError(t, d.ResetContext(1), "it is not open")
		v, err := d.Open(0)
		require.NoError(t, err)
		old := v.(*device)
		p := chunk(t, d, 4*mib)
		s, err := old.NewStream()
		require.NoError(t, err)
		captured, err := old.NewStream()
		require.NoError(t, err)
		e, err := old.NewEvent(0)
		require.NoError(t, err)
		pinned, _, err := old.AllocHost(mib)
		require.NoError(t, err)
		gate(t, old, s)
		require.NoError(t, old.Fill(p, 1, 1, 4*mib, s))
		require.NoError(t, old.Record(e, s))
		require.NoError(t, old.BeginCapture(captured, driver.CaptureGlobal))
		synced := make(chan error, 1)
		go func() { synced <- old.SyncStream(s) }()
		synctest.Wait()

		require.NoError(t, d.ResetContext(0))
		require.ErrorIs(t, <-synced, driver.ErrContextReset)
		require.False(t, d.lost.Load())
		require.Equal(t, 1, d.mappings, "the chunk is left, the blocks are not")
		require.EqualValues(t, 4*mib, d.states[0].used)
		require.NoError(t, d.Unmap(p, 4*mib), "what was queued on it is gone")
		require.ErrorIs(t, old.Sync(), driver.ErrContextReset)
		_, err = old.AllocPlain(1)
		require.ErrorIs(t, err, driver.ErrContextReset)

		again := open(t, d, 0)
		require.NoError(t, again.Sync())
		require.ErrorIs(t, again.SyncEvent(e), driver.ErrInvalid)
		require.NoError(t, old.FreeHost(pinned))
		require.NoError(t, old.FreeEvent(e))
		require.ErrorIs(t, old.FreeEvent(e), driver.ErrInvalid)
		require.NoError(t, old.FreeStream(s))
		require.ErrorIs(t, old.FreeStream(s), driver.ErrInvalid)
		require.NoError(t, old.Close())
		require.NoError(t, again.Sync(), "the other context is not the old one's")
		require.ErrorIs(t, d.ResetContext(2), driver.ErrNoDevice)
	})
}

// TestResetCutsACopyShort that runs in its caller: whoever waits for it gets the error, too.
func TestResetCutsACopyShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := New(Config{Memory: 64 * mib})
		opened, err := d.Open(0)
		require.NoError(t, err)
		v := opened.(*device)
		let := make(chan struct{})
		o := &op{}
		o.use(chunk(t, d, 2*mib), mib, driver.AccessReadWrite)
		copied, synced, reset := make(chan error, 1), make(chan error, 1), make(chan error, 1)
		go func() {
			copied <- v.runNow("CopyIn", mib, o, func() {
				o.run = func(c *context) bool { <-let; return !c.stopped() }
			})
		}()
		synctest.Wait()
		go func() { synced <- v.SyncStream(v.copyStream) }()
		synctest.Wait()
		go func() { reset <- d.ResetContext(0) }()
		synctest.Wait()
		close(let)
		require.NoError(t, <-reset)
		require.ErrorIs(t, <-copied, driver.ErrContextReset)
		require.ErrorIs(t, <-synced, driver.ErrContextReset)
		require.NoError(t, v.Close())
	})
}

// TestResetContextUnderAPeer frees memory that another device is working on.
func TestResetContextUnderAPeer(t *testing.T) {
	d := New(Config{Devices: 2, Memory: 64 * mib})
	v, other := open(t, d, 0), open(t, d, 1)
	plain, err := v.AllocPlain(mib)
	require.NoError(t, err)
	s, err := other.NewStream()
	require.NoError(t, err)
	gate(t, other, s)
	require.NoError(t, other.Fill(plain, 1, 1, mib, s))
	require.NoError(t, d.ResetContext(0))
	require.ErrorIs(t, other.SyncStream(s), driver.ErrDeviceLost)
}
