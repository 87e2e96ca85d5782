//go:build cgo && linux

package cuda

// #include "shims.h"
import "C"

import (
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

var _ driver.LegacyIPC = (*device)(nil)

// openedMemory is the memory of other processes that a Device has open.
type openedMemory struct {
	mu     sync.Mutex
	byName map[driver.IPCHandle]*opened
	byPtr  map[driver.Ptr]*opened
}

// opened is memory at one address. OpenMem of a handle that is open does not reach
// libcuda.
type opened struct {
	p      driver.Ptr
	names  []driver.IPCHandle
	calls  int // of cuIpcOpenMemHandle
	counts int // of OpenMem
}

// MemHandle is cuIpcGetMemHandle.
func (v *device) MemHandle(p driver.Ptr) (driver.IPCHandle, error) {
	name, err := v.newName("cuIpcGetMemHandle", func() C.cuvmm_name {
		return C.cuvmm_ipc_get_mem(v.d.api, v.ctx, C.CUdeviceptr(p))
	})
	return name, err
}

// OpenMem is cuIpcOpenMemHandle.
//
// Safety: the handle is an array of 64 bytes.
func (v *device) OpenMem(h driver.IPCHandle) (driver.Ptr, error) {
	const call = "cuIpcOpenMemHandle"
	if err := v.begin(call); err != nil {
		return 0, err
	}
	defer v.end()
	m := &v.opened
	m.mu.Lock()
	defer m.mu.Unlock()
	if o := m.byName[h]; o != nil {
		o.counts++
		return o.p, nil
	}
	c := C.cuvmm_ipc_open_mem(v.d.api, v.ctx, *(*C.CUipcMemHandle)(unsafe.Pointer(&h)))
	if err := v.check(call, c.r); err != nil {
		return 0, ownHandle(err)
	}
	p := driver.Ptr(c.v)
	o := m.byPtr[p]
	if o == nil {
		if m.byPtr == nil {
			m.byName, m.byPtr = map[driver.IPCHandle]*opened{}, map[driver.Ptr]*opened{}
		}
		o = &opened{p: p}
		m.byPtr[p] = o
	}
	o.calls++
	o.counts++
	o.names = append(o.names, h)
	m.byName[h] = o
	return p, nil
}

// ownHandle adds to an error what CUDA's text does not say.
func ownHandle(err error) error {
	var c *driver.CallError
	var r Result
	if errors.As(err, &c) && errors.As(err, &r) && r == invalidContext && errors.Is(err, driver.ErrInvalid) {
		return &driver.CallError{Call: c.Call, Kind: c.Kind, Err: fmt.Errorf("%w; a process cannot open a handle of its own", c.Err)}
	}
	return err
}

// CloseMem is cuIpcCloseMemHandle, with the last close.
func (v *device) CloseMem(p driver.Ptr) error {
	const call = "cuIpcCloseMemHandle"
	if err := v.begin(call); err != nil {
		return err
	}
	defer v.end()
	m := &v.opened
	m.mu.Lock()
	defer m.mu.Unlock()
	o := m.byPtr[p]
	switch {
	case o == nil:
		return refuse(call, driver.ErrInvalid, "nothing was opened at %v", p)
	case o.counts > 1:
		o.counts--
		return nil
	}
	return v.closeMem(o, v.check)
}

// closeMem makes as many calls as were made to open the memory. After an error it can be
// called again. The caller holds the lock.
func (v *device) closeMem(o *opened, check func(string, C.CUresult) error) error {
	for ; o.calls > 0; o.calls-- {
		if err := check("cuIpcCloseMemHandle", C.cuvmm_ipc_close_mem(v.d.api, v.ctx, C.CUdeviceptr(o.p))); err != nil {
			return err
		}
	}
	delete(v.opened.byPtr, o.p)
	for _, name := range o.names {
		delete(v.opened.byName, name)
	}
	return nil
}

// closeOpened closes the memory that is left open when the device closes. What a reset
// took is forgotten.
func (v *device) closeOpened() error {
	v.opened.mu.Lock()
	defer v.opened.mu.Unlock()
	for _, o := range v.opened.byPtr {
		if v.reset.Load() {
			o.calls = 0
		}
		if err := v.closeMem(o, v.checkFree); err != nil {
			return err
		}
	}
	return nil
}

// EventHandle is cuIpcGetEventHandle.
func (v *device) EventHandle(e driver.Event) (driver.IPCHandle, error) {
	const call = "cuIpcGetEventHandle"
	var c C.cuvmm_name
	err := v.onMade(call, &v.d.events, uint64(e), func() C.CUresult {
		c = C.cuvmm_ipc_get_event(v.d.api, v.ctx, event(e))
		return c.r
	})
	return nameOf(c), err
}

// onMade is onHandle for a handle that this process made.
func (v *device) onMade(call string, table *handleTable, handle uint64, f func() C.CUresult) error {
	if e := table.find(handle); e != nil && e.foreign {
		return v.refuse(call, refuse(call, driver.ErrInvalid, "%#x was made by another process", handle))
	}
	return v.onHandle(call, table, handle, f)
}

// OpenEvent is cuIpcOpenEventHandle.
//
// Safety: the handle is an array of 64 bytes.
func (v *device) OpenEvent(h driver.IPCHandle) (driver.Event, error) {
	e, err := v.newEntry("cuIpcOpenEventHandle", &v.d.events, &tableEntry{foreign: true}, func() (C.cuvmm_value, error) {
		return C.cuvmm_ipc_open_event(v.d.api, v.ctx, *(*C.CUipcEventHandle)(unsafe.Pointer(&h))), nil
	})
	return driver.Event(e), ownHandle(err)
}

// newName makes a call that returns 64 bytes.
func (v *device) newName(call string, f func() C.cuvmm_name) ([64]byte, error) {
	if err := v.begin(call); err != nil {
		return [64]byte{}, err
	}
	defer v.end()
	c := f()
	return nameOf(c), v.check(call, c.r)
}

// nameOf is what a call has returned.
//
// Safety: bytes is an array of 64 bytes.
func nameOf(c C.cuvmm_name) [64]byte { return *(*[64]byte)(unsafe.Pointer(&c.bytes)) }
