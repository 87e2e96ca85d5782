//go:build linux

package host

import (
	"runtime"
	"sync/atomic"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// device is one user's hold on a context, with a copy stream of its own.
type device struct {
	context *context
	own     driver.Stream
	closed  atomic.Bool
}

var (
	_ driver.Device        = (*device)(nil)
	_ driver.Allocator     = (*device)(nil)
	_ driver.HostAllocator = (*device)(nil)
	_ driver.Capturer      = (*device)(nil)
	_ driver.StreamMemOps  = (*device)(nil)
)

// Open retains the context of a device.
func (d *Driver) Open(dev int) (driver.Device, error) {
	u, err := d.unit("Open", dev)
	if err != nil {
		return nil, err
	}
	// Close lets go of work while it waits, but not of mem.
	d.mem.RLock()
	defer d.mem.RUnlock()
	d.work.Lock()
	defer d.work.Unlock()
	if d.lost.Load() { // since it was looked at
		return nil, u.isLost("Open")
	}
	if u.context == nil {
		u.context = newContext(d, u)
	}
	u.context.refs++
	v := &device{context: u.context}
	v.own = v.context.newStream(v)
	return v, nil
}

// enter is the first thing that every call but the freeing ones does.
func (v *device) enter(verb string) error {
	if v.closed.Load() {
		return v.isClosed(verb)
	}
	if v.context.d.lost.Load() {
		return v.context.u.isLost(verb)
	}
	if v.context.reset.Load() {
		return v.context.wasReset(verb)
	}
	return nil
}

func (v *device) isClosed(verb string) error {
	return rule(verb, driver.ErrClosed, "host:%d", v.context.u.ordinal)
}

// Close releases the context. With the last one it ends: what is queued is
// dropped, and its streams, events, plain and pinned memory go.
func (v *device) Close() error {
	if v.closed.Swap(true) {
		return nil
	}
	c := v.context
	d := c.d
	d.mem.Lock()
	defer d.unlock()
	d.work.Lock()
	c.forget(v.own)
	c.refs--
	if c.refs > 0 {
		d.work.Unlock()
		return nil
	}
	d.end(c)
	if c.u.context == c { // not so after a reset
		c.u.context = nil
	}
	for e, ev := range d.events {
		if ev.context == c {
			delete(d.events, e)
		}
	}
	d.work.Unlock()
	return d.freeBlocks(c)
}

// MemInfo counts what was created here and plain memory.
func (v *device) MemInfo() (free, total uint64, err error) {
	if err := v.enter("MemInfo"); err != nil {
		return 0, 0, err
	}
	u, d := v.context.u, v.context.d
	d.mem.Lock()
	defer d.unlock()
	d.collect()
	return u.memory - u.used, u.memory, nil
}

// CopyStream is the stream of CopyIn and CopyOut.
func (v *device) CopyStream() driver.Stream { return v.own }

// Sync waits for all work of the context.
func (v *device) Sync() error {
	const verb = "Sync"
	if err := v.enter(verb); err != nil {
		return err
	}
	return v.context.d.sync(verb, v.context.u)
}

// Do runs f on a locked thread. There is no context to make current.
func (v *device) Do(f func() error) error {
	const verb = "Do"
	if err := v.enter(verb); err != nil {
		return err
	}
	if f == nil {
		return rule(verb, driver.ErrInvalid, "no function")
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return f()
}
