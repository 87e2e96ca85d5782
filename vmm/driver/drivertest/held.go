package drivertest

import (
	"fmt"
	"maps"
	"slices"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// held is what a case has taken and not yet freed.
type held struct {
	reserved map[driver.Ptr]uint64
	mapped   map[driver.Ptr]uint64
	handles  map[driver.Handle]bool
	devices  map[int]driver.Device
	streams  []owned[driver.Stream]
	events   []owned[driver.Event]
	pinned   []owned[driver.Ptr]
	gates    []*gate
	modules  []owned[driver.Module]
	graphs   []owned[driver.Graph]
	execs    []owned[driver.GraphExec]
	pools    []owned[driver.Pool]
	plain    []owned[driver.Ptr]
}

// owned is a stream, an event, memory, a module or a graph of one device.
type owned[T any] struct {
	dev driver.Device
	it  T
}

func newHeld() held {
	return held{
		reserved: make(map[driver.Ptr]uint64),
		mapped:   make(map[driver.Ptr]uint64),
		handles:  make(map[driver.Handle]bool),
		devices:  make(map[int]driver.Device),
	}
}

func (c *check) reserve(size uint64) driver.Ptr {
	c.Helper()
	p := prompted(c, "reserve", func() (driver.Ptr, error) { return c.d.Reserve(size, 0) }).must(c, "reserve %d bytes", size)
	c.held.reserved[p] = size
	return p
}

func (c *check) free(p driver.Ptr) {
	c.Helper()
	c.must(c.prompt("free", func() error { return c.d.Free(p, c.held.reserved[p]) }), "free %v", p)
	delete(c.held.reserved, p)
}

// create creates private memory of device 0.
func (c *check) create(size uint64) driver.Handle {
	c.Helper()
	return c.createAs(size, private(0))
}

func (c *check) createAs(size uint64, p driver.Prop) driver.Handle {
	c.Helper()
	h := prompted(c, "create", func() (driver.Handle, error) { return c.d.Create(size, p) }).must(c, "create %d bytes of %+v", size, p)
	c.held.handles[h] = true
	return h
}

func (c *check) release(all ...driver.Handle) {
	c.Helper()
	for _, h := range all {
		c.must(c.prompt("release", func() error { return c.d.Release(h) }), "release handle %d", h)
		delete(c.held.handles, h)
	}
}

func (c *check) mapHandle(p driver.Ptr, size uint64, h driver.Handle) {
	c.Helper()
	c.must(c.prompt("map", func() error { return c.d.Map(p, size, h) }), "map handle %d at %v", h, p)
	c.held.mapped[p] = size
}

func (c *check) unmap(p driver.Ptr, size uint64) {
	c.Helper()
	c.must(c.prompt("unmap", func() error { return c.d.Unmap(p, size) }), "unmap %d bytes at %v", size, p)
	for q := range c.held.mapped {
		if q >= p && q < p+driver.Ptr(size) {
			delete(c.held.mapped, q)
		}
	}
}

func (c *check) access(p driver.Ptr, size uint64, who ...driver.Grant) {
	c.Helper()
	c.must(c.prompt("set access", func() error { return c.d.SetAccess(p, size, who) }), "set access %v at %v", who, p)
}

// placed is the address of a handle of one granule, mapped somewhere without access.
func (c *check) placed(h driver.Handle) driver.Ptr {
	c.Helper()
	p := c.reserve(c.gran)
	c.mapHandle(p, c.gran, h)
	return p
}

// mapped is placed with that access for device 0.
func (c *check) mapped(h driver.Handle, a driver.Access) driver.Ptr {
	c.Helper()
	p := c.placed(h)
	c.access(p, c.gran, grant(0, a))
	return p
}

// chunkOn is one granule of a device, mapped with access for that device.
func (c *check) chunkOn(dev int) (driver.Ptr, driver.Handle) {
	c.Helper()
	h := c.createAs(c.gran, private(dev))
	p := c.placed(h)
	c.access(p, c.gran, grant(dev, driver.AccessReadWrite))
	return p, h
}

// chunks reserves addresses for n chunks of one granule each, maps them all,
// and grants device 0 read and write.
func (c *check) chunks(n int) (driver.Ptr, []driver.Handle) {
	c.Helper()
	p := c.reserve(uint64(n) * c.gran)
	hs := make([]driver.Handle, n)
	for i := range hs {
		hs[i] = c.create(c.gran)
		c.mapHandle(c.chunk(p, i), c.gran, hs[i])
	}
	c.access(p, uint64(n)*c.gran, grant(0, driver.AccessReadWrite))
	return p, hs
}

// chunk is the address of the i-th granule after p.
func (c *check) chunk(p driver.Ptr, i int) driver.Ptr { return p + driver.Ptr(uint64(i)*c.gran) }

// dev opens a device once for each case.
func (c *check) dev(n int) driver.Device {
	c.Helper()
	if d, ok := c.held.devices[n]; ok {
		return d
	}
	d := c.openDevice(n)
	c.held.devices[n] = d
	return d
}

// openDevice opens a device for the case to close.
func (c *check) openDevice(n int) driver.Device {
	c.Helper()
	return valueOf(c.d.Open(n)).must(c, "open device %d", n)
}

// newStream is a stream for the case to free.
func (c *check) newStream(d driver.Device) driver.Stream {
	c.Helper()
	return prompted(c, "make a stream", d.NewStream).must(c, "make a stream")
}

func (c *check) stream(d driver.Device) driver.Stream {
	c.Helper()
	s := c.newStream(d)
	c.held.streams = append(c.held.streams, owned[driver.Stream]{d, s})
	return s
}

// onDevice is the run of a Rule that calls f with device 0.
func onDevice(f func(*check, driver.Device)) func(*check) {
	return func(c *check) {
		c.Helper()
		f(c, c.dev(0))
	}
}

// onInterface is the run of a Rule that calls f with device 0 and an optional interface of it.
func onInterface[I any](f func(c *check, d driver.Device, i I)) func(*check) {
	return onDevice(func(c *check, d driver.Device) {
		c.Helper()
		f(c, d, as[I](c, d))
	})
}

// onPair is the run of a Rule that calls f with devices 0 and 1.
func onPair(f func(c *check, d, other driver.Device)) func(*check) {
	return func(c *check) {
		c.Helper()
		f(c, c.dev(0), c.dev(1))
	}
}

// onChunks is the run of a Rule that calls f with device 0 and chunks(n).
func onChunks(n int, f func(*check, driver.Device, driver.Ptr)) func(*check) {
	return onDevice(func(c *check, d driver.Device) {
		c.Helper()
		p, _ := c.chunks(n)
		f(c, d, p)
	})
}

// onStream is the run of a Rule that calls f with device 0, a stream of it, and chunks(n).
func onStream(n int, f func(*check, driver.Device, driver.Stream, driver.Ptr)) func(*check) {
	return onChunks(n, func(c *check, d driver.Device, p driver.Ptr) {
		c.Helper()
		f(c, d, c.stream(d), p)
	})
}

// newEvent is an event for the case to free.
func (c *check) newEvent(d driver.Device, f driver.EventFlags) driver.Event {
	c.Helper()
	return prompted(c, "make an event", func() (driver.Event, error) { return d.NewEvent(f) }).must(c, "make an event")
}

func (c *check) event(d driver.Device, f driver.EventFlags) driver.Event {
	c.Helper()
	e := c.newEvent(d, f)
	c.held.events = append(c.held.events, owned[driver.Event]{d, e})
	return e
}

// as is the device's optional interface I. The wrapper has all of them; if the
// wrapped driver has not, the first call returns ErrNotSupported.
func as[I any](c *check, d driver.Device) I {
	c.Helper()
	i, ok := d.(I)
	if !ok {
		c.Fatalf("%T is not the injecting wrapper", d)
	}
	return i
}

// pin allocates page-locked host memory, or skips the case where there is none.
func (c *check) pin(d driver.Device, n uint64) (driver.Ptr, []byte) {
	c.Helper()
	var p driver.Ptr
	var b []byte
	err := c.prompt("pin memory", func() (err error) { p, b, err = as[driver.HostAllocator](c, d).AllocHost(n); return err })
	c.optional(err, "HostAllocator")
	c.held.pinned = append(c.held.pinned, owned[driver.Ptr]{d, p})
	return p, b
}

// giveBack frees what the case still holds, in the order in which a program would,
// and checks that nothing is left. On a lost device memory must be freed too; what
// else there is goes with the device.
func (c *check) giveBack() {
	c.Helper()
	// First, because every wait below is for work that a gate may hold back.
	for _, g := range c.held.gates {
		g.open()
	}
	if !c.rule.lost {
		for n, d := range c.held.devices {
			c.atEnd(fmt.Sprintf("sync device %d", n), d.Sync)
		}
		freeAll(c, c.held.execs, "free an executable graph", driver.Grapher.FreeGraphExec)
		freeAll(c, c.held.graphs, "free a graph", driver.Grapher.FreeGraph)
		freeAll(c, c.held.modules, "unload a module", driver.Launcher.UnloadModule)
		freeAll(c, c.held.pools, "destroy a pool", driver.Pooler.DestroyPool)
	}
	freeAll(c, c.held.streams, "free a stream", driver.Device.FreeStream)
	freeAll(c, c.held.events, "free an event", driver.Device.FreeEvent)
	if !c.rule.lost {
		freeAll(c, c.held.pinned, "free pinned memory", driver.HostAllocator.FreeHost)
		freeAll(c, c.held.plain, "free plain memory", driver.Allocator.FreePlain)
	}
	for _, p := range slices.Sorted(maps.Keys(c.held.mapped)) {
		c.atEnd(fmt.Sprintf("unmap %v", p), func() error { return c.d.Unmap(p, c.held.mapped[p]) })
	}
	for h := range c.held.handles {
		c.atEnd(fmt.Sprintf("release handle %d", h), func() error { return c.d.Release(h) })
	}
	for p, size := range c.held.reserved {
		c.atEnd(fmt.Sprintf("free %v", p), func() error { return c.d.Free(p, size) })
	}
	for n, d := range c.held.devices {
		c.atEnd(fmt.Sprintf("close device %d", n), d.Close)
	}
	if !c.rule.lost && !c.unbalanced {
		c.atEnd("count", c.d.Balanced)
	}
}

// atEnd frees something when the case ends.
func (c *check) atEnd(doing string, f func() error) {
	c.Helper()
	if err := c.returns("at the end, "+doing, f); err != nil && !c.Failed() {
		c.Errorf("at the end, %s: %v", doing, err)
	}
}

// freeAll frees all that is there of one kind.
func freeAll[I, T any](c *check, all []owned[T], doing string, free func(I, T) error) {
	c.Helper()
	for _, x := range all {
		c.atEnd(fmt.Sprintf("%s, %v", doing, x.it), func() error { return free(as[I](c, x.dev), x.it) })
	}
}

// gate holds a stream back until open is called.
type gate struct {
	word   []byte
	opened bool
}

// hold queues a closed gate in a stream: later work of the stream runs once the gate
// is open. The case is skipped where streams cannot wait for a word.
func (c *check) hold(d driver.Device, s driver.Stream) *gate {
	c.Helper()
	p, word := c.pin(d, 4)
	storeWord(word, 0)
	g := &gate{word: word}
	c.held.gates = append(c.held.gates, g)
	err := c.prompt("close a gate", func() error { return as[driver.StreamMemOps](c, d).WaitValue(s, p, 1, 4) })
	c.optional(err, "StreamMemOps")
	return g
}

// openAndSync opens a gate and waits for a stream.
func (c *check) openAndSync(g *gate, d driver.Device, s driver.Stream) {
	c.Helper()
	g.open()
	c.sync(d, s)
}

// staysBehind checks that f does not return before the gate is open, and then does.
func (c *check) staysBehind(g *gate, doing string, f func() error) {
	c.Helper()
	returned := make(chan error, 1)
	go func() { returned <- f() }()
	c.stays(returned, doing)
	g.open()
	c.must(c.returns(doing, func() error { return <-returned }), "%s", doing)
}

// open lets the stream go on. It writes the word only once, because the memory may be
// freed afterwards.
func (g *gate) open() {
	if !g.opened {
		g.opened = true
		storeWord(g.word, 1)
	}
}
