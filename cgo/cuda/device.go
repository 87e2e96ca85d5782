//go:build cgo && linux

package cuda

// #include "shims.h"
import "C"

import (
	"cmp"
	"errors"
	"runtime"
	"sync/atomic"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// device is a retained primary context with a copy stream of its own. Safe for
// concurrent use; calls under way when it closes finish first.
type device struct {
	d          *libcuda
	n          int
	ctx        C.cuvmm_ctx
	copyStream C.CUstream

	copyStreamGone bool          // copyStream is destroyed; only release uses it
	leftPools      []*tableEntry // to be destroyed; only release uses it

	// reset says that the context was reset since Open, by this process or by a
	// library in it. Then no handle of the context may reach libcuda.
	reset atomic.Bool

	opened   openedMemory
	peers    peers
	retained retained

	defaultPool atomic.Uint64 // 0: not asked for yet

	// users counts calls under way. closedBit says that no more may begin, and
	// releasedBit that the last of them has released the context.
	users atomic.Int64
}

const closedBit, releasedBit = 1 << 62, 1 << 61

var _ driver.Device = (*device)(nil)

// Open retains the primary context of a device.
func (d *libcuda) Open(dev int) (driver.Device, error) {
	const call = "cuDevicePrimaryCtxRetain"
	if err := d.checkDevice(call, dev); err != nil {
		return nil, err
	}
	c := C.cuvmm_open(d.api, C.int(dev))
	if c.r != 0 {
		return nil, d.fail(call, Result(c.r))
	}
	v := &device{d: d, n: dev, ctx: c.ctx, copyStream: c.copy_stream}
	d.streams.add(&tableEntry{handle: uint64(v.CopyStream()), maker: v, copyStream: true})
	return v, nil
}

// begin begins a call. The caller calls end unless there is an error.
func (v *device) begin(call string) error {
	if v.users.Add(1)&closedBit == 0 && !v.d.lost.Load() && !v.reset.Load() {
		return nil
	}
	return v.notBegun(call)
}

// notBegun ends a call that is refused, and returns why it is.
func (v *device) notBegun(call string) error {
	defer v.end()
	switch {
	case v.users.Load()&closedBit != 0:
		return refuse(call, driver.ErrClosed, "cuda:%d", v.n)
	case v.d.lost.Load():
		return v.d.checkDevice(call, v.n)
	}
	return refuse(call, driver.ErrContextReset, "cuda:%d: close this device and open it anew", v.n)
}

// during runs f as a call of the device.
func (v *device) during(call string, f func() error) error {
	if err := v.begin(call); err != nil {
		return err
	}
	defer v.end()
	return f()
}

// inContext makes a call that uses no handle but the context.
func (v *device) inContext(call string, f func() C.CUresult) error {
	return v.during(call, func() error { return v.check(call, f()) })
}

// refuse returns err, the refusal of a call. If the device cannot be used, it returns why instead.
func (v *device) refuse(call string, err error) error {
	return v.during(call, func() error { return err })
}

// beginEvenLost is begin for calls that work on a lost device and after a reset.
func (v *device) beginEvenLost(call string) error {
	if v.users.Add(1)&closedBit != 0 {
		v.end()
		return refuse(call, driver.ErrClosed, "cuda:%d", v.n)
	}
	return nil
}

// end ends a call. The last call of a closed device releases the context.
func (v *device) end() {
	if v.users.Add(-1) == closedBit {
		v.release() //nolint:errcheck // Close has returned, so there is no one to tell
	}
}

// release releases the context once, or again where the driver refused it and
// Close is called again.
func (v *device) release() error {
	// A call that was refused for closedBit ends here too.
	if !v.users.CompareAndSwap(closedBit, closedBit|releasedBit) {
		return nil
	}
	// The tables first: no other Device may use a handle whose context goes. Opened memory
	// is closed, pools are destroyed, and access to peers is taken away, while the context
	// is still there.
	for _, table := range []*handleTable{&v.d.streams, &v.d.events, &v.d.functions, &v.d.modules, &v.d.execs, &v.d.graphs} {
		table.removeAllOf(v)
	}
	for _, end := range []func() error{v.closeOpened, v.destroyPools} {
		if err := end(); err != nil {
			v.users.Add(-releasedBit)
			return err
		}
	}
	peersErr, retainedErr := v.disablePeers(), v.retained.release(v)
	leftErr := cmp.Or(peersErr, retainedErr)
	err := v.releaseContext()
	if errors.Is(err, driver.ErrDeviceLost) {
		return leftErr // there is no context any more
	}
	if err != nil {
		v.users.Add(-releasedBit)
	}
	return cmp.Or(err, leftErr)
}

// releaseContext destroys the copy stream and releases the context. Where the
// context is lost or was reset, its stream is gone and the result of the release
// does not matter.
func (v *device) releaseContext() error {
	if !v.copyStreamGone && !v.reset.Load() {
		err := v.check("cuStreamDestroy", C.cuvmm_stream_destroy(v.d.api, v.ctx, v.copyStream))
		if err != nil && !errors.Is(err, driver.ErrDeviceLost) {
			return err
		}
		v.copyStreamGone = true
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
func (v *device) Close() error {
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

// check is Driver.fail, and records a reset.
func (v *device) check(call string, r C.CUresult) error {
	if Result(r) == contextDestroyed {
		v.reset.Store(true)
	}
	return v.d.fail(call, Result(r))
}

// checkBoth is check for a call that involves the context of another device too:
// that may be the one that was reset.
func (v *device) checkBoth(call string, r C.CUresult) error {
	if Result(r) != contextDestroyed || v.d.api.ctx_id == nil || v.wasReset() {
		return v.check(call, r)
	}
	return &driver.CallError{Call: call, Kind: driver.ErrInvalid, Err: v.d.text(Result(r))}
}

// wasReset asks whether the context is still the one that was opened.
func (v *device) wasReset() bool {
	if !v.reset.Load() && Result(C.cuvmm_check_reset(v.d.api, v.ctx)) == contextDestroyed {
		v.reset.Store(true)
	}
	return v.reset.Load()
}

// validFor reports whether a call of w may use handles of v: the context that v opened
// is still there. On one device the ids of the two contexts tell.
func (v *device) validFor(w *device) bool {
	switch {
	case v.reset.Load():
		return false
	case v.n == w.n:
		return v.ctx.id == w.ctx.id
	}
	return !v.wasReset()
}

// gone says that the context is gone, and with it all that was to be freed.
func (v *device) gone() bool { return v.d.lost.Load() || v.reset.Load() }

// checkFree is check for calls that free something.
func (v *device) checkFree(call string, r C.CUresult) error {
	err := v.check(call, r)
	if v.gone() {
		return nil
	}
	return err
}

// MemInfo is the device's free and total memory.
func (v *device) MemInfo() (free, total uint64, err error) {
	err = v.inContext("cuMemGetInfo", func() C.CUresult {
		m := C.cuvmm_mem_info(v.d.api, v.ctx)
		free, total = uint64(m.free), uint64(m.total)
		return m.r
	})
	return free, total, err
}

// Sync waits for the context.
func (v *device) Sync() error {
	return v.inContext("cuCtxSynchronize", func() C.CUresult { return C.cuvmm_sync(v.d.api, v.ctx) })
}

// Do runs f on a locked thread with the context current.
func (v *device) Do(f func() error) error {
	const call = "cuCtxPushCurrent"
	if err := v.begin(call); err != nil {
		return err
	}
	defer v.end()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := v.check(call, C.cuvmm_push(v.d.api, v.ctx)); err != nil {
		return err
	}
	defer C.cuvmm_pop(v.d.api, 0)
	return f()
}

// SyncIfActive waits for the primary context if anyone has it active.
func (d *libcuda) SyncIfActive(dev int) error {
	const call = "cuCtxSynchronize"
	if err := d.checkDevice(call, dev); err != nil {
		return err
	}
	return d.fail(call, Result(C.cuvmm_sync_if_active(d.api, C.int(dev))))
}

// ContextActive reports whether this process has dev's primary context, whichever library
// has made it. It makes none.
func (d *libcuda) ContextActive(dev int) (bool, error) {
	const call = "cuDevicePrimaryCtxGetState"
	if err := d.checkDevice(call, dev); err != nil {
		return false, err
	}
	v := C.cuvmm_active(d.api, C.int(dev))
	return v.v != 0, d.fail(call, Result(v.r))
}
