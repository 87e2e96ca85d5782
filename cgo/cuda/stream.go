//go:build cgo && linux

package cuda

// #include "shims.h"
import "C"

import (
	"unsafe"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// CopyStream is the library's copy stream.
//
// Safety: only the number of a pointer of the driver's is used.
func (v *Device) CopyStream() driver.Stream {
	return driver.Stream(uintptr(unsafe.Pointer(v.copyStream)))
}

// NewStream makes a non-blocking stream.
func (v *Device) NewStream() (driver.Stream, error) {
	const call = "cuStreamCreate"
	if err := v.begin(call); err != nil {
		return 0, err
	}
	defer v.end()
	c := C.cuvmm_stream_create(v.d.api, v.ctx)
	if err := v.check(call, c.r); err != nil {
		return 0, err
	}
	v.d.streams.add(uint64(c.v), &tableEntry{maker: v})
	return driver.Stream(c.v), nil
}

// FreeStream destroys a stream; its queued work still runs.
func (v *Device) FreeStream(s driver.Stream) error {
	return v.freeHandle("cuStreamDestroy", &v.d.streams, uint64(s), func(maker *Device) C.CUresult {
		return C.cuvmm_stream_destroy(maker.d.api, maker.ctx, stream(s))
	})
}

// SyncStream waits for a stream.
func (v *Device) SyncStream(s driver.Stream) error {
	return v.onStream("cuStreamSynchronize", s, func() C.CUresult {
		return C.cuvmm_stream_sync(v.d.api, v.ctx, stream(s))
	})
}

// StreamDone says whether the work that the stream has now has run.
func (v *Device) StreamDone(s driver.Stream) (bool, error) {
	done := false
	err := v.onStream("cuStreamQuery", s, func() C.CUresult {
		r := C.cuvmm_stream_query(v.d.api, v.ctx, stream(s))
		done = r == 0
		if Result(r) == notReady {
			r = 0
		}
		return r
	})
	return done, err
}

// onStream makes a call with a stream, which may be another library's.
func (v *Device) onStream(call string, s driver.Stream, f func() C.CUresult) error {
	return v.onHandle(call, &v.d.streams, uint64(s), f)
}

// onHandle makes a call with a stream or an event that cannot be freed meanwhile.
func (v *Device) onHandle(call string, table *handleTable, handle uint64, f func() C.CUresult) error {
	if err := v.begin(call); err != nil {
		return err
	}
	defer v.end()
	entry, err := table.acquire(call, handle, v)
	// Another library's stream can be used, its event cannot.
	if err == nil && entry == nil && table == &v.d.events {
		err = refuse(call, driver.ErrInvalid, "no event %#x", handle)
	}
	if err != nil {
		return err
	}
	defer entry.release(v)
	// Where the handle is another device's, a reset may be that device's.
	if entry != nil && entry.maker.n != v.n {
		return v.checkBoth(call, f())
	}
	return v.check(call, f())
}

// freeHandle frees a stream or an event. One that a reset has ended is only taken off
// the table.
func (v *Device) freeHandle(call string, table *handleTable, handle uint64, destroy func(maker *Device) C.CUresult) error {
	if err := v.beginEvenLost(call); err != nil {
		return err
	}
	defer v.end()
	return table.remove(call, handle, v, func(maker *Device) error {
		if maker.reset.Load() {
			return nil
		}
		return maker.checkFree(call, destroy(maker))
	})
}

// stream is a handle as C wants it. It points into the driver's memory, never
// into Go's.
func stream(s driver.Stream) C.CUstream { return C.CUstream(pointer(uint64(s))) }
