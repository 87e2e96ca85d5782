//go:build cgo && linux

package cuda

// #include "shims.h"
import "C"

import "github.com/cuvmm/cuvmm/vmm/driver"

var _ driver.Allocator = (*Device)(nil)

// AllocPlain is cuMemAlloc.
func (v *Device) AllocPlain(n uint64) (driver.Ptr, error) {
	const call = "cuMemAlloc"
	if err := v.begin(call); err != nil {
		return 0, err
	}
	defer v.end()
	c := C.cuvmm_plain_alloc(v.d.api, v.ctx, C.size_t(n))
	return driver.Ptr(c.v), v.check(call, c.r)
}

// FreePlain is cuMemFree, which waits for the device.
func (v *Device) FreePlain(p driver.Ptr) error {
	const call = "cuMemFree"
	if err := v.begin(call); err != nil {
		return err
	}
	defer v.end()
	if p == 0 {
		return refuse(call, driver.ErrInvalid, "no address")
	}
	return v.d.imports.during(p, func() error {
		return v.check(call, C.cuvmm_plain_free(v.d.api, v.ctx, C.CUdeviceptr(p)))
	})
}

// AllocAsync allocates from the current pool of the stream's device.
func (v *Device) AllocAsync(n uint64, s driver.Stream) (driver.Ptr, error) {
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
func (v *Device) FreeAsync(p driver.Ptr, s driver.Stream) error {
	return v.d.imports.during(p, func() error {
		return v.onQueue("cuMemFreeAsync", s, func(q C.cuvmm_queue) C.CUresult {
			return C.cuvmm_pool_free(v.d.api, q, C.CUdeviceptr(p))
		})
	})
}

// refuseEmpty is the error of an allocation of 0 bytes, of which CUDA's documents say
// nothing.
func (v *Device) refuseEmpty(call string) error {
	if err := v.begin(call); err != nil {
		return err
	}
	defer v.end()
	return refuse(call, driver.ErrInvalid, "0 bytes")
}
