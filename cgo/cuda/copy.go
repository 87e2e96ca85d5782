//go:build cgo && linux

package cuda

// #include "shims.h"
import "C"

import (
	"math/bits"
	"unsafe"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// CopyIn copies ordinary memory to the device.
func (v *device) CopyIn(dst driver.Ptr, src []byte) error {
	return v.inContext("cuMemcpyHtoDAsync", func() C.CUresult {
		if len(src) == 0 {
			return 0
		}
		return C.cuvmm_copy_in(v.d.api, v.ctx, C.CUdeviceptr(dst), bytes(src), C.size_t(len(src)), v.copyStream)
	})
}

// CopyOut copies device memory to ordinary memory.
func (v *device) CopyOut(dst []byte, src driver.Ptr) error {
	return v.inContext("cuMemcpyDtoHAsync", func() C.CUresult {
		if len(dst) == 0 {
			return 0
		}
		return C.cuvmm_copy_out(v.d.api, v.ctx, bytes(dst), C.CUdeviceptr(src), C.size_t(len(dst)), v.copyStream)
	})
}

// Copy queues a copy.
func (v *device) Copy(dst, src driver.Ptr, n uint64, s driver.Stream) error {
	const call = "cuMemcpyAsync"
	if err := checkSpan(call, max(dst, src), n); err != nil {
		return v.refuse(call, err)
	}
	return v.onQueue(call, s, func(q C.cuvmm_queue) C.CUresult {
		if n == 0 {
			return 0
		}
		return C.cuvmm_copy(v.d.api, q, C.CUdeviceptr(dst), C.CUdeviceptr(src), C.size_t(n))
	})
}

// Fill queues a fill.
func (v *device) Fill(dst driver.Ptr, pattern uint32, width int, n uint64, s driver.Stream) error {
	const call = "cuMemsetAsync"
	// A size that overflows would lose the device, so it must not reach CUDA.
	over, size := bits.Mul64(n, uint64(max(width, 0)))
	err := checkSpan(call, dst, size)
	if over != 0 {
		err = refuse(call, driver.ErrInvalid, "%d elements of %d bytes", n, width)
	}
	if err != nil {
		return v.refuse(call, err)
	}
	return v.onQueue(call, s, func(q C.cuvmm_queue) C.CUresult {
		if n == 0 && (width == 1 || width == 2 || width == 4) {
			return 0
		}
		return C.cuvmm_fill(v.d.api, q, C.CUdeviceptr(dst), C.uint(pattern), C.int(width), C.size_t(n))
	})
}

// bytes is the address of a slice's first byte. Its type keeps cgo from looking for
// pointers in the memory around the slice.
//
// Safety: C does not touch that memory, and none after the call.
func bytes(b []byte) *C.uchar { return (*C.uchar)(unsafe.Pointer(unsafe.SliceData(b))) }
