package driver

// FabricSharer is a Driver that shares memory with other machines by 64-byte
// handles. Where the device is part of no fabric, or this process may not use
// it, creating memory with ShareFabric is ErrNotSupported or ErrPermission.
type FabricSharer interface {
	// ExportFabric returns the handle's name in the fabric. The name keeps nothing
	// alive, and every process that knows it can import the memory. Memory that was
	// not created with ShareFabric is ErrInvalid.
	ExportFabric(h Handle) ([64]byte, error)
	// ImportFabric makes a handle of a name from ExportFabric, here or on another
	// machine. As for Import, a wrong size may be found only by Map. A name of
	// nothing is ErrInvalid, or ErrNotSupported where there is no fabric.
	ImportFabric(name [64]byte, size uint64, p Prop) (Handle, error)
}
