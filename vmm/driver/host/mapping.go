//go:build linux

package host

import (
	"cmp"
	"slices"

	"github.com/cuvmm/cuvmm/vmm/driver"
	"golang.org/x/sys/unix"
)

// mapping is one chunk of memory at one address.
type mapping struct {
	base, size uint64
	memory     *memory
	writable   bool            // the kernel allows it to be written
	access     []driver.Access // by device ordinal
	allowed    driver.Access   // what any device may do, so what the page table allows
}

func (m *mapping) end() uint64 { return m.base + m.size }

// Map maps the whole of h at p.
func (d *Driver) Map(p driver.Ptr, size uint64, h driver.Handle) error {
	const verb = "Map"
	if err := d.checkSpan(verb, p, size); err != nil {
		return err
	}
	d.memMu.Lock()
	defer d.unlockAndClose()
	x, err := d.handle(verb, h)
	if err != nil {
		return err
	}
	if _, err := d.state(verb, x.memory.state.ordinal); err != nil {
		return err
	}
	if size != x.size || size != x.memory.size {
		return refuse(verb, driver.ErrInvalid, "%d bytes is not the size of the memory", size)
	}
	r := d.region(uint64(p))
	if r == nil || r.block != nil || size > r.end()-uint64(p) {
		return refuse(verb, driver.ErrInvalid, "%d bytes at %v are not in one reservation", size, p)
	}
	i, exact := r.index(uint64(p))
	if exact || i > 0 && r.maps[i-1].end() > uint64(p) || i < len(r.maps) && r.maps[i].base < uint64(p)+size {
		return refuse(verb, driver.ErrInvalid, "something is mapped in [%v, %v)", p, p+driver.Ptr(size))
	}
	m := &mapping{
		base: uint64(p), size: size, memory: x.memory,
		writable: x.writable && !x.memory.sealed,
		access:   make([]driver.Access, len(d.states)),
	}
	left, here, right := r.seen(i-1), seen{m, driver.AccessNone}, r.seen(i)
	more := r.border(left, here) + r.border(here, right) - r.border(left, right)
	return d.changeMappings(verb, max(more, 0), more, forMore, func() error {
		if _, err := mmap(m.base, m.size, unix.PROT_NONE, unix.MAP_SHARED|unix.MAP_FIXED, x.memory.fd, x.memory.part.off); err != nil {
			// The kernel may have removed the old mapping before it failed.
			_, _ = mmap(m.base, m.size, unix.PROT_NONE, noMemory|unix.MAP_FIXED, -1, 0)
			return d.fail("mmap", driver.ErrOutOfMemory, err)
		}
		r.maps = slices.Insert(r.maps, i, m)
		m.memory.mapped++
		return nil
	})
}

// Unmap replaces whole mappings by addresses without memory.
func (d *Driver) Unmap(p driver.Ptr, size uint64) error {
	const verb = "Unmap"
	if err := d.checkSpan(verb, p, size); err != nil {
		return err
	}
	d.memMu.Lock()
	defer d.unlockAndClose()
	r, i, j, err := d.wholeMappings(verb, p, size)
	if err != nil {
		return err
	}
	more := r.border(r.seen(i-1), r.seen(j)) - r.borders(i, j)
	return d.changeMappings(verb, max(more, 0), more, forLess, func() error {
		from, to := uint64(p), uint64(p)+size
		// Before the pages go, because running work would fault and end the process. If
		// the kernel then refuses, the memory stays, but work on it has lost the devices
		// all the same.
		d.loseIfUsed(within(from, to))
		if _, err := mmap(from, size, unix.PROT_NONE, noMemory|unix.MAP_FIXED, -1, 0); err != nil {
			return d.fail("mmap", driver.ErrOutOfMemory, err)
		}
		for _, m := range r.maps[i:j] {
			m.memory.mapped--
			d.freeIfUnused(m.memory)
		}
		r.maps = slices.Delete(r.maps, i, j)
		return nil
	})
}

// index is the index of a mapping at p, or where it would be inserted.
func (r *region) index(p uint64) (int, bool) {
	return slices.BinarySearchFunc(r.maps, p, func(m *mapping, p uint64) int { return cmp.Compare(m.base, p) })
}

// covering is the mappings that cover [p, p+n), or nil if not all of it is mapped.
func (r *region) covering(p, n uint64) []*mapping {
	i, exact := r.index(p)
	if !exact {
		i--
	}
	if i < 0 || p >= r.maps[i].end() {
		return nil
	}
	j := i + 1
	for r.maps[j-1].end()-p < n {
		if j == len(r.maps) || r.maps[j].base != r.maps[j-1].end() {
			return nil
		}
		j++
	}
	return r.maps[i:j]
}

// wholeMappings finds the mappings r.maps[i:j] that [p, p+size) consists of.
func (d *Driver) wholeMappings(verb string, p driver.Ptr, size uint64) (r *region, i, j int, err error) {
	r = d.region(uint64(p))
	if r == nil || r.block != nil || size > r.end()-uint64(p) {
		return nil, 0, 0, refuse(verb, driver.ErrInvalid, "%d bytes at %v are not in one reservation", size, p)
	}
	all := r.covering(uint64(p), size)
	if all == nil {
		return nil, 0, 0, refuse(verb, driver.ErrInvalid, "%d bytes at %v are not mapped throughout", size, p)
	}
	if all[0].base != uint64(p) || all[len(all)-1].end() != uint64(p)+size {
		return nil, 0, 0, refuse(verb, driver.ErrInvalid, "%d bytes at %v take part of a mapping", size, p)
	}
	i, _ = r.index(uint64(p))
	return r, i, i + len(all), nil
}
