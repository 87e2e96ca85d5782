//go:build cgo && linux

package cuda

// #include "shims.h"
import "C"

import "github.com/cuvmm/cuvmm/vmm/driver"

var _ driver.Allocator = (*device)(nil)

// AllocPlain is cuMemAlloc.
func (v *device) AllocPlain(n uint64) (p driver.Ptr, err error) {
	err = v.inContext("cuMemAlloc", func() C.CUresult {
		c := C.cuvmm_plain_alloc(v.d.api, v.ctx, C.size_t(n))
		p = driver.Ptr(c.v)
		return c.r
	})
	return p, err
}

// FreePlain is cuMemFree, which waits for the device.
func (v *device) FreePlain(p driver.Ptr) error {
	const call = "cuMemFree"
	if p == 0 {
		return v.refuse(call, refuse(call, driver.ErrInvalid, "no address"))
	}
	return v.during(call, func() error {
		return v.d.imports.during(p, func() error {
			return v.check(call, C.cuvmm_plain_free(v.d.api, v.ctx, C.CUdeviceptr(p)))
		})
	})
}

// AllocAsync allocates from the current pool of the stream's device.
func (v *device) AllocAsync(n uint64, s driver.Stream) (driver.Ptr, error) {
	const call = "cuMemAllocAsync"
	if n == 0 {
		return 0, v.refuseEmpty(call)
	}
	var c C.cuvmm_value
	err := v.onQueue(call, s, func(q C.cuvmm_queue) C.CUresult {
		c = C.cuvmm_pool_alloc(v.d.api, q, C.size_t(n))
		return c.r
	})
	return driver.Ptr(c.v), err
}

// FreeAsync frees memory in the order of a stream: back to its pool, if it is of one.
func (v *device) FreeAsync(p driver.Ptr, s driver.Stream) error {
	return v.d.imports.during(p, func() error {
		return v.onQueue("cuMemFreeAsync", s, func(q C.cuvmm_queue) C.CUresult {
			return C.cuvmm_pool_free(v.d.api, q, C.CUdeviceptr(p))
		})
	})
}

// refuseEmpty is the error of an allocation of 0 bytes, of which CUDA's documents say
// nothing.
func (v *device) refuseEmpty(call string) error {
	return v.refuse(call, refuse(call, driver.ErrInvalid, "0 bytes"))
}
