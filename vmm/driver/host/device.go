//go:build linux

package host

import (
	"runtime"
	"sync/atomic"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// device is an opened device: a reference to a context, and a copy stream.
type device struct {
	context    *context
	copyStream driver.Stream
	closed     atomic.Bool
}

var (
	_ driver.Device        = (*device)(nil)
	_ driver.Allocator     = (*device)(nil)
	_ driver.HostAllocator = (*device)(nil)
	_ driver.Grapher       = (*device)(nil)
	_ driver.Launcher      = (*device)(nil)
	_ driver.StreamMemOps  = (*device)(nil)
	_ driver.Copier2D      = (*device)(nil)

	_ driver.StreamPriorities = (*device)(nil)
)

// Open retains the context of a device.
func (d *Driver) Open(dev int) (driver.Device, error) {
	u, err := d.state("Open", dev)
	if err != nil {
		return nil, err
	}
	// memMu too, because Close releases workMu while it waits, but not memMu.
	d.memMu.RLock()
	defer d.memMu.RUnlock()
	d.workMu.Lock()
	defer d.workMu.Unlock()
	if d.lost.Load() { // since the check above
		return nil, d.lostError("Open", u)
	}
	if u.context == nil {
		u.context = newContext(d, u)
	}
	u.context.refs++
	v := &device{context: u.context}
	v.copyStream = v.context.newStream(v)
	return v, nil
}

// checkOpen is the first check of every call except those that free something.
func (v *device) checkOpen(verb string) error {
	if v.closed.Load() {
		return v.closedError(verb)
	}
	if v.context.d.lost.Load() {
		return v.context.d.lostError(verb, v.context.state)
	}
	if v.context.reset.Load() {
		return v.context.resetError(verb)
	}
	return nil
}

func (v *device) closedError(verb string) error {
	return refuse(verb, driver.ErrClosed, "host:%d", v.context.state.ordinal)
}

// Close releases the context. The last Close ends it: queued work is dropped, and
// its streams, events, plain and pinned memory are freed.
func (v *device) Close() error {
	if v.closed.Swap(true) {
		return nil
	}
	c := v.context
	d := c.d
	d.memMu.Lock()
	defer d.unlockAndClose()
	for _, p := range d.poolsOf(c.state) {
		if p.maker == v {
			d.destroyPool(p)
		}
	}
	d.workMu.Lock()
	c.removeStream(v.copyStream)
	c.refs--
	if c.refs > 0 {
		d.workMu.Unlock()
		return nil
	}
	// Before the blocks are unmapped: what runs may use them.
	d.endContext(c)
	if c.state.context == c { // after a reset it is another
		c.state.context = nil
	}
	for e, ev := range d.events {
		if ev.context == c {
			d.removeEvent(e)
		}
	}
	d.workMu.Unlock()
	return d.freeBlocks(c)
}

// MemInfo counts plain memory and memory that this Driver created.
func (v *device) MemInfo() (free, total uint64, err error) {
	if err := v.checkOpen("MemInfo"); err != nil {
		return 0, 0, err
	}
	u, d := v.context.state, v.context.d
	d.memMu.Lock()
	defer d.unlockAndClose()
	d.collectOrphans()
	for _, p := range d.poolsOf(u) {
		if p.keepsNothing() {
			d.releaseCached(p, func(uint64) bool { return true })
		}
	}
	return u.memory - u.used, u.memory, nil
}

// CopyStream is the stream of CopyIn and CopyOut.
func (v *device) CopyStream() driver.Stream { return v.copyStream }

// Sync waits for all work of the context.
func (v *device) Sync() error {
	const verb = "Sync"
	if err := v.checkOpen(verb); err != nil {
		return err
	}
	return v.context.d.sync(verb, v.context.state)
}

// Do runs f on a locked thread. There is no context to make current.
func (v *device) Do(f func() error) error {
	const verb = "Do"
	if err := v.checkOpen(verb); err != nil {
		return err
	}
	if f == nil {
		return refuse(verb, driver.ErrInvalid, "no function")
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return f()
}
