//go:build cgo && linux

package cuda

// #include "shims.h"
import "C"

import (
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// libcuda is one that is loaded, as a driver.Driver. Its own calls need no context and make none. Safe
// for concurrent use.
type libcuda struct {
	api     *C.struct_cuvmm_api
	devices int

	// lost is about all devices at once: after the first sticky result no device of
	// the process works any more, whether or not it was involved.
	lost atomic.Bool

	mu          sync.Mutex
	allocations map[driver.Handle]allocation

	// One table for all devices, because the streams of one may wait for the events
	// of another.
	streams, events    handleTable
	modules, functions handleTable
	graphs, execs      handleTable
	pools              handleTable
	imports            imports

	granularities sync.Map // granularityKey to uint64
}

var _ driver.Driver = (*libcuda)(nil)

// Name is "cuda".
func (d *libcuda) Name() string { return "cuda" }

// fail turns a result into an error. A sticky result loses the process.
func (d *libcuda) fail(call string, r Result) error {
	if r == success {
		return nil
	}
	if r.sticky() {
		d.lost.Store(true)
	}
	return &driver.CallError{Call: call, Kind: r.kind(call), Err: d.text(r)}
}

// text is a result with CUDA's words for it.
func (d *libcuda) text(r Result) error {
	if r == forked {
		return r
	}
	name, words := C.cuvmm_error_name(d.api, C.CUresult(r)), C.cuvmm_error_text(d.api, C.CUresult(r))
	if name == nil || words == nil {
		return r
	}
	return named{r, C.GoString(name) + ": " + C.GoString(words)}
}

// refuse is an error that package driver asks for and CUDA is not asked about.
func refuse(call string, kind error, format string, args ...any) error {
	return &driver.CallError{Call: call, Kind: kind, Err: fmt.Errorf(format, args...)}
}

// checkDevice checks that there is such a device and that the process is not lost.
func (d *libcuda) checkDevice(call string, dev int) error {
	if dev < 0 || dev >= d.devices {
		return refuse(call, driver.ErrNoDevice, "cuda:%d; there are %d", dev, d.devices)
	}
	if d.lost.Load() {
		return refuse(call, driver.ErrDeviceLost, "cuda:%d: a device of this process failed before, and CUDA then fails all of them; only a new process helps", dev)
	}
	return nil
}

// checkSpan refuses a span that overflows the address space. CUDA would return
// success.
func checkSpan(call string, p driver.Ptr, n uint64) error {
	if p+driver.Ptr(n) < p {
		return refuse(call, driver.ErrInvalid, "%d bytes at %v", n, p)
	}
	return nil
}

// pointer is a handle of the driver's as the C pointer that it is.
//
// Safety: the pointer is outside Go's heap. Go memory reaches C in CopyIn, CopyOut,
// CopyIn2D, CopyOut2D, LoadModule and Launch alone, whose shims do not use it after they
// return.
func pointer(n uint64) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&n)) }
