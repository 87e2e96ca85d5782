package driver

import "time"

// Driver is addresses and physical memory. Its calls need no context and make
// none. Sizes, addresses and offsets are in bytes. One that is no multiple of the
// granularity is ErrInvalid. A Driver is safe for concurrent use.
//
// If one device is lost, the whole process is: from then on every call that names
// any device returns ErrDeviceLost on entry, and only a new process helps. Unmap,
// Release, Free and a SetAccess that only removes access still work, so memory can
// be released.
type Driver interface {
	// Name is the part of a device name before the colon: "cuda", "host".
	Name() string

	// Devices lists what this process can see, in ordinal order.
	Devices() ([]Info, error)

	// Supports returns nil, ErrNotSupported, or an error that says neither and
	// must not be cached. It tries the feature, because attributes can be wrong.
	Supports(dev int, f Feature) error

	// CanAccessPeer reports whether device from can reach memory of device to.
	CanAccessPeer(from, to int) (bool, error)

	// Granularity is the unit of sizes and addresses for memory of this kind.
	Granularity(Prop) (uint64, error)

	// GranularityRecommended is the unit that the driver recommends for
	// performance. It is a multiple of Granularity.
	GranularityRecommended(Prop) (uint64, error)

	// Reserve reserves an address range aligned to align (0: the granularity). It
	// has no memory yet. If addresses run out the error is ErrAddressSpace and
	// never ErrOutOfMemory, though CUDA uses one code for both.
	Reserve(size, align uint64) (Ptr, error)

	// Free frees a whole range, as it was reserved. If something is still mapped
	// in it, that is ErrInvalid.
	Free(p Ptr, size uint64) error

	// Create allocates physical memory. It reads zero.
	Create(size uint64, p Prop) (Handle, error)

	// Properties is what the memory of a handle was created with. Compress is true only
	// if the memory is compressed. Of imported memory Share is 0, since it cannot be
	// exported again. Where the driver can know, the location is the true one for an
	// imported handle too, whatever Import was told.
	Properties(Handle) (Prop, error)

	// Release drops the caller's reference. The memory is free when it is also
	// unmapped everywhere and no file descriptor is left.
	Release(Handle) error

	// Map maps the whole of h at p. Size must be h's own size. The mapping starts
	// without access for any device. The caller must keep within one reservation:
	// CUDA has let a mapping run over the end of one.
	Map(p Ptr, size uint64, h Handle) error

	// Unmap unmaps whole mappings, one or several side by side. Part of one is
	// ErrInvalid. A hole between them is the caller's mistake: the host driver
	// refuses it and CUDA ignores it. Unmap waits for nothing. If work is still
	// queued on the memory, every device of the process is lost.
	Unmap(p Ptr, size uint64) error

	// SetAccess sets what each location of grants may do with [p, p+size), which
	// may span many mappings. A hole at either end is ErrInvalid. One between them
	// is the caller's mistake. Other locations keep the access that they have.
	SetAccess(p Ptr, size uint64, grants []Grant) error

	// Access returns what the location may do at p.
	Access(p Ptr, l Location) (Access, error)

	// Export returns a new, close-on-exec file descriptor that keeps the memory
	// alive. The caller must close it. Memory that was not created with ShareFD,
	// or was imported, is ErrInvalid.
	Export(Handle) (fd int, err error)

	// Import makes a handle of an exported fd. It checks what kind of file fd is.
	// The caller still owns fd and closes it when Import has returned. A wrong size
	// may be found only by Map, as ErrInvalid. p.Location need only be a device that
	// exists; Properties says where the memory is.
	Import(fd int, size uint64, p Prop) (Handle, error)

	// SyncIfActive waits for all work of dev's primary context if that context is
	// active, whichever library uses it, and never makes one. While a stream of it
	// is being captured it returns ErrCapturing, and the capture is destroyed.
	SyncIfActive(dev int) error

	// Open retains dev's primary context. The caller must Close the Device.
	Open(dev int) (Device, error)
}

// Device is what needs a context. Each call pushes the context, works and pops
// inside one C function, so goroutines may change threads between calls. A Device
// is safe for concurrent use. Once a device of the process is lost every call
// returns ErrDeviceLost on entry, except FreeStream, FreeEvent, FreeGraph, FreeGraphExec,
// UnloadModule, DestroyPool, DisablePeer and Close.
//
// Copies and fills check both ends when they are queued: an address that is
// not mapped, or that this device may not read or write, is ErrInvalid and
// harmless. If the memory is unmapped or loses its access after that, before the
// work has run, all devices are lost.
type Device interface {
	MemInfo() (free, total uint64, err error)

	// CopyIn copies ordinary memory to the device on the library's own
	// non-blocking stream, and has finished when it returns.
	CopyIn(dst Ptr, src []byte) error
	// CopyOut is CopyIn the other way.
	CopyOut(dst []byte, src Ptr) error
	// Copy queues a copy on s. Either side is device, peer or pinned host memory.
	Copy(dst, src Ptr, n uint64, s Stream) error
	// Fill queues n elements of width 1, 2 or 4 bytes, each set to pattern.
	Fill(dst Ptr, pattern uint32, width int, n uint64, s Stream) error

	// NewStream makes a non-blocking stream.
	NewStream() (Stream, error)
	// FreeStream frees a stream of NewStream. Its queued work still runs. A freed
	// stream must not be used: calls accept streams of other libraries, so a
	// driver cannot know which handles are valid.
	FreeStream(Stream) error
	// SyncStream waits for the stream. On one that is being captured it returns
	// ErrCapturing, and the capture is destroyed.
	SyncStream(Stream) error
	// StreamDone reports whether all work that is queued on the stream now is done. On
	// one that is being captured it returns ErrCapturing, and the capture goes on.
	StreamDone(Stream) (bool, error)
	// CopyStream is the library's copy stream, one for each Device.
	CopyStream() Stream
	// Capturing reports whether the stream is being captured. It is true, too, while
	// a destroyed capture has not been ended. Call it before any wait.
	Capturing(Stream) (bool, error)

	NewEvent(EventFlags) (Event, error)
	FreeEvent(Event) error
	// SyncEvent waits for the last Record, without spinning if the event is
	// EventBlocking. It destroys no capture of another stream.
	SyncEvent(Event) error
	Record(Event, Stream) error
	// Wait makes later work of the stream wait for the event's last Record.
	Wait(Stream, Event) error
	// Done reports whether the last Record has been reached; true if there was none.
	Done(Event) (bool, error)
	// Elapsed is the device's own time between two events with EventTiming.
	Elapsed(from, to Event) (time.Duration, error)

	// Sync waits for all work of the context, like Driver.SyncIfActive.
	Sync() error
	// Do runs f on a locked thread with the context current.
	Do(f func() error) error
	// Close releases the context. If it fails, only Close can be called again. A
	// second Close does nothing.
	Close() error
}
