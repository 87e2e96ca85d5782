//go:build cgo && linux

package cuda

// #include "shims.h"
import "C"

import (
	"math"
	"time"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// NewEvent makes an event.
func (v *device) NewEvent(f driver.EventFlags) (driver.Event, error) {
	const call = "cuEventCreate"
	e, err := v.newHandle(call, &v.d.events, func() (c C.cuvmm_value, err error) {
		if f&^(driver.EventTiming|driver.EventBlocking|driver.EventInterprocess) != 0 {
			return c, refuse(call, driver.ErrInvalid, "event flags %#x", uint8(f))
		}
		if f&driver.EventTiming != 0 && f&driver.EventInterprocess != 0 {
			return c, refuse(call, driver.ErrInvalid, "an event for other processes cannot have a time")
		}
		// CUDA's default is an event with a time, ours one without.
		flags := C.uint(C.CU_EVENT_DISABLE_TIMING)
		if f&driver.EventTiming != 0 {
			flags = 0
		}
		if f&driver.EventBlocking != 0 {
			flags |= C.CU_EVENT_BLOCKING_SYNC
		}
		if f&driver.EventInterprocess != 0 {
			flags |= C.CU_EVENT_INTERPROCESS
		}
		return C.cuvmm_event_create(v.d.api, v.ctx, flags), nil
	})
	return driver.Event(e), err
}

// FreeEvent frees an event.
func (v *device) FreeEvent(e driver.Event) error {
	return v.freeHandle("cuEventDestroy", &v.d.events, uint64(e), func(maker *device) C.CUresult {
		return C.cuvmm_event_destroy(maker.d.api, maker.ctx, event(e))
	})
}

// SyncEvent waits for an event.
func (v *device) SyncEvent(e driver.Event) error {
	return v.onEvent("cuEventSynchronize", e, func() C.CUresult {
		return C.cuvmm_event_sync(v.d.api, v.ctx, event(e))
	})
}

// Record records the event after the work that the stream has now.
func (v *device) Record(e driver.Event, s driver.Stream) error {
	return v.onEventAndStream("cuEventRecord", e, s, func() C.CUresult {
		return C.cuvmm_event_record(v.d.api, v.ctx, event(e), stream(s))
	})
}

// RecordContext records the event after all work that the context has now, whichever library
// has queued it. Before CUDA 12.5 it returns ErrNotSupported.
func (v *device) RecordContext(e driver.Event) error {
	return v.onEvent("cuCtxRecordEvent", e, func() C.CUresult {
		return C.cuvmm_ctx_record(v.d.api, v.ctx, event(e))
	})
}

// Wait makes later work of the stream wait for the event.
func (v *device) Wait(s driver.Stream, e driver.Event) error {
	return v.onEventAndStream("cuStreamWaitEvent", e, s, func() C.CUresult {
		return C.cuvmm_event_wait(v.d.api, v.ctx, stream(s), event(e))
	})
}

// Done reports whether the work before the event has run.
func (v *device) Done(e driver.Event) (bool, error) {
	done := false
	err := v.onEvent("cuEventQuery", e, func() C.CUresult {
		r := C.cuvmm_event_query(v.d.api, v.ctx, event(e))
		done = r == 0
		if Result(r) == notReady {
			r = 0
		}
		return r
	})
	return done, err
}

// Elapsed is the time between two events by the device's clock.
func (v *device) Elapsed(from, to driver.Event) (time.Duration, error) {
	var c C.cuvmm_value
	err := v.onBoth("cuEventElapsedTime", use{&v.d.events, uint64(from)}, use{&v.d.events, uint64(to)}, func() C.CUresult {
		c = C.cuvmm_event_elapsed(v.d.api, v.ctx, event(from), event(to))
		return c.r
	})
	ms := float64(math.Float32frombits(uint32(c.v)))
	return time.Duration(ms * float64(time.Millisecond)), err
}

// onEvent makes a call with an event that this package made.
func (v *device) onEvent(call string, e driver.Event, f func() C.CUresult) error {
	return v.onHandle(call, &v.d.events, uint64(e), f)
}

// onEventAndStream is onEvent and onStream for one call.
func (v *device) onEventAndStream(call string, e driver.Event, s driver.Stream, f func() C.CUresult) error {
	return v.onBoth(call, use{&v.d.events, uint64(e)}, use{&v.d.streams, uint64(s)}, f)
}

// event is a handle as C wants it. It points into the driver's memory, never into
// Go's.
func event(e driver.Event) C.CUevent { return C.CUevent(pointer(uint64(e))) }
