package drivertest

import (
	"maps"
	"slices"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// ContextResetter is a Driver under test that can reset a context, as another library
// does with cuDevicePrimaryCtxReset. For other drivers these rules are skipped.
type ContextResetter interface {
	ResetContext(dev int) error
}

// A reset by another library ends the opened Devices, and nothing else.
func resetRules() []Rule {
	rules := []Rule{
		{Name: "reset-device", Says: "after a reset of its context every call of an opened Device is ErrContextReset, what it made can be freed, and a Device opened anew works", Source: measured, run: resetDevice},
		{Name: "reset-memory", Says: "a reset leaves mapped memory alone, and the Driver's own calls work beside a Device that it ended", Source: measured, run: resetMemory},
		{Name: "reset-handles", Says: "streams and events from before a reset are ErrInvalid to a Device opened anew", Source: measured, run: resetHandles},
		{Name: "reset-others", Says: "a reset of one device does not affect the others, which refuse its events", Source: measured, devices: 2, run: resetOthers},
	}
	for i := range rules {
		rules[i].child = true
	}
	return rules
}

// reset resets the context of a device, as another library would.
func (c *check) reset(dev int) {
	c.Helper()
	r, ok := c.d.inner.(ContextResetter)
	if !ok {
		c.skip("the driver under test cannot reset contexts")
	}
	c.must(c.returns("reset", func() error { return r.ResetContext(dev) }), "reset the context of device %d", dev)
}

// ended checks that every call of a Device returns ErrContextReset.
func (c *check) ended(d driver.Device, p driver.Ptr, s driver.Stream, e driver.Event) {
	c.Helper()
	calls := deviceCalls(d, p, s, e)
	for _, name := range slices.Sorted(maps.Keys(calls)) {
		err := c.returns(name, calls[name])
		c.want(err, name+" after the reset", driver.ErrContextReset)
		c.is(err, name+" after the reset", driver.ErrDeviceLost)
	}
}

func resetDevice(c *check) {
	old := c.openDevice(0)
	p, _ := c.chunks(1)
	s := c.newStream(old)
	e := c.newEvent(old, driver.EventTiming)
	c.must(old.Record(e, s), "record")
	pinned, _, err := as[driver.HostAllocator](c, old).AllocHost(4096)
	c.optional(err, "HostAllocator")
	c.reset(0)
	c.ended(old, p, s, e)
	// The new context may have the old one's address.
	d := c.dev(0)
	c.ended(old, p, s, e)
	// Calls that free something work, though the reset has freed it already.
	c.must(old.FreeStream(s), "free the stream")
	c.must(old.FreeEvent(e), "free the event")
	c.must(as[driver.HostAllocator](c, old).FreeHost(pinned), "free pinned memory")
	c.must(old.Close(), "close the device")
	c.must(old.Close(), "close it again")
	c.want(old.Sync(), "sync it afterwards", driver.ErrClosed)
	c.write(d, p, c.gran, 1)
	s = c.stream(d)
	c.fillAll(d, p, 2, s)
	c.sync(d, s)
	c.reads(d, p, c.gran, 2)
}

func resetMemory(c *check) {
	old := c.openDevice(0)
	p, hs := c.chunks(2)
	c.must(old.CopyIn(p, pattern(2*c.gran, 7)), "write")
	c.reset(0)
	c.must(c.d.SyncIfActive(0), "sync by ordinal")
	c.must(c.d.Supports(0, driver.FeatureVMM), "ask for a feature")
	// New memory works too, while no device is open.
	more := c.mapped(c.create(c.gran), driver.AccessReadWrite)
	c.has(p, 0, driver.AccessReadWrite)
	d := c.dev(0)
	c.holds(d, p, pattern(2*c.gran, 7), "mapped memory after the reset")
	c.reads(d, more, c.gran, 0)
	c.unmap(p, c.gran)
	c.release(hs[0])
	c.must(c.d.SyncIfActive(0), "sync by ordinal")
	c.must(old.Close(), "close the device")
	c.reads(d, more, c.gran, 0)
}

func resetHandles(c *check) {
	old := c.openDevice(0)
	p, _ := c.chunks(1)
	s := c.newStream(old)
	e := c.newEvent(old, 0)
	c.must(old.Record(e, s), "record")
	c.reset(0)
	d := c.dev(0)
	// On a card such a handle would crash libcuda.
	mine, good := c.stream(d), c.event(d, 0)
	for _, gone := range []driver.Stream{s, old.CopyStream()} {
		c.want(d.Fill(p, 1, 1, 16, gone), "fill on a stream that is gone", driver.ErrInvalid)
		c.want(d.SyncStream(gone), "sync it", driver.ErrInvalid)
		c.want(errOf(d.Capturing(gone)), "ask whether it is captured", driver.ErrInvalid)
		c.want(d.Record(good, gone), "record on it", driver.ErrInvalid)
		c.want(d.Wait(gone, good), "make it wait", driver.ErrInvalid)
	}
	c.want(d.Wait(mine, e), "wait for an event that is gone", driver.ErrInvalid)
	c.want(d.SyncEvent(e), "sync it", driver.ErrInvalid)
	c.want(d.Record(e, mine), "record it", driver.ErrInvalid)
	c.want(errOf(d.Done(e)), "ask for it", driver.ErrInvalid)
	c.must(old.FreeStream(s), "free the stream")
	c.must(old.FreeEvent(e), "free the event")
	c.must(old.Close(), "close the device")
	c.sync(d, mine)
}

func resetOthers(c *check) {
	old, other := c.openDevice(0), c.dev(1)
	p, _ := c.chunks(1)
	c.access(p, c.gran, grant(1, driver.AccessReadWrite))
	e := c.newEvent(old, 0)
	c.must(old.Record(e, old.CopyStream()), "record")
	s := c.stream(other)
	c.waitFor(other, s, e)
	c.reset(0)
	c.fillAll(other, p, 3, s)
	c.sync(other, s)
	c.reads(other, p, c.gran, 3)
	c.want(other.Wait(s, e), "wait for an event that is gone", driver.ErrInvalid)
	c.want(other.SyncEvent(e), "sync it", driver.ErrInvalid)
	c.must(old.FreeEvent(e), "free the event")
	c.must(old.Close(), "close the device")
	c.must(other.Sync(), "sync the other device")
}
