//go:build cgo && linux

package cuda

// #include "shims.h"
import "C"

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

var (
	_ driver.RangeExporter = (*Driver)(nil)
	_ driver.FabricSharer  = (*Driver)(nil)
)

// ExportRange is cuMemGetHandleForAddressRange for a dma-buf. It needs a
// context to be current, so it retains the device's primary one for the call.
func (d *Driver) ExportRange(p driver.Ptr, size uint64) (int, error) {
	const call = "cuMemGetHandleForAddressRange"
	if d.api.mem_range_handle == nil {
		return -1, rule(call, driver.ErrNotSupported, "the driver has no such call; it came with CUDA 11.7")
	}
	if err := inside(call, p, size); err != nil {
		return -1, err
	}
	o := C.cuvmm_ordinal(d.api, C.CUdeviceptr(p))
	if o.r != 0 {
		return -1, d.fail(call, Result(o.r))
	}
	dev := int(o.v)
	if err := d.on(call, dev); err != nil {
		return -1, err
	}
	v := C.cuvmm_export_range(d.api, C.int(dev), C.CUdeviceptr(p), C.size_t(size))
	if v.r != 0 {
		return -1, d.fail(call, Result(v.r))
	}
	return int(v.v), nil
}

// ExportFabric is cuMemExportToShareableHandle for a fabric handle.
// Safety: the name is an array of 64 bytes.
func (d *Driver) ExportFabric(h driver.Handle) (name [64]byte, err error) {
	const call = "cuMemExportToShareableHandle"
	k, err := d.known(call, h)
	if err != nil {
		return name, err
	}
	if k.share&driver.ShareFabric == 0 {
		return name, rule(call, driver.ErrInvalid, "imported, or created without a fabric handle")
	}
	f := C.cuvmm_export_fabric(d.api, C.CUmemGenericAllocationHandle(h))
	if f.r != 0 {
		return name, ofFabric(d.fail(call, Result(f.r)))
	}
	return *(*[64]byte)(unsafe.Pointer(&f.name)), nil
}

// ImportFabric is cuMemImportFromShareableHandle for a fabric handle.
// Safety: the name is an array of 64 bytes.
func (d *Driver) ImportFabric(name [64]byte, size uint64, p driver.Prop) (driver.Handle, error) {
	const call = "cuMemImportFromShareableHandle"
	if err := d.importable(call, size, p); err != nil {
		return 0, err
	}
	v := C.cuvmm_import_fabric(d.api, *(*C.CUmemFabricHandle)(unsafe.Pointer(&name)))
	if v.r != 0 {
		return 0, ofFabric(d.fail(call, Result(v.r)))
	}
	return d.keepImported(driver.Handle(v.v))
}

// ofFabric says of an error that it is one of fabric handles, which CUDA's words
// do not, and what is missing where they may not be had.
func ofFabric(err error) error {
	var c *driver.CallError
	if !errors.As(err, &c) {
		return err
	}
	switch {
	case errors.Is(err, driver.ErrPermission):
		return &driver.CallError{Call: c.Call, Kind: c.Kind, Err: fmt.Errorf("fabric handle: %w; no fabric here, or no IMEX channel for this process", c.Err)}
	case errors.Is(err, driver.ErrNotSupported), errors.Is(err, driver.ErrInvalid):
		return &driver.CallError{Call: c.Call, Kind: c.Kind, Err: fmt.Errorf("fabric handle: %w", c.Err)}
	}
	return err
}
