package vmm

import (
	"fmt"
	"sync/atomic"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// memory is one piece of physical memory and the number of those who hold on to
// it: Chunks and mappings. The last one to drop it releases it.
type memory struct {
	dev     *Device
	h       driver.Handle
	size    uint64
	prop    Prop
	private bool // made here, and nothing outside this process can have it
	created bool // counts against the limit
	refs    atomic.Int64
}

// create makes memory with one reference. The property is resolved already.
// Where memory has run out and somebody waits for it, what is kept goes and it
// tries again.
func (d *Device) create(size uint64, p Prop, awaited bool) (m *memory, err error) {
	err = d.state.retryAfterRelease(awaited, func() (err error) {
		m, err = d.createOnce(size, p)
		return err
	})
	return m, err
}

func (d *Device) createOnce(size uint64, p Prop) (*memory, error) {
	if err := d.state.charge(size); err != nil {
		return nil, err
	}
	h, err := d.drv().Create(size, p)
	if err != nil {
		d.state.discharge(size)
		return nil, err
	}
	m := d.own(h, size, p)
	// A network card may go on reading memory that it was shown.
	m.created, m.private = true, p.Share == 0 && !p.RDMA
	d.counters.count(&d.counters.counts.Creates, 1)
	return m, nil
}

func (d *Device) own(h driver.Handle, size uint64, p Prop) *memory {
	m := &memory{dev: d, h: h, size: size, prop: p}
	m.refs.Store(1)
	d.counters.committed.add(size)
	return m
}

// hold adds a reference; false if the memory is gone already.
func (m *memory) retain() bool {
	for {
		n := m.refs.Load()
		if n == 0 {
			return false
		}
		if m.refs.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// drop takes a reference away. The last one gives the memory to the cache, or
// back to the driver.
func (m *memory) release() error {
	if m.refs.Add(-1) > 0 || m.dev.cacheMemory(m) {
		return nil
	}
	return m.free()
}

// dropForGood is drop that never leaves the memory in the cache.
func (m *memory) releaseUncached() error {
	if m.refs.Add(-1) > 0 {
		return nil
	}
	return m.free()
}

// giveBack releases memory that nobody uses. What the driver will not take back
// is the device's from then on: counted as stuck and offered again by Trim, by
// growth that runs out of memory, and by Device.Close.
func (m *memory) free() error {
	err := m.releaseToDriver()
	if err != nil {
		d := m.dev
		d.counters.quarantined.add(m.size)
		d.mu.Lock()
		defer d.mu.Unlock()
		d.quarantined = append(d.quarantined, m)
	}
	return err
}

// releaseAgain offers the driver again what it would not take back.
func (d *Device) releaseQuarantined() (failed error) {
	d.mu.Lock()
	all := d.quarantined
	d.quarantined = nil
	d.mu.Unlock()
	for _, m := range all {
		d.counters.quarantined.sub(m.size)
		failed = also(failed, "and", m.free())
	}
	return failed
}

func (m *memory) releaseToDriver() error {
	if err := m.dev.drv().Release(m.h); err != nil {
		return err
	}
	d := m.dev
	d.counters.committed.sub(m.size)
	d.counters.count(&d.counters.counts.Releases, 1)
	d.counters.released.Add(m.size)
	if m.created {
		d.state.discharge(m.size)
	}
	d.state.released.Add(m.size)
	return nil
}

// Chunk is one piece of physical memory: what is mapped, unmapped and shared as
// a whole. A mapping holds the memory by itself, so a Chunk may be closed as
// soon as it is mapped. Safe for concurrent use. The caller must Close it.
type Chunk struct {
	mem    *memory
	dev    *Device // who lists it as open
	closed atomic.Bool
}

// Create takes size bytes of physical memory, a multiple of the granularity.
// Prop.Location's zero value is this device. The caller must Close the Chunk.
func (d *Device) Create(size uint64, p Prop) (*Chunk, error) {
	if err := d.live(); err != nil {
		return nil, d.fail("create chunk", 0, size, err)
	}
	m, err := d.create(size, d.resolve(p), true)
	if err != nil {
		return nil, d.fail("create chunk", 0, size, err)
	}
	c, err := d.chunk(m)
	return c, d.fail("create chunk", 0, size, err)
}

// chunk makes a Chunk of a reference to m, which it takes over.
func (d *Device) chunk(m *memory) (*Chunk, error) {
	c := &Chunk{mem: m, dev: d}
	if err := d.track(c, "chunk"); err != nil {
		return nil, also(err, "and giving the memory back", m.release())
	}
	return c, nil
}

// Import makes a Chunk of a file descriptor that another process, or this one,
// exported. Import does not take fd; close it when Import returns. The size is
// the exporter's word: a wrong one may only show when the Chunk is mapped, as
// ErrInvalid. The caller must Close the Chunk.
func (d *Device) Import(fd int, size uint64, p Prop) (*Chunk, error) {
	if err := d.live(); err != nil {
		return nil, d.fail("import chunk", 0, size, err)
	}
	p = d.resolve(p)
	h, err := d.drv().Import(fd, size, p)
	if err != nil {
		return nil, d.fail("import chunk", 0, size, err)
	}
	c, err := d.imported(h, size, p)
	return c, d.fail("import chunk", 0, size, err)
}

// imported makes a Chunk of a handle that was imported, at home where its memory
// really is.
func (d *Device) imported(h driver.Handle, size uint64, p Prop) (*Chunk, error) {
	m := d.own(h, size, p)
	home, err := d.drv().Location(h)
	if err != nil {
		return nil, also(err, "and giving the memory back", m.release())
	}
	m.prop.Location = home
	return d.chunk(m)
}

// Size is the chunk's size in bytes.
func (c *Chunk) Size() uint64 {
	if c == nil {
		return 0
	}
	return c.mem.size
}

// Location is where the memory lives.
func (c *Chunk) Location() Location {
	if c == nil {
		return Location{}
	}
	return c.mem.prop.Location
}

// Export gives a new file descriptor of the memory, which keeps the memory
// alive. It is ErrInvalid for a chunk that was not created with ShareFD. The
// caller must close it.
func (c *Chunk) Export() (fd int, err error) {
	if c == nil {
		return -1, &OpError{Op: "export chunk", Err: fmt.Errorf("%w: no chunk", ErrInvalid)}
	}
	m, err := c.retain()
	if err != nil {
		return -1, c.dev.fail("export chunk", 0, c.mem.size, err)
	}
	defer m.release() //nolint:errcheck // memory that will not go back is counted as stuck
	fd, err = m.dev.drv().Export(m.h)
	if err != nil {
		return -1, c.dev.fail("export chunk", 0, m.size, err)
	}
	return fd, nil
}

// hold gives the memory with a reference that the caller must drop. It keeps
// the driver from handing the same handle out again meanwhile.
func (c *Chunk) retain() (*memory, error) {
	if c == nil {
		return nil, fmt.Errorf("%w: no chunk", ErrInvalid)
	}
	if c.closed.Load() || !c.mem.retain() {
		return nil, fmt.Errorf("%w: chunk", ErrClosed)
	}
	return c.mem, nil
}

// Close gives up this reference. The memory goes back when nothing maps it and
// no exported file descriptor is left. Twice is fine, and so is a nil Chunk.
func (c *Chunk) Close() error {
	if c == nil || c.closed.Swap(true) {
		return nil
	}
	err := c.mem.release()
	c.dev.untrack(c)
	return c.dev.fail("close chunk", 0, c.mem.size, err)
}
