//go:build cgo && linux

package nccl

// #include "shims.h"
import "C"

import (
	"errors"
	"sync"
	"unsafe"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// Comm is a communicator that does not block: a member's end of a group. Each of its calls
// takes microseconds, but Abort, which takes up to half a second, and has to be made with the
// context of its device current, as driver.Device.Do makes it. Safe for concurrent use: calls
// wait for each other, Abort too.
type Comm struct {
	l *Library

	// Guarded by mu.
	mu    sync.Mutex
	c     *C.struct_cuvmm_nccl_comm // nil after Destroy and Abort
	calls []C.struct_cuvmm_nccl_call
}

// Join begins to make this process the member rank of a group of so many. Progress is
// ErrInProgress until all members are there.
//
// Safety: C copies the identity.
func (l *Library) Join(id ID, rank, size int) (*Comm, error) {
	var c *C.struct_cuvmm_nccl_comm
	s := Status(C.cuvmm_nccl_new(&l.api, (*C.char)(unsafe.Pointer(&id[0])), C.int(rank), C.int(size), &c))
	if c == nil {
		return nil, &driver.CallError{Call: "ncclCommInitRankConfig", Kind: driver.ErrOutOfMemory}
	}
	comm := &Comm{l: l, c: c}
	if err := l.fail("ncclCommInitRankConfig", s, nil); err != nil && !errors.Is(err, ErrInProgress) {
		C.cuvmm_nccl_free(c) // there is no communicator
		return nil, err
	}
	return comm, nil
}

// with makes a call of NCCL.
func (c *Comm) with(name string, call func(*C.struct_cuvmm_nccl_comm) C.ncclResult_t) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.c == nil {
		return &driver.CallError{Call: name, Kind: driver.ErrClosed}
	}
	return c.l.fail(name, Status(call(c.c)), c.c)
}

// needs is with for a symbol that older libraries do not have.
func (c *Comm) needs(name, since string, call func(*C.struct_cuvmm_nccl_comm) C.ncclResult_t) error {
	if !c.l.has[name] {
		return unsupported(name, c.l.String()+" has no "+name+", which came with "+since)
	}
	return c.with(name, call)
}

// Progress is nil if all that was begun is done and no failure is known, and ErrInProgress
// while it is not.
func (c *Comm) Progress() error {
	return c.with("ncclCommGetAsyncError", func(p *C.struct_cuvmm_nccl_comm) C.ncclResult_t { return C.cuvmm_nccl_async_error(p) })
}

// Run queues calls on a stream, as one group if there are several. With ErrInProgress they
// are queued once Progress returns nil.
//
// Safety: C reads the calls, which have no pointers of Go, during the call only.
func (c *Comm) Run(stream driver.Stream, calls []Call) error {
	if len(calls) == 0 {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.c == nil {
		return &driver.CallError{Call: "ncclGroupStart", Kind: driver.ErrClosed}
	}
	c.calls = c.calls[:0]
	for _, x := range calls {
		if x.Operation >= operations {
			return &driver.CallError{Call: x.Operation.String(), Kind: driver.ErrInvalid}
		}
		c.calls = append(c.calls, C.struct_cuvmm_nccl_call{
			operation: C.int(x.Operation), kind: C.int(x.Kind), reduction: C.int(x.Reduction), peer: C.int(x.Peer),
			src: C.ulonglong(x.Src), dst: C.ulonglong(x.Dst), count: C.ulonglong(x.Count),
		})
	}
	var failed C.int
	s := Status(C.cuvmm_nccl_run(c.c, C.ulonglong(stream), &c.calls[0], C.int(len(calls)), &failed))
	if s == success {
		return nil
	}
	name := "ncclGroupEnd"
	if i := int(failed); i >= 0 && i < len(calls) {
		name = "nccl" + calls[i].Operation.String()
	}
	return c.l.fail(name, s, c.c)
}

// Register makes memory known to NCCL, which keeps its pages until Deregister. It needs NCCL
// 2.19, and has to be one chunk.
func (c *Comm) Register(at, size uint64) (handle uint64, err error) {
	var h C.ulonglong
	err = c.needs("ncclCommRegister", "2.19", func(p *C.struct_cuvmm_nccl_comm) C.ncclResult_t {
		return C.cuvmm_nccl_register(p, C.ulonglong(at), C.ulonglong(size), &h)
	})
	return uint64(h), err
}

// Deregister undoes Register.
func (c *Comm) Deregister(handle uint64) error {
	return c.needs("ncclCommDeregister", "2.19", func(p *C.struct_cuvmm_nccl_comm) C.ncclResult_t {
		return C.cuvmm_nccl_deregister(p, C.ulonglong(handle))
	})
}

// RegisterWindow makes a symmetric window, which all members have to make at the same time.
// Window is its handle once that is done. It needs NCCL 2.27.
func (c *Comm) RegisterWindow(at, size uint64) error {
	return c.needs("ncclCommWindowRegister", "2.27", func(p *C.struct_cuvmm_nccl_comm) C.ncclResult_t {
		return C.cuvmm_nccl_register_window(p, C.ulonglong(at), C.ulonglong(size))
	})
}

// Window is the handle of the last window.
func (c *Comm) Window() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.c == nil {
		return 0
	}
	return uint64(uintptr(unsafe.Pointer(c.c.window)))
}

// DeregisterWindow undoes RegisterWindow.
func (c *Comm) DeregisterWindow(window uint64) error {
	return c.needs("ncclCommWindowDeregister", "2.27", func(p *C.struct_cuvmm_nccl_comm) C.ncclResult_t {
		return C.cuvmm_nccl_deregister_window(p, C.ulonglong(window))
	})
}

// Finalize ends the group: what was queued runs to its end. All members have to call it. It is
// done when Progress returns nil; then comes Destroy.
func (c *Comm) Finalize() error {
	return c.with("ncclCommFinalize", func(p *C.struct_cuvmm_nccl_comm) C.ncclResult_t { return C.cuvmm_nccl_finalize(p) })
}

// Destroy gives back what the communicator has.
func (c *Comm) Destroy() error {
	return c.end("ncclCommDestroy", func(p *C.struct_cuvmm_nccl_comm) C.ncclResult_t { return C.cuvmm_nccl_destroy(p) })
}

// Abort ends this member's part at once, also what it has queued on streams, and gives back
// what the communicator has.
func (c *Comm) Abort() error {
	return c.end("ncclCommAbort", func(p *C.struct_cuvmm_nccl_comm) C.ncclResult_t { return C.cuvmm_nccl_abort(p) })
}

// end is the last call. Once more is fine.
func (c *Comm) end(name string, call func(*C.struct_cuvmm_nccl_comm) C.ncclResult_t) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.c == nil {
		return nil
	}
	s := Status(call(c.c))
	err := c.l.fail(name, s, nil)
	if errors.Is(err, ErrInProgress) {
		err = nil
	}
	if s != statusProgress { // else NCCL may still write there
		C.cuvmm_nccl_free(c.c)
	}
	c.c = nil
	return err
}
