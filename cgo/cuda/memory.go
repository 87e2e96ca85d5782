//go:build cgo && linux

package cuda

// #include "shims.h"
import "C"

import "github.com/cuvmm/cuvmm/vmm/driver"

// allocation is what is known of physical memory by its handle. CUDA may crash on
// a handle that it does not know.
type allocation struct {
	device int          // its ordinal; -1 for memory on none of this process's devices
	share  driver.Share // the ways to export it
	refs   int          // CUDA may return one handle twice
}

// prop is p as CUDA wants it. It checks that the device exists and is not lost.
func (d *libcuda) prop(call string, p driver.Prop) (c C.CUmemAllocationProp, err error) {
	if c.location, err = d.location(call, "memory on", p.Location); err != nil {
		return c, err
	}
	// Below, what CUDA has no flag for is refused here.
	c._type = C.CU_MEM_ALLOCATION_TYPE_PINNED
	if p.Share&driver.ShareReadOnly != 0 {
		return c, refuse(call, driver.ErrNotSupported, "a descriptor carries no rights: whoever imports it may write")
	}
	if p.Share&^(driver.ShareFD|driver.ShareFabric) != 0 {
		return c, refuse(call, driver.ErrInvalid, "share %#x", uint8(p.Share))
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
func (d *libcuda) Granularity(p driver.Prop) (uint64, error) {
	return d.granularity("cuMemGetAllocationGranularity", p, false)
}

// GranularityRecommended is the granularity that CUDA recommends for performance.
func (d *libcuda) GranularityRecommended(p driver.Prop) (uint64, error) {
	return d.granularity("cuMemGetAllocationGranularity", p, true)
}

// granularityKey is what a granularity depends on.
type granularityKey struct {
	p           driver.Prop
	recommended bool
}

// granularity asks once for each kind of memory: it does not change.
func (d *libcuda) granularity(call string, p driver.Prop, recommended bool) (uint64, error) {
	c, err := d.prop(call, p)
	if err != nil {
		return 0, err
	}
	of := granularityKey{p, recommended}
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

// Reserve reserves addresses.
func (d *libcuda) Reserve(size, align uint64) (driver.Ptr, error) {
	const call = "cuMemAddressReserve"
	v := C.cuvmm_reserve(d.api, C.size_t(size), C.size_t(align))
	return driver.Ptr(v.v), d.fail(call, Result(v.r))
}

// Free frees reserved addresses.
func (d *libcuda) Free(p driver.Ptr, size uint64) error {
	return d.fail("cuMemAddressFree", Result(C.cuvmm_address_free(d.api, C.CUdeviceptr(p), C.size_t(size))))
}

// Create allocates physical memory.
func (d *libcuda) Create(size uint64, p driver.Prop) (driver.Handle, error) {
	const call = "cuMemCreate"
	c, err := d.prop(call, p)
	if err != nil {
		return 0, err
	}
	v := C.cuvmm_create(d.api, C.size_t(size), c)
	if v.r != 0 {
		err := d.fail(call, Result(v.r))
		if p.Share&driver.ShareFabric != 0 {
			err = fabricError(err)
		}
		return 0, err
	}
	return d.track(driver.Handle(v.v), p.Location, p.Share), nil
}

// track records a handle, or one more reference to it.
func (d *libcuda) track(h driver.Handle, at driver.Location, share driver.Share) driver.Handle {
	d.mu.Lock()
	defer d.mu.Unlock()
	a, known := d.allocations[h]
	if !known {
		a = allocation{device: at.ID, share: share}
		// Memory of a host node, or of a device that is hidden from this process.
		if at.Kind != driver.LocationDevice || at.ID < 0 || at.ID >= d.devices {
			a.device = -1
		}
	}
	a.refs++
	d.allocations[h] = a
	return h
}

// tracked finds a handle and checks that its device is not lost.
func (d *libcuda) tracked(call string, h driver.Handle) (allocation, error) {
	d.mu.Lock()
	a, ok := d.allocations[h]
	d.mu.Unlock()
	if !ok {
		return a, refuse(call, driver.ErrInvalid, "no handle %#x", uint64(h))
	}
	if a.device < 0 {
		return a, nil
	}
	return a, d.checkDevice(call, a.device)
}

// Release drops a reference. It works on a lost device.
func (d *libcuda) Release(h driver.Handle) error {
	const call = "cuMemRelease"
	// First, because libcuda may return the number from another thread's Create
	// before this release has come back.
	a, ok := d.untrack(h)
	if !ok {
		return refuse(call, driver.ErrInvalid, "no handle %#x", uint64(h))
	}
	// Without the lock, because to release much memory takes long.
	err := d.fail(call, Result(C.cuvmm_release(d.api, C.CUmemGenericAllocationHandle(h))))
	if err != nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		a.refs = d.allocations[h].refs + 1
		d.allocations[h] = a
	}
	return err
}

// untrack undoes one track.
func (d *libcuda) untrack(h driver.Handle) (allocation, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	a, ok := d.allocations[h]
	if !ok {
		return a, false
	}
	if a.refs--; a.refs > 0 {
		d.allocations[h] = a
	} else {
		delete(d.allocations, h)
	}
	return a, true
}

// Map maps the whole of h at p.
func (d *libcuda) Map(p driver.Ptr, size uint64, h driver.Handle) error {
	const call = "cuMemMap"
	if _, err := d.tracked(call, h); err != nil {
		return err
	}
	return d.fail(call, Result(C.cuvmm_map(d.api, C.CUdeviceptr(p), C.size_t(size), C.CUmemGenericAllocationHandle(h))))
}

// Unmap removes whole mappings and waits for nothing.
func (d *libcuda) Unmap(p driver.Ptr, size uint64) error {
	if err := checkSpan("cuMemUnmap", p, size); err != nil {
		return err
	}
	return d.fail("cuMemUnmap", Result(C.cuvmm_unmap(d.api, C.CUdeviceptr(p), C.size_t(size))))
}

// Properties is what a handle's memory was created with.
func (d *libcuda) Properties(h driver.Handle) (driver.Prop, error) {
	if _, err := d.tracked("cuMemGetAllocationPropertiesFromHandle", h); err != nil {
		return driver.Prop{}, err
	}
	return d.properties(h)
}

// properties is Properties for a handle that is tracked or just imported.
func (d *libcuda) properties(h driver.Handle) (p driver.Prop, err error) {
	const call = "cuMemGetAllocationPropertiesFromHandle"
	c := C.cuvmm_properties(d.api, C.CUmemGenericAllocationHandle(h))
	at := c.prop.location
	switch {
	case c.r != 0:
		return p, d.fail(call, Result(c.r))
	case at._type == C.CU_MEM_LOCATION_TYPE_DEVICE:
		p.Location = driver.Location{Kind: driver.LocationDevice, ID: int(at.id)}
	case at._type == C.CU_MEM_LOCATION_TYPE_HOST_NUMA:
		p.Location = driver.Location{Kind: driver.LocationHostNUMA, ID: int(at.id)}
	default:
		return p, refuse(call, driver.ErrNotSupported, "memory at a location of type %d", at._type)
	}
	if c.prop.requestedHandleTypes&C.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR != 0 {
		p.Share |= driver.ShareFD
	}
	if c.prop.requestedHandleTypes&C.CU_MEM_HANDLE_TYPE_FABRIC != 0 {
		p.Share |= driver.ShareFabric
	}
	p.RDMA = c.prop.allocFlags.gpuDirectRDMACapable != 0
	p.Compress = c.prop.allocFlags.compressionType == C.CU_MEM_ALLOCATION_COMP_GENERIC
	return p, nil
}
