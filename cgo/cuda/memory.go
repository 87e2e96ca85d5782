//go:build cgo && linux

package cuda

// #include "shims.h"
import "C"

import (
	"math"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// prop is p as CUDA wants it, on a device that is there and not lost.
func (d *Driver) prop(call string, p driver.Prop) (c C.CUmemAllocationProp, err error) {
	switch p.Location.Kind {
	case driver.LocationDevice:
		if err := d.on(call, p.Location.ID); err != nil {
			return c, err
		}
		c.location._type = C.CU_MEM_LOCATION_TYPE_DEVICE
	case driver.LocationHostNUMA:
		c.location._type = C.CU_MEM_LOCATION_TYPE_HOST_NUMA
	default:
		return c, rule(call, driver.ErrInvalid, "memory on %v", p.Location)
	}
	if p.Location.ID < 0 || p.Location.ID > math.MaxInt32 {
		return c, rule(call, driver.ErrInvalid, "memory on %v", p.Location)
	}
	c.location.id = C.int(p.Location.ID)
	c._type = C.CU_MEM_ALLOCATION_TYPE_PINNED
	if p.Share&driver.ShareReadOnly != 0 {
		return c, rule(call, driver.ErrNotSupported, "a descriptor carries no rights: whoever imports it may write")
	}
	if p.Share&^(driver.ShareFD|driver.ShareFabric) != 0 {
		return c, rule(call, driver.ErrInvalid, "share %#x", uint8(p.Share))
	}
	var types C.CUmemAllocationHandleType
	if p.Share&driver.ShareFD != 0 {
		types |= C.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
	}
	if p.Share&driver.ShareFabric != 0 {
		types |= C.CU_MEM_HANDLE_TYPE_FABRIC
	}
	c.requestedHandleTypes = types
	if p.RDMA {
		c.allocFlags.gpuDirectRDMACapable = 1
	}
	if p.Compress {
		c.allocFlags.compressionType = C.CU_MEM_ALLOCATION_COMP_GENERIC
	}
	return c, nil
}

// Granularity is the unit of sizes and addresses for memory of this kind.
func (d *Driver) Granularity(p driver.Prop) (uint64, error) {
	const call = "cuMemGetAllocationGranularity"
	c, err := d.prop(call, p)
	if err != nil {
		return 0, err
	}
	return d.granularity(call, p, c, false)
}

// GranularityRecommended is what CUDA calls best for performance.
func (d *Driver) GranularityRecommended(p driver.Prop) (uint64, error) {
	const call = "cuMemGetAllocationGranularity"
	c, err := d.prop(call, p)
	if err != nil {
		return 0, err
	}
	return d.granularity(call, p, c, true)
}

// granule is what a granularity is of.
type granule struct {
	p           driver.Prop
	recommended bool
}

// granularity asks once for each kind of memory: it does not change.
func (d *Driver) granularity(call string, p driver.Prop, c C.CUmemAllocationProp, recommended bool) (uint64, error) {
	of := granule{p, recommended}
	if known, ok := d.granularities.Load(of); ok {
		return known.(uint64), nil //nolint:forcetypeassert // nothing else is stored
	}
	option := C.int(0)
	if recommended {
		option = 1
	}
	v := C.cuvmm_granularity(d.api, c, option)
	if v.r == 0 {
		d.granularities.Store(of, uint64(v.v))
	}
	return uint64(v.v), d.fail(call, Result(v.r))
}

// Reserve takes addresses.
func (d *Driver) Reserve(size, align uint64) (driver.Ptr, error) {
	const call = "cuMemAddressReserve"
	v := C.cuvmm_reserve(d.api, C.size_t(size), C.size_t(align))
	return driver.Ptr(v.v), d.fail(call, Result(v.r))
}

// Free gives addresses back.
func (d *Driver) Free(p driver.Ptr, size uint64) error {
	return d.fail("cuMemAddressFree", Result(C.cuvmm_address_free(d.api, C.CUdeviceptr(p), C.size_t(size))))
}

// Create takes physical memory.
func (d *Driver) Create(size uint64, p driver.Prop) (driver.Handle, error) {
	const call = "cuMemCreate"
	c, err := d.prop(call, p)
	if err != nil {
		return 0, err
	}
	v := C.cuvmm_create(d.api, C.size_t(size), c)
	if v.r != 0 {
		err := d.fail(call, Result(v.r))
		if p.Share&driver.ShareFabric != 0 {
			err = ofFabric(err)
		}
		return 0, err
	}
	return d.keep(driver.Handle(v.v), p.Location, p.Share), nil
}

// keep enters a handle into the books.
func (d *Driver) keep(h driver.Handle, home driver.Location, share driver.Share) driver.Handle {
	d.mu.Lock()
	defer d.mu.Unlock()
	k, again := d.handles[h]
	if !again {
		k = handle{home: home.ID, share: share}
		if home.Kind != driver.LocationDevice || home.ID < 0 || home.ID >= d.devices { // or of a device that is hidden here
			k.home = -1
		}
	}
	k.refs++
	d.handles[h] = k
	return h
}

// known finds a handle whose device is not lost.
func (d *Driver) known(call string, h driver.Handle) (handle, error) {
	d.mu.Lock()
	k, ok := d.handles[h]
	d.mu.Unlock()
	if !ok {
		return k, rule(call, driver.ErrInvalid, "no handle %#x", uint64(h))
	}
	if k.home < 0 {
		return k, nil
	}
	return k, d.on(call, k.home)
}

// Release drops a reference. It works on a lost device.
func (d *Driver) Release(h driver.Handle) error {
	const call = "cuMemRelease"
	k, ok := d.drop(h)
	if !ok {
		return rule(call, driver.ErrInvalid, "no handle %#x", uint64(h))
	}
	// Not under the lock: giving back much memory takes long. The number may
	// come back from Create before this returns.
	err := d.fail(call, Result(C.cuvmm_release(d.api, C.CUmemGenericAllocationHandle(h))))
	if err != nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		k.refs = d.handles[h].refs + 1
		d.handles[h] = k
	}
	return err
}

// drop takes a reference off the books.
func (d *Driver) drop(h driver.Handle) (handle, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	k, ok := d.handles[h]
	if !ok {
		return k, false
	}
	if k.refs--; k.refs > 0 {
		d.handles[h] = k
	} else {
		delete(d.handles, h)
	}
	return k, true
}

// Map puts the whole of h at p.
func (d *Driver) Map(p driver.Ptr, size uint64, h driver.Handle) error {
	const call = "cuMemMap"
	if _, err := d.known(call, h); err != nil {
		return err
	}
	return d.fail(call, Result(C.cuvmm_map(d.api, C.CUdeviceptr(p), C.size_t(size), C.CUmemGenericAllocationHandle(h))))
}

// Unmap takes away whole mappings and waits for nothing.
func (d *Driver) Unmap(p driver.Ptr, size uint64) error {
	if err := inside("cuMemUnmap", p, size); err != nil {
		return err
	}
	return d.fail("cuMemUnmap", Result(C.cuvmm_unmap(d.api, C.CUdeviceptr(p), C.size_t(size))))
}

// SetAccess sets what each of who may do with [p, p+size).
func (d *Driver) SetAccess(p driver.Ptr, size uint64, who []driver.Grant) error {
	const call = "cuMemSetAccess"
	if err := inside(call, p, size); err != nil {
		return err
	}
	if len(who) == 0 {
		return rule(call, driver.ErrInvalid, "nobody to set access for")
	}
	var buf [16]C.CUmemAccessDesc
	list := buf[:0]
	for _, g := range who {
		where, err := d.location(call, g.To, g.Access == driver.AccessNone)
		if err != nil {
			return err
		}
		flags, ok := protection(g.Access)
		if !ok {
			return rule(call, driver.ErrInvalid, "access %v", g.Access)
		}
		list = append(list, C.CUmemAccessDesc{location: where, flags: flags})
	}
	return d.fail(call, Result(C.cuvmm_set_access(d.api, C.CUdeviceptr(p), C.size_t(size), &list[0], C.size_t(len(list)))))
}

// inside refuses a span that runs over the end of all addresses, which CUDA
// takes for a success.
func inside(call string, p driver.Ptr, n uint64) error {
	if p+driver.Ptr(n) < p {
		return rule(call, driver.ErrInvalid, "%d bytes at %v", n, p)
	}
	return nil
}

// location is who may touch memory, as CUDA wants it.
func (d *Driver) location(call string, l driver.Location, evenLost bool) (c C.CUmemLocation, err error) {
	switch l.Kind {
	case driver.LocationDevice:
		if err := d.on(call, l.ID); err != nil && !(evenLost && l.ID >= 0 && l.ID < d.devices) {
			return c, err
		}
		c._type = C.CU_MEM_LOCATION_TYPE_DEVICE
	case driver.LocationHostNUMA:
		c._type = C.CU_MEM_LOCATION_TYPE_HOST_NUMA
	default:
		return c, rule(call, driver.ErrInvalid, "access for %v", l)
	}
	if l.ID < 0 || l.ID > math.MaxInt32 {
		return c, rule(call, driver.ErrInvalid, "access for %v", l)
	}
	c.id = C.int(l.ID)
	return c, nil
}

func protection(a driver.Access) (C.CUmemAccess_flags, bool) {
	switch a {
	case driver.AccessNone:
		return C.CU_MEM_ACCESS_FLAGS_PROT_NONE, true
	case driver.AccessRead:
		return C.CU_MEM_ACCESS_FLAGS_PROT_READ, true
	case driver.AccessReadWrite:
		return C.CU_MEM_ACCESS_FLAGS_PROT_READWRITE, true
	}
	return 0, false
}

// Access says what who may do at p.
func (d *Driver) Access(p driver.Ptr, who driver.Location) (driver.Access, error) {
	const call = "cuMemGetAccess"
	where, err := d.location(call, who, false)
	if err != nil {
		return driver.AccessNone, err
	}
	v := C.cuvmm_get_access(d.api, C.CUdeviceptr(p), where)
	switch {
	case v.r != 0:
		return driver.AccessNone, d.fail(call, Result(v.r))
	case v.v == C.CU_MEM_ACCESS_FLAGS_PROT_READ:
		return driver.AccessRead, nil
	case v.v == C.CU_MEM_ACCESS_FLAGS_PROT_READWRITE:
		return driver.AccessReadWrite, nil
	}
	return driver.AccessNone, nil
}

// Export gives a new file descriptor, which the driver makes close-on-exec.
func (d *Driver) Export(h driver.Handle) (int, error) {
	const call = "cuMemExportToShareableHandle"
	k, err := d.known(call, h)
	if err != nil {
		return -1, err
	}
	if k.share&driver.ShareFD == 0 {
		return -1, rule(call, driver.ErrInvalid, "imported, or created without a way to share")
	}
	v := C.cuvmm_export(d.api, C.CUmemGenericAllocationHandle(h))
	if v.r != 0 {
		return -1, d.fail(call, Result(v.r))
	}
	return int(v.v), nil
}

// importable checks the size and kind of memory that is to be imported.
func (d *Driver) importable(call string, size uint64, p driver.Prop) error {
	c, err := d.prop(call, p)
	if err != nil {
		return err
	}
	gran, err := d.granularity(call, p, c, false)
	if err != nil {
		return err
	}
	if size == 0 || size%gran != 0 {
		return rule(call, driver.ErrInvalid, "%d bytes", size)
	}
	return nil
}

// Import makes a handle of an exported descriptor. What the descriptor is of,
// the driver finds out; its size, only Map.
func (d *Driver) Import(fd int, size uint64, p driver.Prop) (driver.Handle, error) {
	const call = "cuMemImportFromShareableHandle"
	if err := d.importable(call, size, p); err != nil {
		return 0, err
	}
	if err := looksExported(fd); err != nil {
		return 0, &driver.CallError{Call: call, Kind: driver.ErrInvalid, Err: err}
	}
	v := C.cuvmm_import(d.api, C.int(fd))
	if v.r != 0 {
		return 0, d.fail(call, Result(v.r))
	}
	return d.keepImported(driver.Handle(v.v))
}

// keepImported enters an imported handle into the books, with the place where
// its memory is: what the importer takes it for may be wrong.
func (d *Driver) keepImported(h driver.Handle) (driver.Handle, error) {
	at, err := d.place(h)
	if err != nil {
		C.cuvmm_release(d.api, C.CUmemGenericAllocationHandle(h)) // whatever it answers, nobody has the handle
		return 0, err
	}
	return d.keep(h, at, 0), nil
}

// Location is where a handle's memory lives.
func (d *Driver) Location(h driver.Handle) (driver.Location, error) {
	if _, err := d.known("cuMemGetAllocationPropertiesFromHandle", h); err != nil {
		return driver.Location{}, err
	}
	return d.place(h)
}

// place asks for the location of a handle that is alive.
func (d *Driver) place(h driver.Handle) (driver.Location, error) {
	const call = "cuMemGetAllocationPropertiesFromHandle"
	c := C.cuvmm_location(d.api, C.CUmemGenericAllocationHandle(h))
	switch {
	case c.r != 0:
		return driver.Location{}, d.fail(call, Result(c.r))
	case c.at._type == C.CU_MEM_LOCATION_TYPE_DEVICE:
		return driver.Location{Kind: driver.LocationDevice, ID: int(c.at.id)}, nil
	case c.at._type == C.CU_MEM_LOCATION_TYPE_HOST_NUMA:
		return driver.Location{Kind: driver.LocationHostNUMA, ID: int(c.at.id)}, nil
	}
	return driver.Location{}, rule(call, driver.ErrNotSupported, "memory at a location of type %d", c.at._type)
}
