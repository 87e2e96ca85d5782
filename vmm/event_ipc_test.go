package vmm_test

import (
	"math"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
)

// twoProcesses is a driver that opens its own handles, as if they came from another process:
// what it opens is the same event.
type twoProcesses struct {
	driver.Driver
	mu     sync.Mutex
	fails  error
	opened map[driver.Event]int
}

type twoProcessesDevice struct {
	driver.Device
	driver.HostAllocator
	driver.StreamMemOps
	of *twoProcesses
}

func (p *twoProcesses) Open(n int) (driver.Device, error) {
	d, err := p.Driver.Open(n)
	if err != nil {
		return nil, err
	}
	return &twoProcessesDevice{Device: d, HostAllocator: d.(driver.HostAllocator), StreamMemOps: d.(driver.StreamMemOps), of: p}, nil
}

func (d *twoProcessesDevice) MemHandle(driver.Ptr) (h driver.IPCHandle, err error) {
	return h, driver.ErrNotSupported
}
func (d *twoProcessesDevice) OpenMem(driver.IPCHandle) (driver.Ptr, error) {
	return 0, driver.ErrNotSupported
}
func (d *twoProcessesDevice) CloseMem(driver.Ptr) error { return driver.ErrNotSupported }

func (d *twoProcessesDevice) EventHandle(e driver.Event) (h driver.IPCHandle, err error) {
	h[0] = byte(e)
	return h, d.of.fails
}

func (d *twoProcessesDevice) OpenEvent(h driver.IPCHandle) (driver.Event, error) {
	if d.of.fails != nil {
		return 0, d.of.fails
	}
	d.of.mu.Lock()
	defer d.of.mu.Unlock()
	d.of.opened[driver.Event(h[0])]++
	return driver.Event(h[0]), nil
}

func (d *twoProcessesDevice) FreeEvent(e driver.Event) error {
	d.of.mu.Lock()
	defer d.of.mu.Unlock()
	if d.of.opened[e] > 0 {
		d.of.opened[e]--
		return nil
	}
	return d.Device.FreeEvent(e)
}

// TestEventsOfSeveralProcesses: the other process moves an event that this one has recorded, so
// a wait for it tells nothing of the stream on which it was recorded here.
func TestEventsOfSeveralProcesses(t *testing.T) {
	p := &twoProcesses{Driver: host.New(host.Config{Devices: 1, Memory: 64 * page, Granularity: page}), opened: map[driver.Event]int{}}
	d, err := vmm.OpenDriver(p, 0)
	require.NoError(t, err)
	mine, err := d.NewEvent(vmm.EventInterprocess)
	require.NoError(t, err)
	h, err := mine.IPCHandle()
	require.NoError(t, err)
	theirs, err := d.OpenEvent(h)
	require.NoError(t, err)
	a, b := stream(t, d), stream(t, d)

	for _, c := range []struct{ first, last *vmm.Event }{{mine, theirs}, {theirs, mine}} {
		open := gate(t, d, a.Raw())
		t.Cleanup(open)
		require.NoError(t, c.first.Record(a))
		require.NoError(t, c.last.Record(b))
		require.NoError(t, c.first.Sync(), "it stands on the other stream")
		require.Less(t, a.Finished(), a.Point())
		done, err := c.first.Done()
		require.NoError(t, err)
		require.True(t, done)
		require.Less(t, a.Finished(), a.Point())
		require.NoError(t, b.Wait(c.first))
		require.Zero(t, b.After(a))
		open()
		require.NoError(t, a.Sync())
	}

	// A stream waits for what the other process has recorded.
	open := gate(t, d, a.Raw())
	t.Cleanup(open)
	require.NoError(t, theirs.Record(a))
	require.NoError(t, b.Wait(mine))
	after, err := b.Record()
	require.NoError(t, err)
	done, err := after.Done()
	require.NoError(t, err)
	require.False(t, done)
	open()
	require.NoError(t, after.Sync())
	require.NoError(t, after.Close())

	p.fails = errInjected
	_, err = mine.IPCHandle()
	require.ErrorIs(t, err, errInjected)
	_, err = d.OpenEvent(h)
	require.ErrorIs(t, err, errInjected)
	p.fails = nil
	require.ErrorContains(t, d.Close(), "event made at")
	require.NoError(t, theirs.Close())
	require.NoError(t, theirs.Close())
	require.ErrorIs(t, theirs.Record(a), vmm.ErrClosed)
	require.NoError(t, mine.Sync(), "it is another one's to close")
	require.NoError(t, mine.Close())
	_, err = mine.IPCHandle()
	require.ErrorIs(t, err, vmm.ErrClosed)
	require.NoError(t, a.Close())
	require.NoError(t, b.Close())
	require.EqualValues(t, uint64(math.MaxUint64), a.Finished())
	require.NoError(t, d.Close())
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
