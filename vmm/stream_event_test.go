package vmm_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
)

// TestEventsRecordedAgain: an event of the caller's can be recorded any number of times,
// and each wait is for the last.
func TestEventsRecordedAgain(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	e, err := d.NewEvent(vmm.EventBlocking)
	require.NoError(t, err)
	done, err := e.Done()
	require.NoError(t, err)
	require.True(t, done, "never recorded")
	s := stream(t, d)
	for range 3 {
		open := gate(t, d, s.Raw())
		require.NoError(t, e.Record(s))
		done, err = e.Done()
		require.NoError(t, err)
		require.False(t, done)
		open()
		require.NoError(t, e.Sync())
	}
	require.NoError(t, s.Close())
	require.ErrorIs(t, e.Record(s), vmm.ErrClosed)
	require.ErrorIs(t, e.Record(nil), vmm.ErrInvalid)
	w.refuse("FreeEvent", 1, errInjected)
	require.ErrorIs(t, e.Close(), errInjected)
	require.NoError(t, e.Sync(), "it is as it was")
	require.NoError(t, e.Close())
	require.NoError(t, e.Close())
	require.ErrorIs(t, e.Record(s), vmm.ErrClosed)
	w.end()
}

// TestEventsThatTime: only events that were made for it do.
func TestEventsThatTime(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	s := stream(t, d)
	from, err := d.NewEvent(vmm.EventTiming)
	require.NoError(t, err)
	to, err := d.NewEvent(vmm.EventTiming)
	require.NoError(t, err)
	require.NoError(t, from.Record(s))
	require.NoError(t, to.Record(s))
	require.NoError(t, to.Sync())
	took, err := to.Elapsed(from)
	require.NoError(t, err)
	require.GreaterOrEqual(t, took.Nanoseconds(), int64(0))
	plain, err := s.Record()
	require.NoError(t, err)
	require.NoError(t, plain.Sync())
	_, err = plain.Elapsed(from)
	require.ErrorIs(t, err, vmm.ErrInvalid)
	_, err = d.NewEvent(vmm.EventTiming | vmm.EventInterprocess)
	require.ErrorIs(t, err, vmm.ErrInvalid)
	for _, e := range []*vmm.Event{from, to, plain} {
		require.NoError(t, e.Close())
	}
	require.NoError(t, s.Close())
	w.end()
}

// TestAnEventClosesUnderAWait: the wait goes on, and the event is freed when it ends.
func TestAnEventClosesUnderAWait(t *testing.T) {
	w := newWorld(t, 1)
	h := haltAt(w, func(c drivertest.Call) bool { return c.Name == "SyncEvent" })
	d := w.devs[0]
	s := stream(t, d)
	e, err := d.NewEvent(vmm.EventBlocking)
	require.NoError(t, err)
	open := gate(t, d, s.Raw())
	require.NoError(t, e.Record(s))
	h.armed.Store(true)
	waited := begun(e.Sync)
	<-h.reached
	require.NoError(t, e.Close())
	h.let()
	w.refuse("FreeEvent", 1, errInjected)
	open()
	require.NoError(t, <-waited)
	require.NoError(t, s.Close())
	w.end()
}

// TestEventsOfAnotherDriver are refused: another driver's handles mean nothing here.
func TestEventsOfAnotherDriver(t *testing.T) {
	a, b := newWorld(t, 1), worldOn(t, 1, host.Config{})
	s, other := stream(t, a.devs[0]), stream(t, b.devs[0])
	e, err := s.Record()
	require.NoError(t, err)
	require.ErrorIs(t, other.Wait(e), vmm.ErrInvalid)
	require.ErrorIs(t, e.Record(other), vmm.ErrInvalid)
	timed, err := b.devs[0].NewEvent(vmm.EventTiming)
	require.NoError(t, err)
	_, err = timed.Elapsed(e)
	require.ErrorIs(t, err, vmm.ErrInvalid)
	require.NoError(t, timed.Close())
	require.NoError(t, e.Close())
	require.NoError(t, s.Close())
	require.NoError(t, other.Close())
	a.end()
	b.end()
}
