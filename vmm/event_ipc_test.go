package vmm_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
)

// twoProcesses returns the worlds of two drivers, each of which is to the other as one of
// another process, and an event that both have.
func twoProcesses(t *testing.T) (here, there *world, mine, theirs *vmm.Event) {
	t.Helper()
	if onCUDA {
		t.Skip("a process of CUDA's cannot open its own handles; vmm/driver/drivertest has rules for two")
	}
	here, there = newWorld(t, 1), newWorld(t, 1)
	mine, err := here.devs[0].NewEvent(vmm.EventInterprocess)
	require.NoError(t, err)
	h, err := mine.IPCHandle()
	require.NoError(t, err)
	theirs, err = there.devs[0].OpenEvent(h)
	require.NoError(t, err)
	return here, there, mine, theirs
}

// TestEventsOfSeveralProcesses: work waits for what the other process has recorded, and an event
// that the other process has moved tells nothing of the stream on which it was recorded here.
func TestEventsOfSeveralProcesses(t *testing.T) {
	here, there, mine, theirs := twoProcesses(t)
	for _, c := range []struct {
		w, v        *world
		first, last *vmm.Event
	}{{here, there, mine, theirs}, {there, here, theirs, mine}} {
		d := c.w.devs[0]
		a, b, other := stream(t, d), stream(t, d), stream(t, c.v.devs[0])
		open := gate(t, d, a.Raw())
		t.Cleanup(open)
		require.NoError(t, c.first.Record(a))
		require.NoError(t, c.last.Record(other))
		require.NoError(t, other.Sync())
		require.NoError(t, c.first.Sync(), "it stands on the other's stream")
		require.Less(t, a.Finished(), a.Point())
		done, err := c.first.Done()
		require.NoError(t, err)
		require.True(t, done)
		require.Less(t, a.Finished(), a.Point())
		require.NoError(t, b.Wait(c.first))
		require.Zero(t, b.After(a))
		open()
		require.NoError(t, a.Sync())

		open = gate(t, d, a.Raw())
		t.Cleanup(open)
		require.NoError(t, c.first.Record(a))
		require.NoError(t, other.Wait(c.last))
		done, err = other.Done()
		require.NoError(t, err)
		require.False(t, done, "it waits for the first process's work")
		done, err = c.last.Done()
		require.NoError(t, err)
		require.False(t, done)
		open()
		require.NoError(t, c.last.Sync())
		require.NoError(t, other.Sync())
		for _, s := range []*vmm.Stream{a, b, other} {
			require.NoError(t, s.Close())
		}
	}
	require.ErrorContains(t, there.devs[0].Close(), "event made at")
	require.NoError(t, theirs.Close())
	require.NoError(t, theirs.Close())
	require.ErrorIs(t, theirs.Sync(), vmm.ErrClosed)
	require.NoError(t, mine.Sync(), "it is another one's to close")
	require.NoError(t, mine.Close())
	_, err := mine.IPCHandle()
	require.ErrorIs(t, err, vmm.ErrClosed)
	here.end()
	there.end()
}

// TestEventHandlesRefused: nothing stays open.
func TestEventHandlesRefused(t *testing.T) {
	here, there, mine, theirs := twoProcesses(t)
	d := there.devs[0]
	h, err := mine.IPCHandle()
	require.NoError(t, err)
	here.refuse("EventHandle", 1, errInjected)
	_, err = mine.IPCHandle()
	require.ErrorIs(t, err, errInjected)
	there.refuse("OpenEvent", 1, errInjected)
	_, err = d.OpenEvent(h)
	require.ErrorIs(t, err, errInjected)
	_, err = d.OpenEvent(vmm.IPCHandle{})
	require.ErrorIs(t, err, vmm.ErrInvalid)
	plain, err := here.devs[0].NewEvent(vmm.EventBlocking)
	require.NoError(t, err)
	_, err = plain.IPCHandle()
	require.ErrorIs(t, err, vmm.ErrInvalid, "it is for this process alone")
	require.NoError(t, plain.Close())

	there.refuse("FreeEvent", 1, errInjected)
	require.ErrorIs(t, theirs.Close(), errInjected)
	require.NoError(t, theirs.Sync(), "it is as it was")
	require.NoError(t, theirs.Close())
	require.NoError(t, mine.Close())
	_, err = d.OpenEvent(h)
	require.ErrorIs(t, err, vmm.ErrInvalid, "its maker has closed it")
	here.end()
	there.end()
	_, err = d.OpenEvent(h)
	require.ErrorIs(t, err, vmm.ErrClosed)
}

// TestEventsWithoutHandles: a driver may have none.
func TestEventsWithoutHandles(t *testing.T) {
	p := &withoutIPC{host.New(host.Config{Devices: 1, Memory: 64 * page, Granularity: page})}
	d, err := vmm.OpenDriver(p, 0)
	require.NoError(t, err)
	e, err := d.NewEvent(vmm.EventInterprocess)
	require.NoError(t, err)
	_, err = e.IPCHandle()
	require.ErrorIs(t, err, vmm.ErrNotSupported)
	_, err = d.OpenEvent(vmm.IPCHandle{})
	require.ErrorIs(t, err, vmm.ErrNotSupported)
	require.NoError(t, e.Close())
	require.NoError(t, d.Close())
}

// withoutIPC is a driver whose devices have the methods of driver.Device and no more.
type withoutIPC struct{ driver.Driver }

func (p *withoutIPC) Open(n int) (driver.Device, error) {
	d, err := p.Driver.Open(n)
	return struct{ driver.Device }{d}, err
}
