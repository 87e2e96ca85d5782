//go:build cgo && linux

package cuda

// #include "shims.h"
import "C"

import (
	"errors"
	"sync"
	"syscall"
	"unsafe"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

var _ driver.PoolSharer = (*device)(nil)

// ExportPool is cuMemPoolExportToShareableHandle. A pool that this package did not create
// does not reach libcuda.
func (v *device) ExportPool(p driver.Pool) (int, error) {
	const call = "cuMemPoolExportToShareableHandle"
	fd := -1
	// No process is started before the descriptor closes on exec.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	err := v.onMade(call, &v.d.pools, uint64(p), func() C.CUresult {
		c := C.cuvmm_pool_export(v.d.api, v.ctx, pool(p))
		if c.r == 0 {
			fd = int(c.v)
		}
		return c.r
	})
	return fd, err
}

// imports is the memory that was imported and not freed since, and its pools. libcuda does not
// destroy a pool before its memory is freed, so Close does that. Its zero value is empty. The
// lock is not held during calls of libcuda, since some of them wait for work.
type imports struct {
	mu sync.Mutex
	of map[driver.Ptr]*tableEntry
}

// add notes that p was imported. A token that is imported twice is there once: one free ends both.
func (m *imports) add(p driver.Ptr, of *tableEntry) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.of == nil {
		m.of = map[driver.Ptr]*tableEntry{}
	}
	m.of[p] = of
}

// during makes a call that frees p. What was imported is noted no longer before the call: as
// soon as that is made, another import may return the same address.
func (m *imports) during(p driver.Ptr, free func() error) error {
	m.mu.Lock()
	of := m.of[p]
	delete(m.of, p)
	m.mu.Unlock()
	err := free()
	if err != nil && of != nil {
		m.add(p, of)
	}
	return err
}

// left is an address that was imported from a pool, 0 if there is none.
func (m *imports) left(of *tableEntry) driver.Ptr {
	m.mu.Lock()
	defer m.mu.Unlock()
	for p, e := range m.of {
		if e == of {
			return p
		}
	}
	return 0
}

// freeImports frees what is left of an imported pool's memory.
func (v *device) freeImports(of *tableEntry) error {
	for p := v.d.imports.left(of); p != 0; p = v.d.imports.left(of) {
		err := v.d.imports.during(p, func() error {
			return of.destroy("cuMemFree", func() C.CUresult {
				r := C.cuvmm_plain_free(v.d.api, v.ctx, C.CUdeviceptr(p))
				if Result(r) == invalidValue {
					return 0 // it was freed as another library's
				}
				return r
			})
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// ImportPool is cuMemPoolImportFromShareableHandle. Close frees what is left of its memory,
// and destroys it.
func (v *device) ImportPool(fd int) (driver.Pool, error) {
	const call = "cuMemPoolImportFromShareableHandle"
	handle, err := v.newEntry(call, &v.d.pools, &tableEntry{foreign: true}, func() (C.cuvmm_value, error) {
		if err := checkExported(fd); err != nil {
			return C.cuvmm_value{}, &driver.CallError{Call: call, Kind: driver.ErrInvalid, Err: err}
		}
		return C.cuvmm_pool_import(v.d.api, v.ctx, C.int(fd)), nil
	})
	var c *driver.CallError
	var r Result
	if errors.As(err, &c) && errors.As(err, &r) && r == notSupported && v.d.api.pool_import != nil {
		// So says a libcuda that has the call about a descriptor of memory.
		err = &driver.CallError{Call: call, Kind: driver.ErrInvalid, Err: c.Err}
	}
	return driver.Pool(handle), err
}

// notImported refuses a pool that was imported, from which nothing can be allocated. owner
// is onPool's.
func notImported(call string, p driver.Pool, owner int) error {
	if owner == imported {
		return refuse(call, driver.ErrInvalid, "pool %#x was imported, so nothing can be allocated from it", uint64(p))
	}
	return nil
}

// ExportPointer is cuMemPoolExportPointer. If the pool was not exported before, it does that
// first, and closes the descriptor.
func (v *device) ExportPointer(p driver.Ptr) (driver.PoolToken, error) {
	token, err := v.exportPointer(p)
	var r Result
	if !errors.As(err, &r) || r != invalidValue {
		return token, err
	}
	// libcuda wants the pool itself exported before.
	of, _, found := v.PoolOf(p)
	if found != nil || of == 0 {
		return token, err
	}
	fd, failed := v.ExportPool(of)
	if failed != nil {
		return token, err
	}
	_ = syscall.Close(fd)
	return v.exportPointer(p)
}

func (v *device) exportPointer(p driver.Ptr) (driver.PoolToken, error) {
	return v.newName("cuMemPoolExportPointer", func() C.cuvmm_name {
		return C.cuvmm_pool_export_pointer(v.d.api, v.ctx, C.CUdeviceptr(p))
	})
}

// ImportPointer is cuMemPoolImportPointer.
//
// Safety: the token is an array of 64 bytes.
func (v *device) ImportPointer(from driver.Pool, t driver.PoolToken) (driver.Ptr, error) {
	const call = "cuMemPoolImportPointer"
	var c C.cuvmm_value
	err := v.onPool(call, from, func(owner int) (C.CUresult, error) {
		if owner != imported {
			return 0, refuse(call, driver.ErrInvalid, "pool %#x was not imported", uint64(from))
		}
		c = C.cuvmm_pool_import_pointer(v.d.api, v.ctx, pool(from), *(*C.CUmemPoolPtrExportData)(unsafe.Pointer(&t)))
		if c.r == 0 {
			v.d.imports.add(driver.Ptr(c.v), v.d.pools.find(uint64(from)))
		}
		return c.r, nil
	})
	return driver.Ptr(c.v), err
}
