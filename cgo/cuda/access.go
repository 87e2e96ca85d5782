//go:build cgo && linux

package cuda

// #include "shims.h"
import "C"

import (
	"math"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// SetAccess sets what each location of who may do with [p, p+size).
func (d *libcuda) SetAccess(p driver.Ptr, size uint64, who []driver.Grant) error {
	const call = "cuMemSetAccess"
	if err := checkSpan(call, p, size); err != nil {
		return err
	}
	if len(who) == 0 {
		return refuse(call, driver.ErrInvalid, "no location to set access for")
	}
	// On the stack for as many devices as a machine has; more go to the heap.
	var buf [16]C.CUmemAccessDesc
	list := buf[:0]
	for _, g := range who {
		// Access may be taken away from a lost device, so that memory can be freed.
		where, err := d.anyLocation(call, "access for", g.To, g.Access == driver.AccessNone)
		if err != nil {
			return err
		}
		flags, ok := protection(g.Access)
		if !ok {
			return refuse(call, driver.ErrInvalid, "access %v", g.Access)
		}
		list = append(list, C.CUmemAccessDesc{location: where, flags: flags})
	}
	return d.fail(call, Result(C.cuvmm_set_access(d.api, C.CUdeviceptr(p), C.size_t(size), &list[0], C.size_t(len(list)))))
}

// Access is what location who may do at p.
func (d *libcuda) Access(p driver.Ptr, who driver.Location) (driver.Access, error) {
	const call = "cuMemGetAccess"
	where, err := d.location(call, "access for", who)
	if err != nil {
		return driver.AccessNone, err
	}
	v := C.cuvmm_get_access(d.api, C.CUdeviceptr(p), where)
	if v.r != 0 {
		return driver.AccessNone, d.fail(call, Result(v.r))
	}
	return accessOf(v.v), nil
}

// accessOf is an access of CUDA's.
func accessOf(flags C.ulonglong) driver.Access {
	switch flags {
	case C.CU_MEM_ACCESS_FLAGS_PROT_READ:
		return driver.AccessRead
	case C.CU_MEM_ACCESS_FLAGS_PROT_READWRITE:
		return driver.AccessReadWrite
	}
	return driver.AccessNone
}

// location is anyLocation of a device that is not lost.
func (d *libcuda) location(call, what string, l driver.Location) (C.CUmemLocation, error) {
	return d.anyLocation(call, what, l, false)
}

// anyLocation is l as CUDA wants it. With evenLost it may be a lost device. An error begins with
// what, such as "access for".
func (d *libcuda) anyLocation(call, what string, l driver.Location, evenLost bool) (c C.CUmemLocation, err error) {
	switch l.Kind {
	case driver.LocationDevice:
		if err := d.checkDevice(call, l.ID); err != nil && !(evenLost && l.ID >= 0 && l.ID < d.devices) {
			return c, err
		}
		c._type = C.CU_MEM_LOCATION_TYPE_DEVICE
	case driver.LocationHostNUMA:
		c._type = C.CU_MEM_LOCATION_TYPE_HOST_NUMA
	default:
		return c, refuse(call, driver.ErrInvalid, "%s %v", what, l)
	}
	if l.ID < 0 || l.ID > math.MaxInt32 {
		return c, refuse(call, driver.ErrInvalid, "%s %v", what, l)
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
