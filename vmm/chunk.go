package vmm

import (
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/cuvmm/cuvmm/internal/errtext"
	"github.com/cuvmm/cuvmm/internal/history"
	"github.com/cuvmm/cuvmm/internal/memsample"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/internal/bank"
	"github.com/cuvmm/cuvmm/vmm/internal/slots"
)

// Chunk is one piece of physical memory, which is mapped, unmapped and shared as a whole. A mapping keeps
// the memory by itself, so a Chunk may be closed as soon as it is mapped. Safe for concurrent use. The
// caller must Close it.
type Chunk struct {
	mem    *memory
	dev    *Device // lists it as open
	closed atomic.Bool
}

// Create allocates size bytes of physical memory, a multiple of the granularity. Prop.Location's zero
// value is this device. The caller must Close the Chunk.
func (d *Device) Create(size uint64, p Prop) (c *Chunk, err error) {
	m, err := d.createForCaller("create chunk", size, p, &memsample.Source{Kind: memsample.Chunk})
	if err == nil {
		c, err = d.chunk(m, nil)
	}
	return c, d.wrap("create chunk", 0, size, err)
}

// CreateOrReuse is Create, but uses cached memory of that size and property if there is some; see
// SetReleaseThreshold. Such memory keeps what was written there before. The caller must Close the Chunk,
// which may put the memory back into the cache.
func (d *Device) CreateOrReuse(size uint64, p Prop) (c *Chunk, err error) {
	m, err := d.reuseOrCreate("create or reuse chunk", size, p, forCaller, &memsample.Source{Kind: memsample.Chunk})
	if err == nil {
		c, err = d.chunk(m, nil)
	}
	return c, d.wrap("create or reuse chunk", 0, size, err)
}

// createPart is door.VMM.CreatePart, or TryCreatePart if it is not for a caller that waits.
func (d *Device) createPart(size uint64, p Prop, from *memsample.Source, purpose purpose) (*Chunk, error) {
	m, err := d.reuseOrCreate("create chunk", size, p, purpose, from)
	switch {
	case err == nil:
		return &Chunk{mem: m, dev: d}, nil
	case purpose == forCaller:
		return nil, d.wrapNamed("create chunk", from.Name, 0, size, err)
	}
	return nil, d.opError("try to create chunk", from.Name, 0, size, err)
}

// reuseOrCreate takes cached memory, or creates some, for op.
func (d *Device) reuseOrCreate(op string, size uint64, p Prop, purpose purpose, from *memsample.Source) (m *memory, err error) {
	if err := d.checkOpen(); err != nil {
		return nil, err
	}
	if m := d.account.Cached(d.resolve(p), size, size, from); m != nil {
		d.counters.Count(1, &d.counters.Hits)
		return m, nil
	}
	if purpose == forCaller {
		return d.createForCaller(op, size, p, from)
	}
	m, _, err = d.account.Create(size, d.resolve(p), purpose, from)
	return m, err
}

// createForCaller creates memory for op, for which other memory may have to be released.
func (d *Device) createForCaller(op string, size uint64, p Prop, from *memsample.Source) (m *memory, err error) {
	need := func(err error) error { return d.opError(op, from.Name, 0, size, err) }
	err = withMemory(need, func() (short *bank.Bank, err error) {
		if err = d.checkOpen(); err != nil {
			return nil, err
		}
		m, short, err = d.account.Create(size, d.resolve(p), forCaller, from)
		return short, err
	})
	return m, err
}

// resolve replaces LocationOwner by this device.
func (d *Device) resolve(p Prop) Prop {
	if p.Location.Kind == LocationOwner {
		p.Location = d.location
	}
	return p
}

// chunk makes a Chunk of a reference to m, which it takes over. made is who made it; nil: the caller.
func (d *Device) chunk(m *memory, made []uintptr) (*Chunk, error) {
	c := &Chunk{mem: m, dev: d}
	if err := d.trackMade(c, "chunk", made); err != nil {
		return nil, errtext.Join(err, "and giving the memory back", m.Release())
	}
	return c, nil
}

// Import makes a Chunk of a file descriptor that another process, or this one, exported. Import does not
// take fd; close it when Import returns. The size comes from the exporter; a wrong size may only show
// when the Chunk is mapped, as ErrInvalid. The caller must Close the Chunk.
func (d *Device) Import(fd int, size uint64, p Prop) (*Chunk, error) {
	return d.importMade(fd, size, p, nil)
}

// importMade is door.VMM.ImportMade.
func (d *Device) importMade(fd int, size uint64, p Prop, made []uintptr) (*Chunk, error) {
	c, err := d.importChunk(size, p, func(p Prop) (driver.Handle, error) { return d.drv.Import(fd, size, p) }, made)
	return c, d.wrap("import chunk", 0, size, err)
}

// importChunk makes a Chunk of a handle that take imports. Its location is where the
// memory really is, whatever p says.
func (d *Device) importChunk(size uint64, p Prop, take func(Prop) (driver.Handle, error), made []uintptr) (*Chunk, error) {
	if err := d.checkOpen(); err != nil {
		return nil, err
	}
	p = d.resolve(p)
	h, err := take(p)
	if err != nil {
		return nil, err
	}
	m := d.account.Imported(h, size, p, &memsample.Source{Kind: memsample.Import, Made: made})
	if made == nil {
		d.history.Add(history.Import, 0, size, 0, "")
	} else {
		d.history.AddMadeAt(history.Import, 0, size, "", func() []uintptr { return made })
	}
	actual, err := d.drv.Properties(h)
	if err != nil {
		return nil, errtext.Join(err, "and giving the memory back", m.Release())
	}
	m.Prop.Location = actual.Location
	return d.chunk(m, made)
}

// Size is the chunk's size in bytes.
func (c *Chunk) Size() uint64 {
	if c == nil || c.mem == nil {
		return 0
	}
	return c.mem.Size
}

// Properties returns the driver's record of the memory: where it is, how it can be exported, and what it
// can do. Compress is true only if the memory is compressed, whatever Create was asked for. Share is 0
// for imported memory. Properties calls the driver and returns its errors, ErrInvalid for a nil Chunk, or
// ErrClosed after Close. Safe for concurrent use.
func (c *Chunk) Properties() (Prop, error) {
	if c == nil || c.mem == nil {
		return Prop{}, &OpError{Op: "properties of chunk", Err: fmt.Errorf("%w: no chunk", ErrInvalid)}
	}
	m, err := c.retain()
	if err != nil {
		return Prop{}, c.dev.wrap("properties of chunk", 0, c.mem.Size, err)
	}
	defer m.Release() //nolint:errcheck // what the driver refuses is counted as quarantined
	p, err := c.dev.drv.Properties(m.Handle)
	return p, c.dev.wrap("properties of chunk", 0, m.Size, err)
}

// Export returns a new file descriptor of the memory, which keeps the memory alive. It returns ErrInvalid
// if the chunk was not created with ShareFD. The caller must close fd.
func (c *Chunk) Export() (fd int, err error) {
	if c == nil || c.mem == nil {
		return -1, &OpError{Op: "export chunk", Err: fmt.Errorf("%w: no chunk", ErrInvalid)}
	}
	m, err := c.retain()
	if err != nil {
		return -1, c.dev.wrap("export chunk", 0, c.mem.Size, err)
	}
	defer m.Release() //nolint:errcheck // what the driver refuses is counted as quarantined
	fd, err = c.dev.drv.Export(m.Handle)
	if err != nil {
		return -1, c.dev.wrap("export chunk", 0, m.Size, err)
	}
	c.dev.history.Add(history.Export, 0, m.Size, 0, "")
	return fd, nil
}

// retain returns the memory with a reference that the caller must release. It keeps
// the driver from handing the same handle out again meanwhile.
func (c *Chunk) retain() (*memory, error) {
	if c == nil || c.mem == nil {
		return nil, fmt.Errorf("%w: no chunk", ErrInvalid)
	}
	if c.closed.Load() || !c.mem.Retain() {
		return nil, fmt.Errorf("%w: chunk", ErrClosed)
	}
	return c.mem, nil
}

// Close gives up this reference. The memory goes back when nothing maps it and
// no exported file descriptor is left. Twice is fine, and so is a nil Chunk.
func (c *Chunk) Close() error {
	if c == nil || c.mem == nil || c.closed.Swap(true) {
		return nil
	}
	err := c.mem.Release()
	c.dev.untrack(c)
	return c.dev.wrap("close chunk", 0, c.mem.Size, err)
}

// Freed is Segment.Freed for the chunk's memory, after Close, too.
func (c *Chunk) Freed() (bool, error) {
	if c == nil || c.mem == nil {
		return false, &OpError{Op: "ask for freed memory", Err: fmt.Errorf("%w: no chunk", ErrInvalid)}
	}
	freed, err := c.dev.freed(c.mem)
	return freed, c.dev.wrap("ask for freed memory", 0, c.mem.Size, err)
}

// Segment is one accessible chunk, with its address and its memory, to register or share. For people, a
// Report has a Mapping of every mapped chunk, with its state.
type Segment struct {
	Addr     Ptr
	Size     uint64
	Location Location
	mem      *memory
	dev      *Device
}

// Chunk returns a new reference to the segment's memory, or ErrClosed if that was released. The caller
// must Close it.
func (s Segment) Chunk() (*Chunk, error) {
	if s.mem == nil {
		return nil, &OpError{Op: "take chunk", Err: fmt.Errorf("%w: no segment", ErrInvalid)}
	}
	if !s.mem.Retain() {
		return nil, s.dev.wrap("take chunk", s.Addr, s.Size, fmt.Errorf("%w: memory", ErrClosed))
	}
	c, err := s.dev.chunk(s.mem, nil)
	return c, s.dev.wrap("take chunk", s.Addr, s.Size, err)
}

// Freed reports whether the segment's memory is free: this process has no reference to it, and no other
// process a descriptor or a mapping. In doubt it returns false. It returns ErrNotSupported where the
// driver cannot tell, as on CUDA.
func (s Segment) Freed() (bool, error) {
	if s.mem == nil {
		return false, &OpError{Op: "ask for freed memory", Err: fmt.Errorf("%w: no segment", ErrInvalid)}
	}
	freed, err := s.dev.freed(s.mem)
	return freed, s.dev.wrap("ask for freed memory", s.Addr, s.Size, err)
}

// freed is Segment.Freed.
func (d *Device) freed(m *memory) (bool, error) {
	r, ok := d.drv.(driver.FreeReporter)
	if !ok {
		return false, fmt.Errorf("%w: freed memory", ErrNotSupported)
	}
	freed, err := r.Freed(m.Handle)
	return freed && m.Refs() == 0, err
}

// Segments lists the mapped chunks by address, without those that are retiring. Register or share every
// one of them, not only the first.
func (r *Reservation) Segments() []Segment { return r.AppendSegments(nil) }

// AppendSegments appends what Segments lists to dst, for frequent calls.
func (r *Reservation) AppendSegments(dst []Segment) []Segment {
	if r == nil || r.dev == nil {
		return dst
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	dst = slices.Grow(dst, r.table.Len())
	for _, s := range r.table.All() {
		if s.State == slots.Accessible {
			dst = append(dst, r.segment(s.Off, s.Mem))
		}
	}
	return dst
}

// ExportDMABuf returns a dma-buf of [off, off+size) for a network card or another device: whole pages of
// the host, in several chunks or a part of one. It returns ErrInvalid unless all of it is mapped, from
// chunks that were made with Share or RDMA, or imported. Other chunks may be cached and used again here
// while a card still reads them. It returns ErrNotSupported where the driver has no dma-buf, as on the
// host.
//
// The descriptor keeps the memory alive, but not its mapping: Generation tells whether a registration
// still shows the memory at the addresses. Growth neither ends nor extends it. If a library wants a
// registration for each chunk, export every one of Segments; Watch says when chunks come and go.
// ErrNotSupported is also for a flag that the driver or the device does not know; an export without it
// may work. The caller must close fd.
func (r *Reservation) ExportDMABuf(off, size uint64, flags ...DMABufFlags) (fd int, err error) {
	defer func() { err = r.wrap("export dma-buf", off, size, err) }()
	if r == nil || r.dev == nil {
		return -1, fmt.Errorf("%w: no reservation", ErrInvalid)
	}
	r.mappingMu.Lock() // nothing of it is unmapped meanwhile
	defer r.mappingMu.Unlock()
	if err := r.exportable(off, size); err != nil {
		return -1, err
	}
	return r.dev.exportRange(r.ptr+Ptr(off), size, r.name, flags)
}

// exportRange returns a dma-buf of the memory mapped at p, in a reservation of a name, or -1 and an error.
func (d *Device) exportRange(p Ptr, size uint64, name string, flags []DMABufFlags) (int, error) {
	x, ok := d.drv.(driver.RangeExporter)
	if !ok {
		return -1, fmt.Errorf("%w: dma-buf", ErrNotSupported)
	}
	var all DMABufFlags
	for _, f := range flags {
		all |= f
	}
	fd, err := x.ExportRange(p, size, all)
	if err != nil {
		return -1, err
	}
	d.history.Add(history.Export, uint64(p), size, 0, name)
	return fd, nil
}

// ExportDMABuf is Reservation.ExportDMABuf of the whole segment, for Watch.Mapped, which must not call
// that. Elsewhere the caller must keep the segment mapped, for example by Hold, because the dma-buf shows
// what is mapped at the address. The caller must close fd.
func (s Segment) ExportDMABuf(flags ...DMABufFlags) (fd int, err error) {
	const op = "export dma-buf"
	switch {
	case s.mem == nil:
		return -1, &OpError{Op: op, Err: fmt.Errorf("%w: no segment", ErrInvalid)}
	case !s.mem.Retain():
		return -1, s.dev.wrap(op, s.Addr, s.Size, fmt.Errorf("%w: memory", ErrClosed))
	}
	defer s.mem.Release() //nolint:errcheck // what the driver refuses is counted as quarantined
	if s.mem.Cacheable.Load() {
		return -1, s.dev.wrap(op, s.Addr, s.Size, errCacheable)
	}
	fd, err = s.dev.exportRange(s.Addr, s.Size, "", flags)
	return fd, s.dev.wrap(op, s.Addr, s.Size, err)
}

var errCacheable = fmt.Errorf("%w: the chunk was made without Share or RDMA", ErrInvalid)

// exportable is nil if [off, off+size) is mapped and none of it is cacheable.
func (r *Reservation) exportable(off, size uint64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.checkOpen(); err != nil {
		return err
	}
	end := off + size
	switch {
	case end < off || end > r.size:
		return r.outOfBounds(off, size)
	case size == 0:
		return fmt.Errorf("%w: a size of 0", ErrInvalid)
	}
	// Slot by slot, since a hole, a quarantined slot and a cacheable chunk each have their
	// own error.
	at := off
	for _, s := range r.table.In(off, end) {
		switch {
		case s.Off > at:
			return fmt.Errorf("%w: nothing is mapped at %v", ErrInvalid, r.ptr+Ptr(at))
		case s.State >= slots.Retiring:
			return fmt.Errorf("%w: %v is retiring", ErrBusy, r.ptr+Ptr(s.Off))
		case s.State == slots.Mapped:
			return fmt.Errorf("quarantined: %w", s.Quarantined)
		case s.Mem.Cacheable.Load():
			return fmt.Errorf("%v: %w", r.ptr+Ptr(s.Off), errCacheable)
		}
		at = s.End()
	}
	if at < end {
		return fmt.Errorf("%w: nothing is mapped at %v", ErrInvalid, r.ptr+Ptr(at))
	}
	return nil
}

// ExportDMABuf is Reservation.ExportDMABuf, for a Range that was made with Share
// or RDMA. Up to Cap, it need not lie below Len.
func (g *Range) ExportDMABuf(off, size uint64, flags ...DMABufFlags) (fd int, err error) {
	return g.res().ExportDMABuf(off, size, flags...)
}

// ExportFabric returns the chunk's name in the fabric, by which other machines can import it. Unlike a
// descriptor, the name keeps nothing alive, and any process that knows it can import the memory. It
// returns ErrInvalid if the chunk was not created with ShareFabric.
func (c *Chunk) ExportFabric() ([64]byte, error) {
	const op = "export chunk to the fabric"
	if c == nil || c.mem == nil {
		return [64]byte{}, &OpError{Op: op, Err: fmt.Errorf("%w: no chunk", ErrInvalid)}
	}
	m, err := c.retain()
	if err != nil {
		return [64]byte{}, c.dev.wrap(op, 0, c.mem.Size, err)
	}
	defer m.Release() //nolint:errcheck // what the driver refuses is counted as quarantined
	x, ok := c.dev.drv.(driver.FabricSharer)
	if !ok {
		return [64]byte{}, c.dev.wrap(op, 0, m.Size, errNoFabric)
	}
	name, err := x.ExportFabric(m.Handle)
	if err == nil {
		c.dev.history.Add(history.Export, 0, m.Size, 0, "")
	}
	return name, c.dev.wrap(op, 0, m.Size, err)
}

var errNoFabric = fmt.Errorf("%w: fabric handles", ErrNotSupported)

// ImportFabric makes a Chunk of a name that ExportFabric gave, here or on another machine of the fabric.
// The size is as for Import. The caller must Close the Chunk.
func (d *Device) ImportFabric(name [64]byte, size uint64, p Prop) (*Chunk, error) {
	c, err := d.importChunk(size, p, func(p Prop) (driver.Handle, error) {
		x, ok := d.drv.(driver.FabricSharer)
		if !ok {
			return 0, errNoFabric
		}
		return x.ImportFabric(name, size, p)
	}, nil)
	return c, d.wrap("import chunk from the fabric", 0, size, err)
}

func (c *Chunk) describe(kind string) string { return kind + " of " + errtext.Size(c.mem.Size) }

func (c *Chunk) where() (p Ptr, size uint64) { return 0, c.mem.Size }
