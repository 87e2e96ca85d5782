//go:build cgo && linux

package cuda

// #include "shims.h"
import "C"

import (
	"unsafe"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

var _ driver.HostAllocator = (*device)(nil)

// AllocHost allocates page-locked memory that every device can use.
//
// Safety: the driver allocated n bytes, which stay until FreeHost.
func (v *device) AllocHost(n uint64) (driver.Ptr, []byte, error) {
	const call = "cuMemHostAlloc"
	if err := v.begin(call); err != nil {
		return 0, nil, err
	}
	defer v.end()
	if n == 0 {
		return 0, nil, refuse(call, driver.ErrInvalid, "0 bytes")
	}
	c := C.cuvmm_host_alloc(v.d.api, v.ctx, C.size_t(n))
	if c.r != 0 {
		return 0, nil, v.check(call, c.r)
	}
	return driver.Ptr(c.v), unsafe.Slice((*byte)(pointer(uint64(c.v))), n), nil
}

// FreeHost frees what AllocHost allocated. A reset of the context has freed it
// already.
func (v *device) FreeHost(p driver.Ptr) error {
	const call = "cuMemFreeHost"
	if err := v.beginEvenLost(call); err != nil {
		return err
	}
	defer v.end()
	if err := v.d.checkDevice(call, v.n); err != nil || v.reset.Load() {
		return err
	}
	err := v.check(call, C.cuvmm_host_free(v.d.api, v.ctx, pointer(uint64(p))))
	if v.reset.Load() {
		return nil
	}
	return err
}
