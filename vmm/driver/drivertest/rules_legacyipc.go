package drivertest

import (
	"errors"
	"slices"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

func legacyIPCRules() []Rule {
	return needing([]Rule{
		{Name: "ipc-memory", Says: "another process opens plain memory by its handle, reads and writes it; opening it twice returns one address, and each close undoes one open", Source: manual, run: onDevice(ipcMemory), peer: ipcMemoryPeer},
		{Name: "ipc-own", Says: "a process cannot open handles of its own", Source: manual, run: onInterface(ipcOwn)},
		{Name: "ipc-refused", Says: "what is no handle, memory that is not plain, and an event that was not made for it are ErrInvalid", Source: manual, run: onInterface(ipcRefused)},
		{Name: "ipc-freed", Says: "the handle of memory that was freed is ErrInvalid", Source: seam, run: onDevice(ipcFreed), peer: ipcFreedPeer},
		{Name: "ipc-dead", Says: "when its maker has ended, the handle of memory is ErrInvalid, and that of an event opens", Source: measured, run: onDevice(ipcDead), peer: ipcDeadPeer},
		{Name: "ipc-event", Says: "what one process records in an event, streams and queries of the other wait for, in both directions", Source: guide, needs: []driver.Feature{driver.FeatureStreamMemOps}, run: onDevice(ipcEvent), peer: ipcEventPeer},
		{Name: "ipc-peers", Says: "memory on another device is opened without peer access, enables none, and stays when that is enabled and disabled", Source: measured, devices: 2, run: onDevice(ipcPeers), peer: ipcPeersPeer},
		{Name: "ipc-close", Says: "Close closes what is open; after it, calls with handles are ErrClosed", Source: seam, run: ipcClose, peer: ipcClosePeer},
	}, driver.FeatureLegacyIPC)
}

// filledBlock is a plainBlock whose bytes are all b.
func (c *check) filledBlock(d driver.Device, b byte) driver.Ptr {
	c.Helper()
	p := c.plainBlock(d)
	c.write(d, p, blockSize, b)
	return p
}

// freeBlock frees memory of a pool, or a plainBlock before the end of the case.
func (c *check) freeBlock(d driver.Device, p driver.Ptr) {
	c.Helper()
	c.must(as[driver.Allocator](c, d).FreePlain(p), "free %v", p)
	c.held.plain = slices.DeleteFunc(c.held.plain, func(x owned[driver.Ptr]) bool { return x.it == p })
}

func (c *check) memHandle(d driver.Device, p driver.Ptr) driver.IPCHandle {
	c.Helper()
	return valueOf(as[driver.LegacyIPC](c, d).MemHandle(p)).must(c, "ask for the handle of %v", p)
}

func (c *check) openMem(d driver.Device, h driver.IPCHandle) driver.Ptr {
	c.Helper()
	return valueOf(as[driver.LegacyIPC](c, d).OpenMem(h)).must(c, "open memory")
}

func (c *check) closeMem(d driver.Device, p driver.Ptr) {
	c.Helper()
	c.must(as[driver.LegacyIPC](c, d).CloseMem(p), "close %v", p)
}

// sharedEvent is an event for other processes, and its handle.
func (c *check) sharedEvent(d driver.Device) (driver.Event, driver.IPCHandle) {
	c.Helper()
	e := c.event(d, driver.EventInterprocess)
	h := valueOf(as[driver.LegacyIPC](c, d).EventHandle(e)).must(c, "ask for the handle of an event")
	return e, h
}

func (c *check) openEvent(d driver.Device, h driver.IPCHandle) driver.Event {
	c.Helper()
	e := valueOf(as[driver.LegacyIPC](c, d).OpenEvent(h)).must(c, "open an event")
	c.held.events = append(c.held.events, owned[driver.Event]{d, e})
	return e
}

func ipcMemory(c *check, d driver.Device) {
	p := c.filledBlock(d, 1)
	h := c.memHandle(d, p)
	equal(c, c.memHandle(d, p), h, "the handle of memory, again")
	other := c.startPeer()
	other.send(h)
	other.receive()
	c.reads(d, p, blockSize, 8)
	c.write(d, p, blockSize, 9)
	other.send(h)
	other.finish()
}

func ipcMemoryPeer(c *check, maker *process) {
	d := c.dev(0)
	i := as[driver.LegacyIPC](c, d)
	h := maker.receive()
	p := c.openMem(d, h)
	c.reads(d, p, blockSize, 1)
	equal(c, c.openMem(d, h), p, "the address of memory that is opened again")
	c.closeMem(d, p)
	c.write(d, p, blockSize, 8)
	maker.send(h)
	maker.receive()
	c.reads(d, p, blockSize, 9)
	c.want(as[driver.Allocator](c, d).FreePlain(p), "free memory of another process", driver.ErrInvalid)
	c.want(i.CloseMem(p+1), "close inside", driver.ErrInvalid)
	c.closeMem(d, p)
	c.want(i.CloseMem(p), "close again", driver.ErrInvalid)
	c.want(d.CopyIn(p, []byte{1}), "write what was closed", driver.ErrInvalid)
}

func ipcPeers(c *check, d driver.Device) {
	p := c.filledBlock(d, 1)
	h := c.memHandle(d, p)
	other := c.startPeer()
	other.send(h)
	other.finish()
	c.reads(d, p, blockSize, 8)
}

func ipcPeersPeer(c *check, maker *process) {
	d := c.dev(1)
	s := c.stream(d)
	p := c.openMem(d, maker.receive())
	c.reads(d, p, blockSize, 1)
	// A driver without peer access has none that could be in the way.
	i := as[driver.LegacyPeers](c, d)
	for _, f := range []func(int) error{i.EnablePeer, i.DisablePeer} {
		if err := f(0); !errors.Is(err, driver.ErrNotSupported) {
			c.must(err, "change peer access to the memory's device")
		}
		c.fillBlock(d, p, 8, s)
		c.sync(d, s)
		c.reads(d, p, blockSize, 8)
	}
	c.closeMem(d, p)
}

func ipcOwn(c *check, d driver.Device, i driver.LegacyIPC) {
	p := c.filledBlock(d, 1)
	c.want(errOf(i.OpenMem(c.memHandle(d, p))), "open one's own memory", driver.ErrInvalid)
	_, h := c.sharedEvent(d)
	c.want(errOf(i.OpenEvent(h)), "open one's own event", driver.ErrInvalid)
	c.must(d.Sync(), "sync afterwards")
}

func ipcRefused(c *check, d driver.Device, i driver.LegacyIPC) {
	c.want(errOf(i.OpenMem(driver.IPCHandle{})), "open memory by zeros", driver.ErrInvalid)
	c.want(errOf(i.OpenEvent(driver.IPCHandle{})), "open an event by zeros", driver.ErrInvalid)

	p := c.filledBlock(d, 1)
	mapped, _ := c.chunks(1)
	for what, bad := range map[string]driver.Ptr{"address 0": 0, "address 1": 1, "an address inside": p + 256, "mapped memory": mapped} {
		c.want(errOf(i.MemHandle(bad)), "ask for the handle of "+what, driver.ErrInvalid)
	}
	if c.d.Supports(0, driver.FeaturePools) == nil {
		pooled := valueOf(as[driver.Allocator](c, d).AllocAsync(blockSize, d.CopyStream())).must(c, "allocate from the current pool")
		c.want(errOf(i.MemHandle(pooled)), "ask for the handle of memory of a pool", driver.ErrInvalid)
		c.freeBlock(d, pooled)
	}
	c.want(i.CloseMem(p), "close what was allocated", driver.ErrInvalid)
	c.want(i.CloseMem(0), "close address 0", driver.ErrInvalid)

	for what, f := range map[string]driver.EventFlags{"a plain event": 0, "an event with a time": driver.EventTiming} {
		c.want(errOf(i.EventHandle(c.event(d, f))), "ask for the handle of "+what, driver.ErrInvalid)
	}
	c.want(errOf(i.EventHandle(0)), "ask for the handle of event 0", driver.ErrInvalid)
	c.must(d.Sync(), "sync afterwards")
}

func ipcFreed(c *check, d driver.Device) {
	p := c.filledBlock(d, 1)
	h := c.memHandle(d, p)
	c.freeBlock(d, p)
	other := c.startPeer()
	other.send(h)
	other.finish()
}

func ipcFreedPeer(c *check, maker *process) {
	d := c.dev(0)
	c.want(errOf(as[driver.LegacyIPC](c, d).OpenMem(maker.receive())), "open memory that was freed", driver.ErrInvalid)
	c.must(d.Sync(), "sync afterwards")
}

func ipcDead(c *check, d driver.Device) {
	maker := c.startPeer()
	memory, event := maker.receive(), maker.receive()
	maker.kill()
	c.want(errOf(as[driver.LegacyIPC](c, d).OpenMem(memory)), "open memory whose maker has ended", driver.ErrInvalid)
	e := c.openEvent(d, event)
	s := c.stream(d)
	c.must(d.Record(e, s), "record it")
	c.must(d.Wait(d.CopyStream(), e), "wait for it")
	c.must(c.returns("wait for an event whose maker has ended", func() error { return d.SyncEvent(e) }), "sync it")
}

func ipcDeadPeer(c *check, other *process) {
	d := c.dev(0)
	p := c.filledBlock(d, 1)
	other.send(c.memHandle(d, p))
	e, h := c.sharedEvent(d)
	c.must(d.Record(e, d.CopyStream()), "record an event")
	c.must(d.SyncEvent(e), "sync it")
	other.send(h)
	other.receive() // never: this process is killed
}

// ipcEvent holds a fill back, and records an event behind it. The other process's copy
// waits for that, and the event that it records for the copy.
func ipcEvent(c *check, d driver.Device) {
	s := c.stream(d)
	p := c.filledBlock(d, 1)
	e, h := c.sharedEvent(d)
	g := c.hold(d, s)
	c.fillBlock(d, p, 2, s)
	c.must(c.prompt("record", func() error { return d.Record(e, s) }), "record")
	other := c.startPeer()
	other.send(c.memHandle(d, p))
	other.send(h)
	back := c.openEvent(d, other.receive()) // once its copy is queued
	c.done(d, back, false)
	after := c.stream(d)
	c.must(d.Wait(after, back), "wait for the other's event")
	q := c.filledBlock(d, 0)
	c.moveBlock(d, q, p, after)
	g.open()
	c.must(c.returns("sync", func() error { return d.SyncStream(after) }), "sync")
	c.reads(d, q, blockSize, 3)
	other.send(h)
	other.finish()
}

func ipcEventPeer(c *check, maker *process) {
	d := c.dev(0)
	s := c.stream(d)
	memory, event := maker.receive(), maker.receive()
	p := c.openMem(d, memory)
	e := c.openEvent(d, event)
	c.done(d, e, false) // the work that it was recorded behind waits
	c.want(errOf(as[driver.LegacyIPC](c, d).EventHandle(e)), "ask for the handle of an event that was opened", driver.ErrInvalid)
	q := c.filledBlock(d, 0)
	c.must(d.Wait(s, e), "wait for the maker's event")
	c.moveBlock(d, q, p, s)
	c.fillBlock(d, p, 3, s)
	back, h := c.sharedEvent(d)
	c.must(d.Record(back, s), "record")
	maker.send(h)
	c.must(c.returns("sync the maker's event", func() error { return d.SyncEvent(e) }), "sync")
	c.must(c.returns("sync", func() error { return d.SyncStream(s) }), "sync")
	c.reads(d, q, blockSize, 2)
	maker.receive()
	c.closeMem(d, p)
}

func ipcClose(c *check) {
	maker := c.startPeer()
	memory, event := maker.receive(), maker.receive()
	d := c.openDevice(0)
	i := as[driver.LegacyIPC](c, d)
	p := valueOf(i.OpenMem(memory)).must(c, "open memory")
	c.unbalanced = true // it is left open
	c.must(d.Close(), "close")
	c.want(c.dev(0).CopyIn(p, []byte{1}), "write what was left open", driver.ErrInvalid)
	c.want(errOf(i.OpenMem(memory)), "open memory", driver.ErrClosed)
	c.want(i.CloseMem(p), "close memory", driver.ErrClosed)
	c.want(errOf(i.OpenEvent(event)), "open an event", driver.ErrClosed)
	c.want(errOf(i.MemHandle(p)), "ask for the handle of memory", driver.ErrClosed)
	c.want(errOf(i.EventHandle(1)), "ask for the handle of an event", driver.ErrClosed)
	maker.send(memory)
	maker.finish()
}

func ipcClosePeer(c *check, other *process) {
	d := c.dev(0)
	p := c.filledBlock(d, 1)
	_, event := c.sharedEvent(d)
	other.send(c.memHandle(d, p))
	other.send(event)
	other.receive()
}
