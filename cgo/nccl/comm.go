//go:build cgo && linux

package nccl

/*
#cgo noescape cuvmm_nccl_run
#cgo nocallback cuvmm_nccl_run
#include "shims.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// Call is cuvmm_nccl_call in C: these do not compile if the two differ.
//
// Safety: only sizes and offsets are used.
var (
	_ = [1]struct{}{}[unsafe.Sizeof(Call{})-unsafe.Sizeof(C.struct_cuvmm_nccl_call{})]
	_ = [1]struct{}{}[unsafe.Offsetof(Call{}.Kind)-unsafe.Offsetof(C.struct_cuvmm_nccl_call{}.kind)]
	_ = [1]struct{}{}[unsafe.Offsetof(Call{}.Reduction)-unsafe.Offsetof(C.struct_cuvmm_nccl_call{}.reduction)]
	_ = [1]struct{}{}[unsafe.Offsetof(Call{}.Peer)-unsafe.Offsetof(C.struct_cuvmm_nccl_call{}.peer)]
	_ = [1]struct{}{}[unsafe.Offsetof(Call{}.Src)-unsafe.Offsetof(C.struct_cuvmm_nccl_call{}.src)]
	_ = [1]struct{}{}[unsafe.Offsetof(Call{}.Dst)-unsafe.Offsetof(C.struct_cuvmm_nccl_call{}.dst)]
	_ = [1]struct{}{}[unsafe.Offsetof(Call{}.Count)-unsafe.Offsetof(C.struct_cuvmm_nccl_call{}.count)]
)

// Comm is one member's end of a group. After Abort, or a Destroy that has ended it, all its
// methods return driver.ErrClosed; so do those of a nil Comm.
//
// All methods may be called at any time. One call is in NCCL at a time, and what waits for other
// members blocks there: RegisterWindow, Finalize, the first Run, in which members connect, and one
// that finds the stream full. Abort ends that call, which then returns an error, and waits for it.
type Comm struct {
	lib       *Library
	inContext func(func() error) error

	ending atomic.Bool // Abort has been called

	// mu is held during all calls but the first part of Abort, which ends what waits with it.
	// parentMu comes after it, and is held during calls with the parent, which do not wait.
	mu, parentMu sync.Mutex
	c            *C.struct_cuvmm_nccl_comm // nil once it has ended; set with both held
	finalized    bool                      // guarded by mu
	finalizeErr  error                     // what came of that; guarded by mu

	// run is the function that Run passes to inContext, made once because a new one for each Run
	// would be allocated; count and stream are its arguments.
	run    func() error
	count  int
	stream driver.Stream
}

// Join begins to join a group of size members, of which this one is rank. It returns at
// once. Comm.Progress is to be called until it is no longer ErrInProgress: all members have
// joined then, and until then all other calls but Abort and Destroy are ErrInProgress. Each
// member has the device of the CUDA context that is current.
//
// inContext calls a function with that context current on the calling thread, as Do of a
// driver.Device does; nil: the function is called as it is. All later calls of NCCL go through
// it too, because NCCL changes the thread's device. If it returns without calling the function, its
// error is the call's, but Abort then calls NCCL without the context.
//
// The caller must end the Comm, with Destroy or Abort.
func (l *Library) Join(id ID, rank, size int, inContext func(func() error) error) (*Comm, error) {
	const call = "ncclCommInitRankConfig"
	if rank != int(int32(rank)) || size != int(int32(size)) { //nolint:gosec // that is what is checked
		return nil, &driver.CallError{Call: call, Kind: driver.ErrInvalid, Err: fmt.Errorf("rank %d of %d", rank, size)}
	}
	if inContext == nil {
		inContext = func(f func() error) error { return f() }
	}
	c := &Comm{lib: l, inContext: inContext, c: C.cuvmm_nccl_new()}
	if c.c == nil {
		return nil, &driver.CallError{Call: call, Kind: driver.ErrOutOfMemory}
	}
	c.run = func() error {
		C.cuvmm_nccl_run(&l.api, c.c, C.size_t(c.count), C.uintptr_t(c.stream))
		return failure(&c.c.out)
	}
	err := inContext(func() error {
		// Safety: C copies the ID.
		C.cuvmm_nccl_join(&l.api, c.c, unsafe.Pointer(&id), C.int(rank), C.int(size))
		return failure(&c.c.out)
	})
	if err != nil && !errors.Is(err, ErrInProgress) {
		if c.c.parent != nil {
			C.cuvmm_nccl_abort_parent(&l.api, c.c)
		}
		c.free()
		return nil, err
	}
	return c, nil
}

// free frees what is left once both communicators have ended. Requires mu.
func (c *Comm) free() {
	c.parentMu.Lock()
	defer c.parentMu.Unlock()
	C.cuvmm_nccl_free(c.c)
	c.c = nil
}

// begin begins a call. The caller calls c.mu.Unlock unless there is an error.
func (c *Comm) begin(call string) error {
	if c == nil {
		return closed(call)
	}
	c.mu.Lock()
	if c.c == nil || c.ending.Load() {
		c.mu.Unlock()
		return closed(call)
	}
	return nil
}

// beginJoined is begin for a group that stands.
func (c *Comm) beginJoined(call string) error {
	if err := c.begin(call); err != nil {
		return err
	}
	if c.c.joined == 0 {
		c.mu.Unlock()
		return ErrInProgress
	}
	if c.c.child == nil { // Destroy has ended it, but not the parent
		c.mu.Unlock()
		return closed(call)
	}
	return nil
}

// do makes a call with the context current.
func (c *Comm) do(call string, f func()) error {
	if err := c.beginJoined(call); err != nil {
		return err
	}
	defer c.mu.Unlock()
	return c.inContext(func() error {
		f()
		return failure(&c.c.out)
	})
}

// Progress is ErrInProgress while not all members have joined. Later it is nil, or the error
// that something has failed with. It does not wait for other members. After a failure the Comm
// cannot be used any more: end it with Abort.
func (c *Comm) Progress() error {
	const call = "ncclCommGetAsyncError"
	if err := c.begin(call); err != nil {
		return err
	}
	defer c.mu.Unlock()
	c.parentMu.Lock()
	defer c.parentMu.Unlock()
	if c.c.parent == nil || c.c.joined != 0 && c.c.child == nil {
		return closed(call) // it is being aborted, or Destroy has ended the child alone
	}
	return c.inContext(func() error {
		C.cuvmm_nccl_progress(&c.lib.api, c.c)
		return failure(&c.c.out)
	})
}

// Run queues calls on a stream, several as one group. Up to 16 calls allocate nothing. After an
// error that is not driver.ErrInvalid the Comm cannot be used any more, as after one of Progress.
//
// Safety: calls has no pointers, and is copied to C's memory.
func (c *Comm) Run(stream driver.Stream, calls []Call) error {
	for i := range calls {
		if o := calls[i].Operation; o >= operations {
			return &driver.CallError{Call: o.String(), Kind: driver.ErrInvalid, Err: fmt.Errorf("call %d is no operation", i)}
		}
	}
	if err := c.beginJoined("ncclGroupStart"); err != nil {
		return err
	}
	defer c.mu.Unlock()
	if len(calls) == 0 {
		return nil
	}
	if len(calls) > int(c.c.capacity) && C.cuvmm_nccl_reserve(c.c, C.size_t(len(calls))) != 0 {
		return &driver.CallError{Call: "ncclGroupStart", Kind: driver.ErrOutOfMemory}
	}
	copy(unsafe.Slice((*Call)(unsafe.Pointer(c.c.calls)), len(calls)), calls)
	c.count, c.stream = len(calls), stream
	return c.inContext(c.run)
}

// Register registers n bytes at p with NCCL. If NCCL has no use for that, handle is 0, and
// Deregister of it does nothing. A library before 2.19 is driver.ErrNotSupported.
//
// Safety: only numbers of NCCL's pointers are used.
func (c *Comm) Register(p, n uint64) (handle uint64, err error) {
	has := func(l *Library) bool { return l.api.reg != nil && l.api.dereg != nil }
	err = c.doIf(has, "ncclCommRegister", "2.19", func() {
		C.cuvmm_nccl_register(&c.lib.api, c.c, C.uint64_t(p), C.uint64_t(n))
		handle = uint64(uintptr(c.c.handle))
	})
	return handle, err
}

// Deregister undoes Register.
func (c *Comm) Deregister(handle uint64) error {
	has := func(l *Library) bool { return l.api.dereg != nil }
	return c.doIf(has, "ncclCommDeregister", "2.19", func() { C.cuvmm_nccl_deregister(&c.lib.api, c.c, C.uint64_t(handle)) })
}

// RegisterWindow makes a symmetric window of n bytes at p. All members have to call it, with
// as many bytes, and it waits for them. Where NCCL makes no window, handle is 0. A library
// before 2.27 is driver.ErrNotSupported.
//
// Safety: only the number of NCCL's pointer is used.
func (c *Comm) RegisterWindow(p, n uint64) (handle uint64, err error) {
	has := func(l *Library) bool { return l.api.window != nil && l.api.dewindow != nil }
	err = c.doIf(has, "ncclCommWindowRegister", "2.27", func() {
		C.cuvmm_nccl_register_window(&c.lib.api, c.c, C.uint64_t(p), C.uint64_t(n))
		handle = uint64(uintptr(unsafe.Pointer(c.c.window)))
	})
	return handle, err
}

// DeregisterWindow undoes RegisterWindow.
func (c *Comm) DeregisterWindow(handle uint64) error {
	has := func(l *Library) bool { return l.api.dewindow != nil }
	return c.doIf(has, "ncclCommWindowDeregister", "2.27", func() { C.cuvmm_nccl_deregister_window(&c.lib.api, c.c, C.uint64_t(handle)) })
}

// doIf is do for a call that not every library has.
func (c *Comm) doIf(has func(*Library) bool, call, since string, f func()) error {
	if c == nil || c.lib == nil {
		return closed(call)
	}
	if !has(c.lib) {
		return notSupported(call, "NCCL %s does not have it; it came with %s", c.lib, since)
	}
	return c.do(call, f)
}

// Finalize waits for all that is queued. Then comes Destroy. NCCL does not say what its second call
// does: a second Finalize makes none, and returns what the first one did.
func (c *Comm) Finalize() error {
	if err := c.beginJoined("ncclCommFinalize"); err != nil {
		return err
	}
	defer c.mu.Unlock()
	if c.finalized {
		return c.finalizeErr
	}
	return c.inContext(c.finalize)
}

// finalize calls NCCL, with the context current. Requires mu.
func (c *Comm) finalize() error {
	C.cuvmm_nccl_finalize(&c.lib.api, c.c)
	c.finalized, c.finalizeErr = true, failure(&c.c.out)
	return c.finalizeErr
}

// Destroy ends the Comm, after Finalize, which it calls if that was not done. While the Comm joins
// it returns ErrInProgress and does nothing. One that has failed is aborted, and the error is its
// failure.
func (c *Comm) Destroy() error {
	if err := c.begin("ncclCommDestroy"); err != nil {
		return err
	}
	defer c.mu.Unlock()
	ended := false
	err := c.inContext(func() error {
		c.c.out.r = C.ncclResult_t(success)
		if c.c.joined != 0 && !c.finalized {
			_ = c.finalize() // C's part looks at the outcome
		}
		c.parentMu.Lock()
		defer c.parentMu.Unlock()
		C.cuvmm_nccl_destroy(&c.lib.api, c.c)
		ended = c.c.parent == nil && c.c.child == nil
		return failure(&c.c.out)
	})
	if ended {
		c.free()
	}
	return err
}

// Abort ends the Comm, and stops what it has queued on streams. It tells other members nothing. It
// may be called while another call runs, which it ends, and for which it waits.
func (c *Comm) Abort() error {
	if c == nil || c.lib == nil {
		return closed("ncclCommAbort")
	}
	c.ending.Store(true)
	err := c.anyway(c.abortParent)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.c == nil {
		return closed("ncclCommAbort")
	}
	if err = errors.Join(err, c.anyway(c.abortChild)); err != nil {
		c.parentMu.Lock()
		defer c.parentMu.Unlock()
		c.c = nil // NCCL may still write to C's part, which stays
		return err
	}
	c.free()
	return nil
}

// anyway runs f with the context current, or without it if it must be.
func (c *Comm) anyway(f func() error) error {
	ran := false
	err := c.inContext(func() error {
		ran = true
		return f()
	})
	if !ran {
		return f()
	}
	return err
}

func (c *Comm) abortParent() error {
	c.parentMu.Lock()
	defer c.parentMu.Unlock()
	if c.c == nil || c.c.parent == nil {
		return nil
	}
	C.cuvmm_nccl_abort_parent(&c.lib.api, c.c)
	return failure(&c.c.ended)
}

// abortChild requires mu.
func (c *Comm) abortChild() error {
	if c.c.child == nil {
		return nil
	}
	C.cuvmm_nccl_abort_child(&c.lib.api, c.c)
	return failure(&c.c.out)
}
