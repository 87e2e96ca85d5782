//go:build cgo && linux

package cuda

// #include "shims.h"
import "C"

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// Driver is a loaded libcuda. Its own calls need no context and make none. Safe
// for concurrent use.
type Driver struct {
	api     *C.struct_cuvmm_api
	devices int

	// lost is of all devices at once: after the first sticky result none of the
	// process works any more, also one that had nothing to do with it.
	lost atomic.Bool

	mu      sync.Mutex
	handles map[driver.Handle]handle

	// What was made and not freed: libcuda crashes on what it does not know.
	// Events are the driver's and not a device's, since one device's streams
	// may wait for another's events.
	streams, events made

	granularities sync.Map // granule to uint64
}

// handle is what is known of physical memory: CUDA may crash on one that it does
// not know.
type handle struct {
	home  int          // the device, -1 where it is on none of this process's
	share driver.Share // the ways to export it
	refs  int          // CUDA may give one handle twice
}

var _ driver.Driver = (*Driver)(nil)

// Name is "cuda".
func (d *Driver) Name() string { return "cuda" }

// fail turns a result into an error. What is sticky loses the process.
func (d *Driver) fail(call string, r Result) error {
	if r == success {
		return nil
	}
	if r.sticky() {
		d.lost.Store(true)
	}
	return &driver.CallError{Call: call, Kind: r.kind(call), Err: d.text(r)}
}

// text gives the result CUDA's words.
func (d *Driver) text(r Result) error {
	if r == forked {
		return r
	}
	name, words := C.cuvmm_error_name(d.api, C.CUresult(r)), C.cuvmm_error_text(d.api, C.CUresult(r))
	if name == nil || words == nil {
		return r
	}
	return named{r, C.GoString(name) + ": " + C.GoString(words)}
}

// rule is an error of the seam's own, before CUDA is asked.
func rule(call string, kind error, format string, args ...any) error {
	return &driver.CallError{Call: call, Kind: kind, Err: fmt.Errorf(format, args...)}
}

// on checks that there is such a device and that the process is not lost.
func (d *Driver) on(call string, dev int) error {
	if dev < 0 || dev >= d.devices {
		return rule(call, driver.ErrNoDevice, "cuda:%d; there are %d", dev, d.devices)
	}
	if d.lost.Load() {
		return rule(call, driver.ErrDeviceLost, "cuda:%d: a device of this process failed before, and CUDA then fails all of them; only a new process helps", dev)
	}
	return nil
}

// Devices lists what this process can see; CUDA_VISIBLE_DEVICES hides the rest.
func (d *Driver) Devices() ([]driver.Info, error) {
	v := C.cuvmm_version(d.api)
	if v.r != 0 {
		return nil, d.fail("cuDriverGetVersion", Result(v.r))
	}
	all := make([]driver.Info, d.devices)
	for i := range all {
		c := C.cuvmm_device_info(d.api, C.int(i))
		if c.r != 0 {
			return nil, d.fail("cuDeviceGet", Result(c.r))
		}
		all[i] = info(i, &c, int(v.v))
	}
	return all, nil
}

// Supports tries what it can without a context.
func (d *Driver) Supports(dev int, f driver.Feature) error {
	if err := d.on("Supports", dev); err != nil {
		return err
	}
	return d.probe(dev, f)
}

// CanAccessPeer says whether one device can reach the other's memory.
func (d *Driver) CanAccessPeer(from, to int) (bool, error) {
	const call = "cuDeviceCanAccessPeer"
	for _, dev := range []int{from, to} {
		if err := d.on(call, dev); err != nil {
			return false, err
		}
	}
	if from == to {
		return true, nil
	}
	v := C.cuvmm_can_access_peer(d.api, C.int(from), C.int(to))
	return v.v != 0, d.fail(call, Result(v.r))
}

// SyncIfActive waits for the primary context if anyone has it active.
func (d *Driver) SyncIfActive(dev int) error {
	const call = "cuCtxSynchronize"
	if err := d.on(call, dev); err != nil {
		return err
	}
	return d.fail(call, Result(C.cuvmm_sync_if_active(d.api, C.int(dev))))
}
