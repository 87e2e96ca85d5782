//go:build cgo && linux

package cuda

// #include "shims.h"
import "C"

import (
	"math"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

var _ driver.Copier2D = (*device)(nil)

// Pitch is rowBytes rounded up to the alignment of textures. cuMemAllocPitch chooses the
// same for every size of element; TestPitchIsCUDAs compares them.
func (v *device) Pitch(rowBytes uint64) (uint64, error) {
	const call = "cuDeviceGetAttribute"
	if err := v.begin(call); err != nil {
		return 0, err
	}
	defer v.end()
	a := C.cuvmm_attribute(v.d.api, C.CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT, C.int(v.n))
	if err := v.check(call, a.r); err != nil {
		return 0, err
	}
	unit := max(1, uint64(a.v))
	if rowBytes == 0 || rowBytes > math.MaxInt64-unit {
		return 0, refuse(call, driver.ErrInvalid, "rows of %d bytes", rowBytes)
	}
	return (rowBytes + unit - 1) / unit * unit, nil
}

// CopyIn2D copies rows of ordinary memory to the device.
func (v *device) CopyIn2D(dst driver.PitchedPtr, src []byte, width uint64) error {
	const call = "cuMemcpy2DAsync"
	if err := v.begin(call); err != nil {
		return err
	}
	defer v.end()
	rows, err := rowsOf(call, dst, uint64(len(src)), width)
	if err != nil || rows == 0 {
		return err
	}
	return v.check(call, C.cuvmm_copy_2d_in(v.d.api, v.ctx, pitched(dst), bytes(src),
		C.size_t(width), C.size_t(rows), v.copyStream))
}

// CopyOut2D copies rows of device memory to ordinary memory.
func (v *device) CopyOut2D(dst []byte, src driver.PitchedPtr, width uint64) error {
	const call = "cuMemcpy2DAsync"
	if err := v.begin(call); err != nil {
		return err
	}
	defer v.end()
	rows, err := rowsOf(call, src, uint64(len(dst)), width)
	if err != nil || rows == 0 {
		return err
	}
	return v.check(call, C.cuvmm_copy_2d_out(v.d.api, v.ctx, bytes(dst), pitched(src),
		C.size_t(width), C.size_t(rows), v.copyStream))
}

// Copy2D queues a copy of rows.
func (v *device) Copy2D(dst, src driver.PitchedPtr, width, rows uint64, s driver.Stream) error {
	const call = "cuMemcpy2DAsync"
	for _, p := range []driver.PitchedPtr{dst, src} {
		if _, ok := p.Extent(width, rows); !ok {
			return v.refuse(call, refuse(call, driver.ErrInvalid, "%d rows of %d bytes at %v", rows, width, p))
		}
	}
	return v.onQueue(call, s, func(q C.cuvmm_queue) C.CUresult {
		if width == 0 || rows == 0 {
			return 0
		}
		return C.cuvmm_copy_2d(v.d.api, q, pitched(dst), pitched(src), C.size_t(width), C.size_t(rows))
	})
}

// rowsOf is how many rows of that width n bytes are, which lie at p.
func rowsOf(call string, p driver.PitchedPtr, n, width uint64) (uint64, error) {
	if n == 0 {
		return 0, nil
	}
	if width == 0 || n%width != 0 {
		return 0, refuse(call, driver.ErrInvalid, "%d bytes are no whole rows of %d", n, width)
	}
	if _, ok := p.Extent(width, n/width); !ok {
		return 0, refuse(call, driver.ErrInvalid, "%d rows of %d bytes at %v", n/width, width, p)
	}
	return n / width, nil
}

// pitched is p for a shim.
func pitched(p driver.PitchedPtr) C.cuvmm_rows {
	return C.cuvmm_rows{p: C.CUdeviceptr(p.Ptr), pitch: C.size_t(p.Pitch)}
}
