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
	return v.check(call, C.cuvmm_plain_free(v.d.api, v.ctx, C.CUdeviceptr(p)))
}

// AllocAsync allocates from the device's default pool.
func (v *Device) AllocAsync(n uint64, s driver.Stream) (driver.Ptr, error) {
	var c C.cuvmm_value
	err := v.onStream("cuMemAllocAsync", s, func() C.CUresult {
		c = C.cuvmm_pool_alloc(v.d.api, v.ctx, C.size_t(n), stream(s))
		return c.r
	})
	return driver.Ptr(c.v), err
}

// FreeAsync returns memory to the pool, in stream order.
func (v *Device) FreeAsync(p driver.Ptr, s driver.Stream) error {
	return v.onStream("cuMemFreeAsync", s, func() C.CUresult {
		return C.cuvmm_pool_free(v.d.api, v.ctx, C.CUdeviceptr(p), stream(s))
	})
}

// SetPoolThreshold sets how much memory the default pool keeps.
func (v *Device) SetPoolThreshold(n uint64) error {
	const call = "cuMemPoolSetAttribute"
	if err := v.begin(call); err != nil {
		return err
	}
	defer v.end()
	return v.check(call, C.cuvmm_pool_threshold(v.d.api, C.int(v.n), C.ulonglong(n)))
}
