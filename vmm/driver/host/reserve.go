//go:build linux

package host

import (
	"cmp"
	"math/bits"
	"slices"

	"github.com/cuvmm/cuvmm/vmm/driver"
	"golang.org/x/sys/unix"
)

// region is a span of addresses that the driver owns: a reservation, or a
// block of plain or pinned memory.
type region struct {
	base, size uint64
	maps       []*mapping // what is mapped in a reservation, by base
	block      *block     // nil for a reservation

	file *sparse // that a block of this process lies in; nil: none
	off  uint64
}

func (r *region) end() uint64 { return r.base + r.size }

// Reserve maps addresses without access.
func (d *Driver) Reserve(size, align uint64) (driver.Ptr, error) {
	const verb = "Reserve"
	if err := d.checkSpan(verb, 0, size); err != nil {
		return 0, err
	}
	if align != 0 && bits.OnesCount64(align) != 1 {
		return 0, refuse(verb, driver.ErrInvalid, "alignment %d is no power of two", align)
	}
	align = max(align, d.granularity)

	d.memMu.Lock()
	defer d.unlockAndClose()
	if align > addressLimit {
		return 0, refuse(verb, driver.ErrAddressSpace, "%d bytes aligned to %d", size, align)
	}
	base, err := d.takeSpan(verb, size, driver.ErrAddressSpace, func() (uint64, error) { return reserve(size, align) })
	if err != nil {
		return 0, err
	}
	d.insert(&region{base: base, size: size})
	return driver.Ptr(base), nil
}

// takeSpan has f map size bytes in one mapping. Addresses and mappings are counted before the
// kernel is asked: at its own limits Go's heap could not grow. If there are no addresses, that is
// the error none. The caller holds memMu.
func (d *Driver) takeSpan(verb string, size uint64, none error, f func() (uint64, error)) (uint64, error) {
	if !process.takeAddresses(size) {
		return 0, refuse(verb, none, "%d bytes; the process may have addresses for %d in all", size, uint64(addressLimit))
	}
	if err := d.takeMappings(verb, 1, forMore); err != nil {
		process.returnAddresses(size)
		return 0, err
	}
	base, err := f()
	if err != nil {
		d.returnSpan(size)
		return 0, d.fail("mmap", none, err)
	}
	return base, nil
}

// returnSpan counts that a span of takeSpan is unmapped.
func (d *Driver) returnSpan(size uint64) {
	d.returnMappings(1)
	process.returnAddresses(size)
}

// noMemory is how addresses without memory are mapped.
const noMemory = unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_NORESERVE

// reserve maps size bytes without memory at a multiple of align.
func reserve(size, align uint64) (uint64, error) {
	base, err := mmap(0, size, unix.PROT_NONE, noMemory, -1, 0)
	if err != nil || base%align == 0 {
		return base, err
	}
	if err := munmap(base, size); err != nil {
		return 0, err
	}
	// Map more than that and unmap what is too much on either side.
	base, err = mmap(0, size+align, unix.PROT_NONE, noMemory, -1, 0)
	if err != nil {
		return 0, err
	}
	at := (base + align - 1) / align * align
	if at > base {
		if err := munmap(base, at-base); err != nil {
			_ = munmap(base, size+align)
			return 0, err
		}
	}
	if err := munmap(at+size, base+align-at); err != nil {
		_ = munmap(at, base+size+align-at)
		return 0, err
	}
	return at, nil
}

// Free unmaps a reservation.
func (d *Driver) Free(p driver.Ptr, size uint64) error {
	const verb = "Free"
	if err := d.checkSpan(verb, p, size); err != nil {
		return err
	}
	d.memMu.Lock()
	defer d.unlockAndClose()
	r := d.region(uint64(p))
	if r == nil || r.block != nil || r.base != uint64(p) || r.size != size {
		return refuse(verb, driver.ErrInvalid, "%d bytes at %v were not reserved so", size, p)
	}
	if n := len(r.maps); n > 0 {
		return refuse(verb, driver.ErrInvalid, "%d mappings are left at %v", n, p)
	}
	if err := munmap(r.base, r.size); err != nil {
		return d.fail("munmap", driver.ErrOutOfMemory, err)
	}
	d.remove(r)
	d.returnSpan(size)
	return nil
}

// region is the one that p lies in, nil if none. The caller holds memMu.
func (d *Driver) region(p uint64) *region {
	i, exact := slices.BinarySearchFunc(d.regions, p, func(r *region, p uint64) int { return cmp.Compare(r.base, p) })
	if !exact {
		i--
	}
	if i < 0 || p >= d.regions[i].end() {
		return nil
	}
	return d.regions[i]
}

func (d *Driver) insert(r *region) {
	i, _ := slices.BinarySearchFunc(d.regions, r.base, func(r *region, p uint64) int { return cmp.Compare(r.base, p) })
	d.regions = slices.Insert(d.regions, i, r)
}

func (d *Driver) remove(r *region) {
	i := slices.Index(d.regions, r)
	d.regions = slices.Delete(d.regions, i, i+1)
}

// HostBytes is mapped memory as a slice.
func (d *Driver) HostBytes(p driver.Ptr, n uint64) ([]byte, error) {
	const verb = "HostBytes"
	d.memMu.RLock()
	defer d.memMu.RUnlock()
	r := d.region(uint64(p))
	if r == nil || n > r.end()-uint64(p) {
		return nil, refuse(verb, driver.ErrInvalid, "%d bytes at %v are not in one reservation", n, p)
	}
	if n > 0 && r.block == nil && r.covering(uint64(p), n) == nil {
		return nil, refuse(verb, driver.ErrInvalid, "%d bytes at %v are not mapped throughout", n, p)
	}
	return bytesAt(uint64(p), n), nil
}
