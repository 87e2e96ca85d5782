//go:build cgo && linux

package cuda

// #include "shims.h"
import "C"

import (
	"errors"
	"fmt"
	"syscall"
	"unsafe"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

var (
	_ driver.RangeExporter = (*libcuda)(nil)
	_ driver.FabricSharer  = (*libcuda)(nil)
)

// Export returns a new file descriptor, which the driver makes close-on-exec.
func (d *libcuda) Export(h driver.Handle) (int, error) {
	const call = "cuMemExportToShareableHandle"
	a, err := d.tracked(call, h)
	if err != nil {
		return -1, err
	}
	if a.share&driver.ShareFD == 0 {
		return -1, refuse(call, driver.ErrInvalid, "imported, or created without a way to share")
	}
	v := C.cuvmm_export(d.api, C.CUmemGenericAllocationHandle(h))
	if v.r != 0 {
		return -1, d.fail(call, Result(v.r))
	}
	return int(v.v), nil
}

// Import makes a handle of an exported descriptor. The driver checks what the
// descriptor refers to; its size only Map checks.
func (d *libcuda) Import(fd int, size uint64, p driver.Prop) (driver.Handle, error) {
	const call = "cuMemImportFromShareableHandle"
	if err := d.checkImport(call, size, p); err != nil {
		return 0, err
	}
	if err := checkExported(fd); err != nil {
		return 0, &driver.CallError{Call: call, Kind: driver.ErrInvalid, Err: err}
	}
	v := C.cuvmm_import(d.api, C.int(fd))
	if v.r != 0 {
		return 0, d.fail(call, Result(v.r))
	}
	return d.trackImported(driver.Handle(v.v))
}

// checkImport checks the size and kind of memory that is to be imported.
func (d *libcuda) checkImport(call string, size uint64, p driver.Prop) error {
	gran, err := d.granularity(call, p, false)
	if err != nil {
		return err
	}
	if size == 0 || size%gran != 0 {
		return refuse(call, driver.ErrInvalid, "%d bytes", size)
	}
	return nil
}

// trackImported is track with the location where the memory is. The importer may
// have named another one.
func (d *libcuda) trackImported(h driver.Handle) (driver.Handle, error) {
	p, err := d.properties(h)
	if err != nil {
		C.cuvmm_release(d.api, C.CUmemGenericAllocationHandle(h)) // the error is err whatever this returns
		return 0, err
	}
	return d.track(h, p.Location, 0), nil
}

// ExportRange is cuMemGetHandleForAddressRange for a dma-buf. That call needs a
// current context, so the device's primary context is retained for it.
func (d *libcuda) ExportRange(p driver.Ptr, size uint64, flags driver.DMABufFlags) (int, error) {
	const call = "cuMemGetHandleForAddressRange"
	if d.api.mem_range_handle == nil {
		return -1, refuse(call, driver.ErrNotSupported, "the driver has no such call; it came with CUDA 11.7")
	}
	if err := checkSpan(call, p, size); err != nil {
		return -1, err
	}
	c, err := d.dmaBufFlags(call, flags)
	if err != nil {
		return -1, err
	}
	// The span names no device, and the call needs the context of one.
	o := C.cuvmm_ordinal(d.api, C.CUdeviceptr(p))
	if o.r != 0 {
		return -1, d.fail(call, Result(o.r))
	}
	dev := int(o.v)
	if err := d.checkDevice(call, dev); err != nil {
		return -1, err
	}
	v := C.cuvmm_export_range(d.api, C.int(dev), C.CUdeviceptr(p), C.size_t(size), c)
	if v.r != 0 {
		return -1, d.fail(call, Result(v.r))
	}
	return int(v.v), nil
}

// dmaBufFlagsVersion is the first CUDA whose dma-buf take flags.
const dmaBufFlagsVersion = 12080

// dmaBufFlags is the flags as CUDA wants them. Drivers from before CUDA 12.8 return
// INVALID_VALUE for any, so they are not asked.
func (d *libcuda) dmaBufFlags(call string, flags driver.DMABufFlags) (c C.ulonglong, err error) {
	switch flags {
	case 0:
		return 0, nil
	case driver.DMABufPCIe:
		absent := refuse(call, driver.ErrNotSupported, "a dma-buf with flags before CUDA 12.8")
		return C.CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE, d.needsVersion(dmaBufFlagsVersion, absent)
	}
	return 0, refuse(call, driver.ErrNotSupported, "dma-buf flags %#x", flags)
}

// ExportFabric is cuMemExportToShareableHandle for a fabric handle.
//
// Safety: the name is an array of 64 bytes.
func (d *libcuda) ExportFabric(h driver.Handle) (name [64]byte, err error) {
	const call = "cuMemExportToShareableHandle"
	a, err := d.tracked(call, h)
	if err != nil {
		return name, err
	}
	if a.share&driver.ShareFabric == 0 {
		return name, refuse(call, driver.ErrInvalid, "imported, or created without a fabric handle")
	}
	f := C.cuvmm_export_fabric(d.api, C.CUmemGenericAllocationHandle(h))
	if f.r != 0 {
		return name, fabricError(d.fail(call, Result(f.r)))
	}
	return *(*[64]byte)(unsafe.Pointer(&f.name)), nil
}

// ImportFabric is cuMemImportFromShareableHandle for a fabric handle.
//
// Safety: the name is an array of 64 bytes.
func (d *libcuda) ImportFabric(name [64]byte, size uint64, p driver.Prop) (driver.Handle, error) {
	const call = "cuMemImportFromShareableHandle"
	if err := d.checkImport(call, size, p); err != nil {
		return 0, err
	}
	v := C.cuvmm_import_fabric(d.api, *(*C.CUmemFabricHandle)(unsafe.Pointer(&name)))
	if v.r != 0 {
		return 0, fabricError(d.fail(call, Result(v.r)))
	}
	return d.trackImported(driver.Handle(v.v))
}

// fabricError adds to an error that a fabric handle caused it, which CUDA's text
// does not say, and for ErrPermission what is missing.
func fabricError(err error) error {
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

// checkExported refuses a descriptor that cannot be exported memory before the
// driver sees it. Exported memory is a character device. Only the kernel is asked: a
// file system may be a daemon that does not reply.
func checkExported(fd int) error {
	mode, err := C.cuvmm_file_mode(C.int(fd))
	if mode < 0 {
		return fmt.Errorf("statx: %w", err)
	}
	if mode&syscall.S_IFMT != syscall.S_IFCHR {
		return fmt.Errorf("descriptor %d is not of a character device (mode %#o)", fd, mode)
	}
	return nil
}
