//go:build linux

package host

import (
	"cmp"
	"slices"

	"github.com/cuvmm/cuvmm/vmm/driver"
	"golang.org/x/sys/unix"
)

// mapping is one chunk of memory at one place.
type mapping struct {
	base, size uint64
	memory     *memory
	writable   bool            // the kernel would let it be written
	access     []driver.Access // by device ordinal
}

func (m *mapping) end() uint64 { return m.base + m.size }

// Map puts the whole of h at p.
func (d *Driver) Map(p driver.Ptr, size uint64, h driver.Handle) error {
	const verb = "Map"
	if err := d.whole(verb, p, size); err != nil {
		return err
	}
	d.mem.Lock()
	defer d.unlock()
	x, err := d.handle(verb, h)
	if err != nil {
		return err
	}
	if _, err := d.unit(verb, x.memory.home.ordinal); err != nil {
		return err
	}
	if size != x.size || size != x.memory.size {
		return rule(verb, driver.ErrInvalid, "%d bytes is not the size of the memory", size)
	}
	r := d.region(uint64(p))
	if r == nil || r.block != nil || size > r.end()-uint64(p) {
		return rule(verb, driver.ErrInvalid, "%d bytes at %v are not in one reservation", size, p)
	}
	i, exact := r.index(uint64(p))
	if exact || i > 0 && r.maps[i-1].end() > uint64(p) || i < len(r.maps) && r.maps[i].base < uint64(p)+size {
		return rule(verb, driver.ErrInvalid, "something is mapped in [%v, %v)", p, p+driver.Ptr(size))
	}
	m := &mapping{
		base: uint64(p), size: size, memory: x.memory,
		writable: x.writable && !x.memory.sealed,
		access:   make([]driver.Access, len(d.units)),
	}
	extra := r.gaps(i, m.base, m.end())
	if err := d.take(verb, extra); err != nil {
		return err
	}
	if _, err := mmap(m.base, m.size, unix.PROT_NONE, unix.MAP_SHARED|unix.MAP_FIXED, x.memory.fd); err != nil {
		d.give(extra)
		// The kernel may have taken the old mapping away before it failed.
		_, _ = mmap(m.base, m.size, unix.PROT_NONE, nothing|unix.MAP_FIXED, -1)
		return d.fail("mmap", driver.ErrOutOfMemory, err)
	}
	r.maps = slices.Insert(r.maps, i, m)
	m.memory.mapped++
	return nil
}

// Unmap puts nothing back where whole mappings were.
func (d *Driver) Unmap(p driver.Ptr, size uint64) error {
	const verb = "Unmap"
	if err := d.whole(verb, p, size); err != nil {
		return err
	}
	d.mem.Lock()
	defer d.unlock()
	r, i, j, err := d.run(verb, p, size)
	if err != nil {
		return err
	}
	from, to := uint64(p), uint64(p)+size
	// Before the pages go, or what runs would meet the hole and end the
	// process. Should the kernel then refuse, the memory stays, but who had
	// work on it has lost the device all the same.
	d.poison(within(from, to))
	if _, err := mmap(from, size, unix.PROT_NONE, nothing|unix.MAP_FIXED, -1); err != nil {
		return d.fail("mmap", driver.ErrOutOfMemory, err)
	}
	for _, m := range r.maps[i:j] {
		m.memory.mapped--
		d.settle(m.memory)
	}
	r.maps = slices.Delete(r.maps, i, j)
	d.give(j - i - 1 + r.gaps(i, from, to))
	return nil
}

// gaps is how many stretches of nothing lie beside [from, to), which is r.maps[i]
// or would be: the kernel counts each as a mapping.
func (r *region) gaps(i int, from, to uint64) int {
	n := 0
	if left := r.base; i == 0 && left < from || i > 0 && r.maps[i-1].end() < from {
		n++
	}
	if right := r.end(); i == len(r.maps) && to < right || i < len(r.maps) && to < r.maps[i].base {
		n++
	}
	return n
}

// index is where a mapping at p stands or would stand.
func (r *region) index(p uint64) (int, bool) {
	return slices.BinarySearchFunc(r.maps, p, func(m *mapping, p uint64) int { return cmp.Compare(m.base, p) })
}

// over is the mappings that hold [p, p+n), nil unless they hold all of it.
func (r *region) over(p, n uint64) []*mapping {
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

// run finds the whole mappings r.maps[i:j] that [p, p+size) is made of.
func (d *Driver) run(verb string, p driver.Ptr, size uint64) (r *region, i, j int, err error) {
	r = d.region(uint64(p))
	if r == nil || r.block != nil || size > r.end()-uint64(p) {
		return nil, 0, 0, rule(verb, driver.ErrInvalid, "%d bytes at %v are not in one reservation", size, p)
	}
	all := r.over(uint64(p), size)
	if all == nil {
		return nil, 0, 0, rule(verb, driver.ErrInvalid, "%d bytes at %v are not mapped throughout", size, p)
	}
	if all[0].base != uint64(p) || all[len(all)-1].end() != uint64(p)+size {
		return nil, 0, 0, rule(verb, driver.ErrInvalid, "%d bytes at %v take part of a mapping", size, p)
	}
	i, _ = r.index(uint64(p))
	return r, i, i + len(all), nil
}
