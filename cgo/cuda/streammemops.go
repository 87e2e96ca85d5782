//go:build cgo && linux

package cuda

// #include "shims.h"
import "C"

import "github.com/cuvmm/cuvmm/vmm/driver"

var _ driver.StreamMemOps = (*device)(nil)

// WriteValue queues a store of a word.
func (v *device) WriteValue(s driver.Stream, p driver.Ptr, x uint64, width int) error {
	const call = "cuStreamWriteValue"
	return v.onWord(call, s, p, width, func() C.CUresult {
		return C.cuvmm_write_value(v.d.api, v.ctx, stream(s), C.CUdeviceptr(p), C.ulonglong(x), C.int(width))
	})
}

// WaitValue makes later work of the stream wait for a word.
func (v *device) WaitValue(s driver.Stream, p driver.Ptr, x uint64, width int) error {
	const call = "cuStreamWaitValue"
	return v.onWord(call, s, p, width, func() C.CUresult {
		return C.cuvmm_wait_value(v.d.api, v.ctx, stream(s), C.CUdeviceptr(p), C.ulonglong(x), C.int(width))
	})
}

// onWord makes a call with a stream and an aligned word.
func (v *device) onWord(call string, s driver.Stream, p driver.Ptr, width int, f func() C.CUresult) error {
	if width != 4 && width != 8 || uint64(p)%uint64(width) != 0 {
		return v.refuse(call, refuse(call, driver.ErrInvalid, "a word of %d bytes at %v", width, p))
	}
	return v.onStream(call, s, f)
}
