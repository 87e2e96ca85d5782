//go:build cgo && linux

package cuda

/*
#cgo CFLAGS: -std=gnu11 -Wall -Wextra -Werror
#cgo LDFLAGS: -lpthread

// Every shim returns before anything it was given is used again, and none calls
// back into Go. cuvmm_copy_in and cuvmm_copy_out end with a synchronise of their
// stream, and the rest of what takes a pointer is not queued at all.
#cgo noescape cuvmm_set_access
#cgo noescape cuvmm_copy_in
#cgo noescape cuvmm_copy_out
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
#cgo nocallback cuvmm_fill
#include <stdlib.h>
#include "shims.h"
*/
import "C"

import (
	"fmt"
	"strings"
	"sync"
	"unsafe"

	"github.com/cuvmm/cuvmm/cgo/internal/dl"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// Default gives the process's CUDA driver, loading libcuda at the first call.
// Where there is no libcuda, or only the stub that programs are linked with,
// the error Is driver.ErrNoDriver and says what was looked for. One that is
// there and too old, or that does not initialise, is another error.
func Default() (driver.Driver, error) {
	d, err := standard()
	if err != nil {
		return nil, err
	}
	return d, nil
}

var standard = sync.OnceValues(func() (*Driver, error) { return Load(library) })

// Load opens any library as libcuda, for tests. It stays loaded.
// Safety: what is freed came from calloc, and nobody else has it yet.
func Load(path string) (*Driver, error) {
	lib, err := dl.Open(path)
	if err != nil {
		kind := driver.ErrNotSupported // there, but not to be loaded
		if strings.Contains(err.Error(), path) && strings.Contains(err.Error(), "No such file") {
			kind = driver.ErrNoDriver
		}
		return nil, &driver.CallError{Call: "open " + path, Kind: kind, Err: err}
	}
	d := &Driver{api: (*C.struct_cuvmm_api)(C.calloc(1, C.sizeof_struct_cuvmm_api)), handles: map[driver.Handle]handle{}}
	if d.api == nil {
		return nil, &driver.CallError{Call: "open " + path, Kind: driver.ErrOutOfMemory}
	}
	for i := range C.cuvmm_symbol_count() {
		name := C.GoString(C.cuvmm_symbol_name(i))
		p, err := lib.Sym(name)
		if err != nil && C.cuvmm_symbol_required(i) != 0 {
			C.free(unsafe.Pointer(d.api))
			_ = lib.Close() // nothing of it has been called yet
			return nil, &driver.CallError{Call: "open " + path, Kind: driver.ErrNotSupported,
				Err: fmt.Errorf("the driver is too old: it has no %s", name)}
		}
		C.cuvmm_bind(d.api, i, p)
	}
	if C.cuvmm_watch_fork() != 0 {
		return nil, &driver.CallError{Call: "pthread_atfork", Kind: driver.ErrOutOfMemory}
	}
	if r := Result(C.cuvmm_init(d.api)); r != success {
		return nil, d.fail("cuInit", r)
	}
	n := C.cuvmm_device_count(d.api)
	if n.r != 0 {
		return nil, d.fail("cuDeviceGetCount", Result(n.r))
	}
	d.devices = int(n.v)
	return d, nil
}
