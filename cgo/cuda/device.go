//go:build cgo && linux

package cuda

// #include "shims.h"
import "C"

import (
	"cmp"
	"errors"
	"math"
	"math/bits"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// Device is a retained primary context with a copy stream of its own. Safe for
// concurrent use; calls under way when it closes finish first.
type Device struct {
	d   *Driver
	n   int
	ctx C.cuvmm_ctx
	own C.CUstream

	ownGone bool // own is destroyed; only release uses it

	// reset says that somebody has reset the context since Open. Then no handle
	// of it may reach libcuda.
	reset atomic.Bool

	peers peers

	// users counts calls under way; closedBit says that no more may begin.
	users atomic.Int64
}

const closedBit, released = 1 << 62, 1 << 61

var _ driver.Device = (*Device)(nil)

// Open retains the primary context of a device.
func (d *Driver) Open(dev int) (driver.Device, error) {
	const call = "cuDevicePrimaryCtxRetain"
	if err := d.on(call, dev); err != nil {
		return nil, err
	}
	c := C.cuvmm_open(d.api, C.int(dev))
	if c.r != 0 {
		return nil, d.fail(call, Result(c.r))
	}
	v := &Device{d: d, n: dev, ctx: c.ctx, own: c.own}
	d.streams.add(uint64(v.CopyStream()), &thing{by: v, own: true})
	return v, nil
}

// enter begins a call; the caller calls exit unless there is an error.
func (v *Device) enter(call string) error {
	if err := v.stay(call); err != nil {
		return err
	}
	err := v.d.on(call, v.n)
	if err == nil && v.reset.Load() {
		err = rule(call, driver.ErrContextReset, "cuda:%d: close this Device and open it anew", v.n)
	}
	if err != nil {
		v.exit()
	}
	return err
}

// stay is enter for calls that work on a lost device, and after a reset.
func (v *Device) stay(call string) error {
	if v.users.Add(1)&closedBit != 0 {
		v.exit()
		return rule(call, driver.ErrClosed, "cuda:%d", v.n)
	}
	return nil
}

// exit ends a call. The last one out of a closed device releases the context.
func (v *Device) exit() {
	if v.users.Add(-1) == closedBit {
		v.release() //nolint:errcheck // nobody is left to tell
	}
}

// release gives the context back, once: the count does not come by here again,
// unless the driver says no and Close tries again.
func (v *Device) release() error {
	if !v.users.CompareAndSwap(closedBit, closedBit|released) {
		return nil
	}
	v.d.streams.forget(v)
	v.d.events.forget(v)
	left := v.leavePeers()
	err := v.leave()
	if errors.Is(err, driver.ErrDeviceLost) {
		return left // nothing of the context itself is left to give back
	}
	if err != nil {
		v.users.Add(-released)
	}
	return cmp.Or(err, left)
}

// leave destroys the stream of its own and releases the context. A context that is
// lost, or was reset, has taken its stream along, and the result of its release
// does not matter.
func (v *Device) leave() error {
	if !v.ownGone && !v.reset.Load() {
		err := v.check("cuStreamDestroy", C.cuvmm_stream_destroy(v.d.api, v.ctx, v.own))
		if err != nil && !errors.Is(err, driver.ErrDeviceLost) {
			return err
		}
		v.ownGone = true
		if err != nil {
			C.cuvmm_primary_release(v.d.api, C.int(v.n))
			return err
		}
	}
	r := C.cuvmm_primary_release(v.d.api, C.int(v.n))
	if v.reset.Load() {
		return nil
	}
	return v.check("cuDevicePrimaryCtxRelease", r)
}

// Close releases the context. After an error it can be called again.
func (v *Device) Close() error {
	for {
		n := v.users.Load()
		if n == closedBit {
			return v.release() // the last try failed
		}
		if n&closedBit != 0 {
			return nil
		}
		if v.users.CompareAndSwap(n, n|closedBit) {
			if n == 0 {
				return v.release()
			}
			return nil
		}
	}
}

// check is Driver.fail, and takes note of a reset.
func (v *Device) check(call string, r C.CUresult) error {
	if Result(r) == contextDestroyed {
		v.reset.Store(true)
	}
	return v.d.fail(call, Result(r))
}

// checkBoth is check for a call in which the context of another device takes
// part: it may be that one which was reset.
func (v *Device) checkBoth(call string, r C.CUresult) error {
	if Result(r) != contextDestroyed || v.d.api.ctx_id == nil || v.wasReset() {
		return v.check(call, r)
	}
	return &driver.CallError{Call: call, Kind: driver.ErrInvalid, Err: v.d.text(Result(r))}
}

// wasReset asks whether the context is still the one that was opened.
func (v *Device) wasReset() bool {
	if !v.reset.Load() && Result(C.cuvmm_same(v.d.api, v.ctx)) == contextDestroyed {
		v.reset.Store(true)
	}
	return v.reset.Load()
}

// sees says whether handles of v are good beside those of w: the context that v
// opened is still there. Of one device two ids settle it.
func (v *Device) sees(w *Device) bool {
	switch {
	case v.reset.Load():
		return false
	case v.n == w.n:
		return v.ctx.id == w.ctx.id
	}
	return !v.wasReset()
}

// gone says that the context has taken along whatever was to be given back.
func (v *Device) gone() bool { return v.d.lost.Load() || v.reset.Load() }

// back is check for calls that give something back.
func (v *Device) back(call string, r C.CUresult) error {
	err := v.check(call, r)
	if v.gone() {
		return nil
	}
	return err
}

// MemInfo is the device's free and total memory.
func (v *Device) MemInfo() (free, total uint64, err error) {
	const call = "cuMemGetInfo"
	if err := v.enter(call); err != nil {
		return 0, 0, err
	}
	defer v.exit()
	m := C.cuvmm_mem_info(v.d.api, v.ctx)
	return uint64(m.free), uint64(m.total), v.check(call, m.r)
}

// CopyIn copies ordinary memory to the device.
func (v *Device) CopyIn(dst driver.Ptr, src []byte) error {
	const call = "cuMemcpyHtoDAsync"
	if err := v.enter(call); err != nil {
		return err
	}
	defer v.exit()
	if len(src) == 0 {
		return nil
	}
	return v.check(call, C.cuvmm_copy_in(v.d.api, v.ctx, C.CUdeviceptr(dst),
		bytes(src), C.size_t(len(src)), v.own))
}

// CopyOut copies device memory to ordinary memory.
func (v *Device) CopyOut(dst []byte, src driver.Ptr) error {
	const call = "cuMemcpyDtoHAsync"
	if err := v.enter(call); err != nil {
		return err
	}
	defer v.exit()
	if len(dst) == 0 {
		return nil
	}
	return v.check(call, C.cuvmm_copy_out(v.d.api, v.ctx, bytes(dst),
		C.CUdeviceptr(src), C.size_t(len(dst)), v.own))
}

// Copy queues a copy.
func (v *Device) Copy(dst, src driver.Ptr, n uint64, s driver.Stream) error {
	const call = "cuMemcpyAsync"
	if err := v.enter(call); err != nil {
		return err
	}
	defer v.exit()
	if err := inside(call, max(dst, src), n); err != nil {
		return err
	}
	t, err := v.d.streams.use(call, uint64(s), v)
	if err != nil {
		return err
	}
	defer t.done(v)
	if n == 0 {
		return nil
	}
	return v.check(call, C.cuvmm_copy(v.d.api, v.ctx, C.CUdeviceptr(dst), C.CUdeviceptr(src), C.size_t(n), stream(s)))
}

// Fill queues a fill.
func (v *Device) Fill(dst driver.Ptr, pattern uint32, width int, n uint64, s driver.Stream) error {
	const call = "cuMemsetAsync"
	if err := v.enter(call); err != nil {
		return err
	}
	defer v.exit()
	over, size := bits.Mul64(n, uint64(max(width, 0)))
	if over != 0 {
		return rule(call, driver.ErrInvalid, "%d elements of %d bytes", n, width)
	}
	if err := inside(call, dst, size); err != nil {
		return err
	}
	t, err := v.d.streams.use(call, uint64(s), v)
	if err != nil {
		return err
	}
	defer t.done(v)
	if n == 0 && (width == 1 || width == 2 || width == 4) {
		return nil
	}
	return v.check(call, C.cuvmm_fill(v.d.api, v.ctx, C.CUdeviceptr(dst), C.uint(pattern), C.int(width), C.size_t(n), stream(s)))
}

// CopyStream is the library's copy stream.
func (v *Device) CopyStream() driver.Stream { return driver.Stream(uintptr(unsafe.Pointer(v.own))) }

// NewStream makes a non-blocking stream.
func (v *Device) NewStream() (driver.Stream, error) {
	const call = "cuStreamCreate"
	if err := v.enter(call); err != nil {
		return 0, err
	}
	defer v.exit()
	c := C.cuvmm_stream_create(v.d.api, v.ctx)
	if err := v.check(call, c.r); err != nil {
		return 0, err
	}
	v.d.streams.add(uint64(c.v), &thing{by: v})
	return driver.Stream(c.v), nil
}

// FreeStream lets queued work finish by itself.
func (v *Device) FreeStream(s driver.Stream) error {
	const call = "cuStreamDestroy"
	if err := v.stay(call); err != nil {
		return err
	}
	defer v.exit()
	return v.d.streams.remove(call, uint64(s), v, func(by *Device) error {
		if by.reset.Load() {
			return nil
		}
		return by.back(call, C.cuvmm_stream_destroy(by.d.api, by.ctx, stream(s)))
	})
}

// SyncStream waits for a stream.
func (v *Device) SyncStream(s driver.Stream) error {
	return v.onStream("cuStreamSynchronize", s, func() C.CUresult {
		return C.cuvmm_stream_sync(v.d.api, v.ctx, stream(s))
	})
}

// StreamDone says whether the stream has done its work.
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

// Capturing says whether a stream is being captured.
func (v *Device) Capturing(s driver.Stream) (bool, error) {
	var c C.cuvmm_value
	err := v.onStream("cuStreamIsCapturing", s, func() C.CUresult {
		c = C.cuvmm_stream_capturing(v.d.api, v.ctx, stream(s))
		return c.r
	})
	return c.v != 0, err
}

// onStream makes a call with a stream.
func (v *Device) onStream(call string, s driver.Stream, f func() C.CUresult) error {
	if err := v.enter(call); err != nil {
		return err
	}
	defer v.exit()
	t, err := v.d.streams.use(call, uint64(s), v)
	if err != nil {
		return err
	}
	defer t.done(v)
	if t != nil && t.by.n != v.n {
		return v.checkBoth(call, f())
	}
	return v.check(call, f())
}

// onEvent makes a call with an event of ours.
func (v *Device) onEvent(call string, e driver.Event, f func() C.CUresult) error {
	if err := v.enter(call); err != nil {
		return err
	}
	defer v.exit()
	t, err := v.d.events.use(call, uint64(e), v)
	if err == nil && t == nil {
		err = rule(call, driver.ErrInvalid, "no event %#x", uint64(e))
	}
	if err != nil {
		return err
	}
	defer t.done(v)
	if t != nil && t.by.n != v.n {
		return v.checkBoth(call, f())
	}
	return v.check(call, f())
}

// NewEvent makes an event.
func (v *Device) NewEvent(f driver.EventFlags) (driver.Event, error) {
	const call = "cuEventCreate"
	if err := v.enter(call); err != nil {
		return 0, err
	}
	defer v.exit()
	if f&^(driver.EventTiming|driver.EventBlocking|driver.EventInterprocess) != 0 {
		return 0, rule(call, driver.ErrInvalid, "event flags %#x", uint8(f))
	}
	if f&driver.EventTiming != 0 && f&driver.EventInterprocess != 0 {
		return 0, rule(call, driver.ErrInvalid, "an event for other processes cannot have a time")
	}
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
	c := C.cuvmm_event_create(v.d.api, v.ctx, flags)
	if err := v.check(call, c.r); err != nil {
		return 0, err
	}
	v.d.events.add(uint64(c.v), &thing{by: v})
	return driver.Event(c.v), nil
}

// FreeEvent frees an event.
func (v *Device) FreeEvent(e driver.Event) error {
	const call = "cuEventDestroy"
	if err := v.stay(call); err != nil {
		return err
	}
	defer v.exit()
	return v.d.events.remove(call, uint64(e), v, func(by *Device) error {
		if by.reset.Load() {
			return nil
		}
		return by.back(call, C.cuvmm_event_destroy(by.d.api, by.ctx, event(e)))
	})
}

// SyncEvent waits for an event.
func (v *Device) SyncEvent(e driver.Event) error {
	return v.onEvent("cuEventSynchronize", e, func() C.CUresult {
		return C.cuvmm_event_sync(v.d.api, v.ctx, event(e))
	})
}

// both makes a call with an event of ours and a stream.
func (v *Device) both(call string, e driver.Event, s driver.Stream, f func() C.CUresult) error {
	var inner error
	err := v.onEvent(call, e, func() (r C.CUresult) {
		inner = v.onStream(call, s, func() C.CUresult {
			r = f()
			return 0
		})
		return r
	})
	return cmp.Or(inner, err)
}

// Record marks the stream's end of now.
func (v *Device) Record(e driver.Event, s driver.Stream) error {
	return v.both("cuEventRecord", e, s, func() C.CUresult {
		return C.cuvmm_event_record(v.d.api, v.ctx, event(e), stream(s))
	})
}

// Wait makes later work of the stream wait for the event.
func (v *Device) Wait(s driver.Stream, e driver.Event) error {
	return v.both("cuStreamWaitEvent", e, s, func() C.CUresult {
		return C.cuvmm_event_wait(v.d.api, v.ctx, stream(s), event(e))
	})
}

// Done says whether the event has been reached.
func (v *Device) Done(e driver.Event) (bool, error) {
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

// Elapsed is the device's time between two events.
func (v *Device) Elapsed(from, to driver.Event) (time.Duration, error) {
	const call = "cuEventElapsedTime"
	var c C.cuvmm_value
	var inner error
	err := v.onEvent(call, from, func() C.CUresult {
		inner = v.onEvent(call, to, func() C.CUresult {
			c = C.cuvmm_event_elapsed(v.d.api, v.ctx, event(from), event(to))
			return 0
		})
		return c.r
	})
	ms := float64(math.Float32frombits(uint32(c.v)))
	return time.Duration(ms * float64(time.Millisecond)), cmp.Or(inner, err)
}

// Sync waits for the context.
func (v *Device) Sync() error {
	const call = "cuCtxSynchronize"
	if err := v.enter(call); err != nil {
		return err
	}
	defer v.exit()
	return v.check(call, C.cuvmm_sync(v.d.api, v.ctx))
}

// Do runs f on a locked thread with the context current.
func (v *Device) Do(f func() error) error {
	const call = "cuCtxPushCurrent"
	if err := v.enter(call); err != nil {
		return err
	}
	defer v.exit()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := v.check(call, C.cuvmm_push(v.d.api, v.ctx)); err != nil {
		return err
	}
	defer C.cuvmm_pop(v.d.api)
	return f()
}

// bytes is where a slice lies. Its type keeps cgo from looking for pointers in
// what lies around the slice, which C does not touch.
func bytes(b []byte) *C.uchar { return (*C.uchar)(unsafe.Pointer(unsafe.SliceData(b))) }

// stream and event are handles as C wants them. They point into the driver's
// memory, never into Go's.
func stream(s driver.Stream) C.CUstream { return C.CUstream(opaque(uint64(s))) }
func event(e driver.Event) C.CUevent    { return C.CUevent(opaque(uint64(e))) }

// opaque is a number as the pointer it stands for.
// Safety: it comes from the driver and points outside Go's heap. Go memory
// crosses in CopyIn and CopyOut alone, whose shims are done with it when they
// return.
func opaque(n uint64) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&n)) }
