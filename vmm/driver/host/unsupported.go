package host

import (
	"errors"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

var (
	_ driver.RangeExporter = (*Driver)(nil)
	_ driver.FabricSharer  = (*Driver)(nil)
)

// ExportRange is not supported: a memory file is no dma-buf, and the network
// cards that take one can register host memory by its address.
func (*Driver) ExportRange(driver.Ptr, uint64, driver.DMABufFlags) (int, error) {
	return -1, none("ExportRange", "host memory is made of memory files, which are no dma-buf")
}

// ExportFabric is not supported: host memory is in no fabric.
func (*Driver) ExportFabric(driver.Handle) (name [64]byte, err error) {
	return name, none("ExportFabric", "host memory is in no fabric")
}

// ImportFabric is not supported.
func (*Driver) ImportFabric([64]byte, uint64, driver.Prop) (driver.Handle, error) {
	return 0, none("ImportFabric", "host memory is in no fabric")
}

func none(verb, why string) error {
	return &driver.CallError{Call: verb, Kind: driver.ErrNotSupported, Err: errors.New(why)}
}
