package driver

// IPCHandle names memory or an event of one process in another. It is plain data: any
// channel may carry it.
type IPCHandle [64]byte

// LegacyIPC is a Device whose plain memory and events other processes can open by a handle,
// as cuIpcGetMemHandle and cuIpcGetEventHandle make it. A process that opens a handle of
// its own gets ErrInvalid.
type LegacyIPC interface {
	// MemHandle returns the handle of memory of Allocator.AllocPlain. p is its first address.
	// Memory of a pool, or mapped by Map, is ErrInvalid.
	MemHandle(p Ptr) (IPCHandle, error)
	// OpenMem maps the memory of a handle for this device, which may be another one than
	// that on which the memory lies. It needs no EnablePeer for that and enables none, and
	// a DisablePeer takes no access to it away. If the process that made it has ended or has
	// freed the memory, or the handle is no handle, that is ErrInvalid; no path to its device
	// is ErrNotSupported. Opening one handle twice returns the same address, and counts.
	OpenMem(IPCHandle) (Ptr, error)
	// CloseMem undoes one OpenMem; the last unmaps the memory. The memory stays until its
	// maker frees it. If the maker does that first, what happens to work on it is undefined.
	CloseMem(Ptr) error

	// EventHandle returns the handle of an event that was made with EventInterprocess. Any
	// other is ErrInvalid.
	EventHandle(Event) (IPCHandle, error)
	// OpenEvent opens the event of a handle. On CUDA that works also when its maker has
	// ended. FreeEvent frees it. When the maker frees its own, what calls on this one return
	// is undefined.
	OpenEvent(IPCHandle) (Event, error)
}
