//go:build cgo && linux

package cuda

// #include "shims.h"
import "C"

import (
	"unsafe"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

var (
	_ driver.Allocator     = (*Device)(nil)
	_ driver.HostAllocator = (*Device)(nil)
	_ driver.Capturer      = (*Device)(nil)
	_ driver.StreamMemOps  = (*Device)(nil)
)

// AllocPlain is cuMemAlloc.
func (v *Device) AllocPlain(n uint64) (driver.Ptr, error) {
	const call = "cuMemAlloc"
	if err := v.enter(call); err != nil {
		return 0, err
	}
	defer v.exit()
	c := C.cuvmm_plain_alloc(v.d.api, v.ctx, C.size_t(n))
	return driver.Ptr(c.v), v.check(call, c.r)
}

// FreePlain is cuMemFree, which waits for the device.
func (v *Device) FreePlain(p driver.Ptr) error {
	const call = "cuMemFree"
	if err := v.enter(call); err != nil {
		return err
	}
	defer v.exit()
	if p == 0 {
		return rule(call, driver.ErrInvalid, "no address")
	}
	return v.check(call, C.cuvmm_plain_free(v.d.api, v.ctx, C.CUdeviceptr(p)))
}

// AllocAsync takes memory from the device's default pool.
func (v *Device) AllocAsync(n uint64, s driver.Stream) (driver.Ptr, error) {
	var c C.cuvmm_value
	err := v.onStream("cuMemAllocAsync", s, func() C.CUresult {
		c = C.cuvmm_pool_alloc(v.d.api, v.ctx, C.size_t(n), stream(s))
		return c.r
	})
	return driver.Ptr(c.v), err
}

// FreeAsync gives it back, in stream order.
func (v *Device) FreeAsync(p driver.Ptr, s driver.Stream) error {
	return v.onStream("cuMemFreeAsync", s, func() C.CUresult {
		return C.cuvmm_pool_free(v.d.api, v.ctx, C.CUdeviceptr(p), stream(s))
	})
}

// SetPoolThreshold is how much the default pool keeps.
func (v *Device) SetPoolThreshold(n uint64) error {
	const call = "cuMemPoolSetAttribute"
	if err := v.enter(call); err != nil {
		return err
	}
	defer v.exit()
	return v.check(call, C.cuvmm_pool_threshold(v.d.api, C.int(v.n), C.ulonglong(n)))
}

// AllocHost gives page-locked memory that every device can use.
// Safety: the driver gave n bytes, which stay until FreeHost.
func (v *Device) AllocHost(n uint64) (driver.Ptr, []byte, error) {
	const call = "cuMemHostAlloc"
	if err := v.enter(call); err != nil {
		return 0, nil, err
	}
	defer v.exit()
	if n == 0 {
		return 0, nil, rule(call, driver.ErrInvalid, "0 bytes")
	}
	c := C.cuvmm_host_alloc(v.d.api, v.ctx, C.size_t(n))
	if c.r != 0 {
		return 0, nil, v.check(call, c.r)
	}
	return driver.Ptr(c.v), unsafe.Slice((*byte)(opaque(uint64(c.v))), n), nil
}

// FreeHost gives it back. A reset has taken it along.
func (v *Device) FreeHost(p driver.Ptr) error {
	const call = "cuMemFreeHost"
	if err := v.stay(call); err != nil {
		return err
	}
	defer v.exit()
	if err := v.d.on(call, v.n); err != nil || v.reset.Load() {
		return err
	}
	err := v.check(call, C.cuvmm_host_free(v.d.api, v.ctx, opaque(uint64(p))))
	if v.reset.Load() {
		return nil
	}
	return err
}

// BeginCapture begins to capture a stream into a graph.
func (v *Device) BeginCapture(s driver.Stream, m driver.CaptureMode) error {
	return v.onStream("cuStreamBeginCapture", s, func() C.CUresult {
		return C.cuvmm_begin_capture(v.d.api, v.ctx, stream(s), C.int(m))
	})
}

// EndCapture ends it and throws the graph away.
func (v *Device) EndCapture(s driver.Stream) error {
	const call = "cuStreamEndCapture"
	var r Result
	err := v.onStream(call, s, func() C.CUresult {
		c := C.cuvmm_end_capture(v.d.api, v.ctx, stream(s))
		r = Result(c)
		return c
	})
	switch r {
	case captureInvalidated, captureUnmatched, captureUnjoined:
		return rule(call, driver.ErrInvalid, "the capture was destroyed: %w", v.d.text(r))
	case captureWrongThread:
		return rule(call, driver.ErrInvalid, "the capture goes on: %w", v.d.text(r))
	}
	return err
}

// WriteValue queues a store.
func (v *Device) WriteValue(s driver.Stream, p driver.Ptr, x uint64, width int) error {
	const call = "cuStreamWriteValue"
	return v.value(call, s, p, width, func() C.CUresult {
		return C.cuvmm_write_value(v.d.api, v.ctx, stream(s), C.CUdeviceptr(p), C.ulonglong(x), C.int(width))
	})
}

// WaitValue makes later work wait for a word.
func (v *Device) WaitValue(s driver.Stream, p driver.Ptr, x uint64, width int) error {
	const call = "cuStreamWaitValue"
	return v.value(call, s, p, width, func() C.CUresult {
		return C.cuvmm_wait_value(v.d.api, v.ctx, stream(s), C.CUdeviceptr(p), C.ulonglong(x), C.int(width))
	})
}

func (v *Device) value(call string, s driver.Stream, p driver.Ptr, width int, f func() C.CUresult) error {
	if width != 4 && width != 8 || uint64(p)%uint64(width) != 0 {
		if err := v.enter(call); err != nil {
			return err
		}
		defer v.exit()
		return rule(call, driver.ErrInvalid, "a word of %d bytes at %v", width, p)
	}
	return v.onStream(call, s, f)
}
