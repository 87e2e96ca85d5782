//go:build cgo && linux

package cuda

/*
#cgo CFLAGS: -std=gnu11 -Wall -Wextra -Werror
#cgo LDFLAGS: -lpthread

// No shim keeps a pointer that it was passed, and none calls back into Go.
// The copies of ordinary memory end with a synchronise of their stream, a launch
// copies its arguments, and the others that take a pointer queue nothing.
#cgo noescape cuvmm_set_access
#cgo noescape cuvmm_copy_in
#cgo noescape cuvmm_copy_out
#cgo noescape cuvmm_copy_2d_in
#cgo noescape cuvmm_copy_2d_out
#cgo noescape cuvmm_launch
#cgo noescape cuvmm_launch_ex
#cgo nocallback cuvmm_granularity
#cgo nocallback cuvmm_reserve
#cgo nocallback cuvmm_address_free
#cgo nocallback cuvmm_create
#cgo nocallback cuvmm_release
#cgo nocallback cuvmm_map
#cgo nocallback cuvmm_unmap
#cgo nocallback cuvmm_set_access
#cgo nocallback cuvmm_copy_in
#cgo nocallback cuvmm_copy_out
#cgo nocallback cuvmm_copy
#cgo nocallback cuvmm_copy_2d_in
#cgo nocallback cuvmm_copy_2d_out
#cgo nocallback cuvmm_copy_2d
#cgo nocallback cuvmm_fill
#include <stdlib.h>
#include "shims.h"
*/
import "C"

import (
	"sync"
	"unsafe"

	"github.com/cuvmm/cuvmm/cgo/internal/dl"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// Default returns the process's CUDA driver and loads libcuda at the first call.
// Where there is no libcuda, or only the stub that programs are linked with, the
// error is driver.ErrNoDriver and says what was looked for. A libcuda that is too
// old or does not initialise is another error. After an error the next call tries
// again, because a fabric manager may still be starting.
func Default() (driver.Driver, error) {
	standard.Lock()
	defer standard.Unlock()
	if standard.driver == nil {
		d, err := load(library)
		if err != nil {
			return nil, err
		}
		standard.driver = d
	}
	return standard.driver, nil
}

// standard is the process's driver, nil until it has been loaded.
var standard struct {
	sync.Mutex
	driver *libcuda
}

// Load opens any library as libcuda, for tests. The library stays loaded.
func Load(path string) (driver.Driver, error) {
	d, err := load(path)
	if err != nil {
		return nil, err
	}
	return d, nil
}

// load is Load.
//
// Safety: what is freed came from calloc, and nothing else refers to it yet.
func load(path string) (*libcuda, error) {
	lib, err := dl.Open(path, driver.ErrNoDriver)
	if err != nil {
		return nil, err
	}
	d, err := bind(path, lib)
	if err != nil {
		return nil, err
	}
	if err := d.start(); err != nil {
		C.free(unsafe.Pointer(d.api)) // the library stays: it may have started threads
		return nil, err
	}
	return d, nil
}

// bind finds the symbols of a library.
//
// Safety: as Load.
func bind(path string, lib *dl.Library) (*libcuda, error) {
	d := &libcuda{api: (*C.struct_cuvmm_api)(C.calloc(1, C.sizeof_struct_cuvmm_api)), allocations: map[driver.Handle]allocation{}}
	d.graphs.oneAtATime, d.execs.oneAtATime = true, true
	if d.api == nil {
		return nil, &driver.CallError{Call: "open " + path, Kind: driver.ErrOutOfMemory}
	}
	if missing := lib.Bind(unsafe.Pointer(&C.cuvmm_symbols), unsafe.Pointer(d.api)); missing != "" {
		C.free(unsafe.Pointer(d.api))
		return nil, lib.TooOld("the driver", missing)
	}
	return d, nil
}

// watched reports whether a forked child of this process will know that it is one.
var watched = sync.OnceValue(func() bool { return C.cuvmm_watch_fork() == 0 })

// start initialises the driver and counts its devices.
func (d *libcuda) start() error {
	// Before the first call: a child must never use what its parent initialised.
	if !watched() {
		return &driver.CallError{Call: "pthread_atfork", Kind: driver.ErrOutOfMemory}
	}
	if r := Result(C.cuvmm_init(d.api)); r != success {
		return d.fail("cuInit", r)
	}
	n := C.cuvmm_device_count(d.api)
	if n.r != 0 {
		return d.fail("cuDeviceGetCount", Result(n.r))
	}
	d.devices = int(n.v)
	return nil
}
