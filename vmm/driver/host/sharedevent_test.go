//go:build linux

package host

import (
	"errors"
	"os/exec"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// shared is an event of v for other processes, and w's of the same.
func sharedEvents(t testing.TB, v, w *device) (e, theirs driver.Event) {
	t.Helper()
	e, err := v.NewEvent(driver.EventInterprocess)
	require.NoError(t, err)
	h, err := v.EventHandle(e)
	require.NoError(t, err)
	again, err := v.EventHandle(e)
	require.NoError(t, err)
	require.Equal(t, h, again)
	theirs, err = w.OpenEvent(h)
	require.NoError(t, err)
	return e, theirs
}

func eventDone(t testing.TB, v *device, e driver.Event) bool {
	t.Helper()
	yes, err := v.Done(e)
	require.NoError(t, err)
	return yes
}

// TestSharedEvent: two Drivers are as two processes. What one records both wait for, and
// only the last record counts, whoever made it.
func TestSharedEvent(t *testing.T) {
	before, mappings := holds(t), process.mappings
	v, w := open(t, New(Config{}), 0), open(t, New(Config{}), 0)
	e, theirs := sharedEvents(t, v, w)
	require.True(t, eventDone(t, w, theirs), "never recorded")
	s, err := v.NewStream()
	require.NoError(t, err)
	reach := gate(t, v, s)
	require.NoError(t, v.Record(e, s))
	require.False(t, eventDone(t, w, theirs))
	require.False(t, eventDone(t, v, e))

	p := plain(t, w, 1, 1)
	require.NoError(t, w.Wait(w.CopyStream(), theirs))
	require.NoError(t, w.Fill(p, 2, 1, 1, w.CopyStream()))
	other, err := w.NewStream()
	require.NoError(t, err)
	require.NoError(t, w.Record(theirs, other))
	require.True(t, eventDone(t, v, e), "the last record is another one")
	done, err := w.StreamDone(w.CopyStream())
	require.NoError(t, err)
	require.False(t, done, "and the wait is for the one before")
	require.NoError(t, w.FreeEvent(theirs), "waits for its record go on")
	reach()
	require.Equal(t, byte(2), first(t, w, p))
	require.NoError(t, v.Record(e, s))
	require.NoError(t, v.SyncEvent(e))
	require.NoError(t, v.FreeEvent(e))
	require.NoError(t, v.Close())
	require.NoError(t, w.Close())
	require.Equal(t, before, holds(t))
	require.Equal(t, mappings, process.mappings)
}

// TestSharedEventRefuses: what has no handle, and handles that are none.
func TestSharedEventRefuses(t *testing.T) {
	v, w := open(t, New(Config{}), 0), open(t, New(Config{}), 0)
	e, theirs := sharedEvents(t, v, w)
	h, err := v.EventHandle(e)
	require.NoError(t, err)
	private, err := v.NewEvent(driver.EventTiming)
	require.NoError(t, err)
	for x, bad := range map[*device][]driver.Event{v: {0, private}, w: {theirs}} {
		for _, e := range bad {
			_, err := x.EventHandle(e)
			require.ErrorIs(t, err, driver.ErrInvalid)
		}
	}
	_, err = v.OpenEvent(h)
	require.ErrorIs(t, err, driver.ErrInvalid)
	require.ErrorContains(t, err, "of this process")
	for i := range h {
		bad := h
		bad[i] ^= 1
		got, err := w.OpenEvent(bad)
		if dead := i >= 16 && i < 24; dead { // its maker may have ended
			require.NoError(t, err, i)
			require.True(t, eventDone(t, w, got))
			continue
		}
		require.ErrorIs(t, err, driver.ErrInvalid, i)
	}
	require.NoError(t, v.FreeEvent(e))
	_, err = w.OpenEvent(h)
	require.ErrorIs(t, err, driver.ErrInvalid, "it was freed")
	require.NoError(t, w.FreeEvent(theirs))
}

// TestSharedEventOfAStoppedDevice: work that is dropped has ended for the others too.
func TestSharedEventOfAStoppedDevice(t *testing.T) {
	for name, end := range map[string]func(*Driver, *device){
		"reset": func(d *Driver, _ *device) { _ = d.ResetContext(0) },
		"close": func(_ *Driver, v *device) { _ = v.Close() },
		"lost": func(d *Driver, _ *device) {
			d.workMu.Lock()
			defer d.workMu.Unlock()
			d.lose("a test")
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := New(Config{})
			v, w := open(t, d, 0), open(t, New(Config{}), 0)
			e, theirs := sharedEvents(t, v, w)
			gate(t, v, v.CopyStream())
			require.NoError(t, v.Record(e, v.CopyStream()))
			require.False(t, eventDone(t, w, theirs))
			end(d, v)
			require.NoError(t, w.SyncEvent(theirs))
		})
	}
}

// TestSharedEventWaitStops: a wait for another process ends with the context.
func TestSharedEventWaitStops(t *testing.T) {
	d := New(Config{})
	v, w := open(t, New(Config{}), 0), open(t, d, 0)
	e, theirs := sharedEvents(t, v, w)
	gate(t, v, v.CopyStream())
	require.NoError(t, v.Record(e, v.CopyStream()))
	require.NoError(t, w.Wait(w.CopyStream(), theirs))
	waits := make(chan error)
	go func() { waits <- w.SyncEvent(theirs) }()
	require.NoError(t, d.ResetContext(0))
	if err := <-waits; !errors.Is(err, driver.ErrInvalid) { // as it is if SyncEvent begins only now
		require.ErrorIs(t, err, driver.ErrContextReset)
	}
}

// deadProcess is the id of a process that has ended.
func deadProcess(t testing.TB) uint64 {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "cat")
	_, err := cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	id := otherProcess(t, cmd.Process.Pid)
	require.False(t, ended(id, thisProcess(t).Namespace))
	require.NoError(t, cmd.Process.Kill())
	require.Error(t, cmd.Wait())
	require.True(t, ended(id, thisProcess(t).Namespace))
	return id
}

// TestSharedEventMembers: processes that have ended make room for others, and their
// records have ended.
func TestSharedEventMembers(t *testing.T) {
	v, w := open(t, New(Config{}), 0), open(t, New(Config{}), 0)
	e, theirs := sharedEvents(t, v, w)
	h, err := v.EventHandle(e)
	require.NoError(t, err)
	s := v.context.d.events[e].shared
	for i := uint64(3); i <= eventMembers; i++ {
		store(s.word(i), wordOf(thisProcess(t)), 8)
	}
	_, err = w.OpenEvent(h)
	require.ErrorIs(t, err, driver.ErrLimit)

	// The last record is of one that died before it ended.
	store(s.word(eventMembers), deadProcess(t), 8)
	store(s.word(0), 1<<8|eventMembers, 8)
	late := s.last()
	require.False(t, late.ended())
	third, err := w.OpenEvent(h)
	require.NoError(t, err)
	require.True(t, late.ended(), "it gave its word to the third")
	require.NoError(t, v.SyncEvent(e))
	_, err = w.OpenEvent(h)
	require.ErrorIs(t, err, driver.ErrLimit)
	for _, e := range []driver.Event{third, theirs} {
		require.NoError(t, w.FreeEvent(e))
	}
	last, err := w.OpenEvent(h)
	require.NoError(t, err)

	// It shows only to a process that looks.
	store(s.word(5), deadProcess(t), 8)
	store(s.word(0), 2<<8|5, 8)
	require.False(t, s.last().ended())
	require.NoError(t, w.SyncEvent(last))
	require.True(t, s.last().ended(), "who has looked says so to the others")
}

// TestSharedEventConcurrently: both sides record and wait as they like.
func TestSharedEventConcurrently(t *testing.T) {
	v, w := open(t, New(Config{}), 0), open(t, New(Config{}), 0)
	e, theirs := sharedEvents(t, v, w)
	var all sync.WaitGroup
	for x, e := range map[*device]driver.Event{v: e, w: theirs} {
		for range 2 {
			s, err := x.NewStream()
			require.NoError(t, err)
			all.Go(func() {
				for range 300 {
					for _, err := range []error{x.Record(e, s), x.Wait(s, e), x.Fill(0, 0, 1, 0, s), x.SyncEvent(e)} {
						if err != nil {
							t.Error(err)
						}
					}
				}
			})
		}
	}
	all.Wait()
	require.NoError(t, v.Sync())
	require.NoError(t, w.Sync())
	require.True(t, eventDone(t, v, e))
	require.NoError(t, v.FreeEvent(e))
	require.NoError(t, w.FreeEvent(theirs))
}
