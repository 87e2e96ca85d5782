package driver

// FabricSharer is a Driver that shares memory with other machines by 64-byte
// handles. Where the device is part of no fabric, or this process may not use
// it, creating memory with ShareFabric is ErrNotSupported or ErrPermission.
type FabricSharer interface {
	// ExportFabric gives the handle's name in the fabric. It keeps nothing alive,
	// and whoever knows it can import the memory. What was not created with
	// ShareFabric is ErrInvalid.
	ExportFabric(h Handle) ([64]byte, error)
	// ImportFabric makes a handle of a name from ExportFabric, here or on another
	// machine. As for Import the size is the exporter's word. A name of nothing
	// is ErrInvalid, or ErrNotSupported where there is no fabric.
	ImportFabric(name [64]byte, size uint64, p Prop) (Handle, error)
}
