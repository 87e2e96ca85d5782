package vmm

import (
	"fmt"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// ExportDMABuf gives a dma-buf of [off, off+size), whole pages of the host, for
// a network card or another device: over several chunks, or a part of one. All
// of it must be mapped, and of chunks that were made with Share or RDMA, or
// imported: others may be kept for later use here while a card still reads them,
// so they are ErrInvalid, and so is a hole. ErrNotSupported where the driver has
// no dma-buf, the host's for one.
//
// The descriptor keeps the memory alive, not what is mapped: Generation says
// whether a registration still shows what lies at the addresses. Growth leaves
// it right and does not extend it. Where a library wants a registration for each
// chunk, every one of Segments has to be exported. The caller must close fd.
func (r *Reservation) ExportDMABuf(off, size uint64) (fd int, err error) {
	fd, err = r.exportDMABuf(off, size)
	return fd, r.fail("export dma-buf", off, size, err)
}

func (r *Reservation) exportDMABuf(off, size uint64) (int, error) {
	if r == nil {
		return -1, fmt.Errorf("%w: no reservation", ErrInvalid)
	}
	epoch := r.copies.begin() // nothing of it is unmapped meanwhile
	defer r.copies.end(epoch)
	if err := r.exportable(off, size); err != nil {
		return -1, err
	}
	x, ok := r.dev.drv().(driver.RangeExporter)
	if !ok {
		return -1, fmt.Errorf("%w: dma-buf", ErrNotSupported)
	}
	fd, err := x.ExportRange(r.ptr+Ptr(off), size)
	if err != nil {
		return -1, err
	}
	return fd, nil
}

// exportable is nil if [off, off+size) is mapped and none of it private.
func (r *Reservation) exportable(off, size uint64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.live(); err != nil {
		return err
	}
	end := off + size
	switch {
	case end < off || end > r.size:
		return fmt.Errorf("%w: [%#x, +%#x) is not within the %s reserved", ErrBounds, off, size, sizeText(r.size))
	case size == 0:
		return fmt.Errorf("%w: a size of 0", ErrInvalid)
	}
	at := off
	for i := r.slotAtLocked(off); i < len(r.slots) && at < end; i++ {
		s := &r.slots[i]
		switch {
		case s.off > at:
			return fmt.Errorf("%w: nothing is mapped at %v", ErrInvalid, r.ptr+Ptr(at))
		case s.state >= retiring:
			return fmt.Errorf("%w: %v is retiring", ErrBusy, r.ptr+Ptr(s.off))
		case s.state == mapped:
			return fmt.Errorf("quarantined: %w", s.quarantined)
		case s.mem.private:
			return fmt.Errorf("%w: the chunk at %v was made without Share or RDMA", ErrInvalid, r.ptr+Ptr(s.off))
		}
		at = s.end()
	}
	if at < end {
		return fmt.Errorf("%w: nothing is mapped at %v", ErrInvalid, r.ptr+Ptr(at))
	}
	return nil
}

// ExportDMABuf is Reservation.ExportDMABuf, for a Range that was made with Share
// or RDMA. Up to Cap, it need not lie below Len.
func (g *Range) ExportDMABuf(off, size uint64) (fd int, err error) {
	return g.res().ExportDMABuf(off, size)
}

// ExportFabric gives the chunk's name in the fabric, by which other machines can
// import it. Unlike a descriptor it keeps nothing alive, and whoever knows it can
// have the memory. It is ErrInvalid for a chunk that was not created with
// ShareFabric.
func (c *Chunk) ExportFabric() ([64]byte, error) {
	const op = "export chunk to the fabric"
	if c == nil {
		return [64]byte{}, &OpError{Op: op, Err: fmt.Errorf("%w: no chunk", ErrInvalid)}
	}
	m, err := c.retain()
	if err != nil {
		return [64]byte{}, c.dev.fail(op, 0, c.mem.size, err)
	}
	defer m.release() //nolint:errcheck // memory that will not go back is counted as stuck
	x, ok := m.dev.drv().(driver.FabricSharer)
	if !ok {
		return [64]byte{}, c.dev.fail(op, 0, m.size, errNoFabric)
	}
	name, err := x.ExportFabric(m.h)
	return name, c.dev.fail(op, 0, m.size, err)
}

var errNoFabric = fmt.Errorf("%w: fabric handles", ErrNotSupported)

// ImportFabric makes a Chunk of a name that ExportFabric gave, here or on another
// machine of the fabric. For the size it is as Import. The caller must Close the
// Chunk.
func (d *Device) ImportFabric(name [64]byte, size uint64, p Prop) (*Chunk, error) {
	c, err := d.importFabric(name, size, p)
	return c, d.fail("import chunk from the fabric", 0, size, err)
}

func (d *Device) importFabric(name [64]byte, size uint64, p Prop) (*Chunk, error) {
	if err := d.live(); err != nil {
		return nil, err
	}
	x, ok := d.drv().(driver.FabricSharer)
	if !ok {
		return nil, errNoFabric
	}
	p = d.resolve(p)
	h, err := x.ImportFabric(name, size, p)
	if err != nil {
		return nil, err
	}
	return d.imported(h, size, p)
}
