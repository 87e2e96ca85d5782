package driver

import "time"

// Driver is addresses and physical memory. Its calls need no context and make
// none. Sizes and addresses are bytes; every size, address and offset is a
// multiple of the granularity, else ErrInvalid. Safe for concurrent use.
//
// One lost device is a lost process: from then on every call that names a
// device, whichever it is, returns ErrDeviceLost on entry, and only a new process
// helps. Unmap, Release, Free and a SetAccess that only takes access away still
// work: memory can be given back.
type Driver interface {
	// Name is the part of a device name before the colon: "cuda", "host".
	Name() string

	// Devices lists what this process can see, in ordinal order.
	Devices() ([]Info, error)

	// Supports answers nil, ErrNotSupported, or an error that settles nothing
	// and must not be cached. It tries rather than reads attributes.
	Supports(dev int, f Feature) error

	// CanAccessPeer says whether device from can reach memory of device to.
	CanAccessPeer(from, to int) (bool, error)

	// Granularity is the unit of sizes and addresses for memory of this kind.
	Granularity(Prop) (uint64, error)

	// GranularityRecommended is the unit that the driver calls best for
	// performance, a multiple of Granularity.
	GranularityRecommended(Prop) (uint64, error)

	// Reserve takes an address range aligned to align (0: the granularity).
	// No memory stands behind it. Exhausted: ErrAddressSpace, never
	// ErrOutOfMemory, though CUDA uses one code for both.
	Reserve(size, align uint64) (Ptr, error)

	// Free gives back a whole range, as reserved. Something still mapped in it
	// is ErrInvalid.
	Free(p Ptr, size uint64) error

	// Create takes physical memory. It reads zero.
	Create(size uint64, p Prop) (Handle, error)

	// Location is where the memory of a handle lives. Of an imported one it is
	// the truth and not what Import was told, where the driver can know.
	Location(Handle) (Location, error)

	// Release drops the caller's reference. The memory goes back when it is
	// also unmapped everywhere and no file descriptor is left.
	Release(Handle) error

	// Map puts the whole of h at p. Size must be h's own size. The mapping
	// starts without access for anyone. To keep within one reservation is the
	// caller's business: CUDA has let a mapping run over the end of one.
	Map(p Ptr, size uint64, h Handle) error

	// Unmap takes away whole mappings, one or several side by side; part of
	// one is ErrInvalid. A hole among them is the caller's mistake, which the
	// host refuses and CUDA passes over. It waits for nothing: work still
	// queued on the memory loses the process.
	Unmap(p Ptr, size uint64) error

	// SetAccess sets what each of who may do with [p, p+size), which may span
	// many mappings. A hole at either end is ErrInvalid, one between them the
	// caller's mistake. Others keep what they had.
	SetAccess(p Ptr, size uint64, who []Grant) error

	// Access says what who may do at p.
	Access(p Ptr, who Location) (Access, error)

	// Export gives a new, close-on-exec file descriptor that keeps the memory
	// alive. The caller must close it. ErrInvalid unless created with ShareFD;
	// what was imported cannot be exported again.
	Export(Handle) (fd int, err error)

	// Import makes a handle of an exported fd. It checks what kind of file fd
	// is and does not take it; close it when Import returns. A wrong size may
	// only show at Map, as ErrInvalid. Where the memory lives Location says;
	// p.Location need only be a device that is there.
	Import(fd int, size uint64, p Prop) (Handle, error)

	// SyncIfActive waits for all work of dev's primary context if that context
	// is active, whoever made it so, and never makes one. While a stream of it
	// is being captured it answers ErrCapturing, and the capture is destroyed.
	SyncIfActive(dev int) error

	// Open retains dev's primary context. The caller must Close the Device.
	Open(dev int) (Device, error)
}

// Device is what needs a context. Each call pushes the context, works and pops
// inside one C function, so goroutines may change threads between calls. Safe
// for concurrent use. Once a device of the process is lost every call returns
// ErrDeviceLost on entry, except FreeStream, FreeEvent, DisablePeer and Close.
//
// Copies and fills check both ends when they are queued: an address that is
// not mapped, or that this device may not read or write, is ErrInvalid and
// harmless. Memory that is unmapped or taken away after that, before the work
// has run, loses all devices.
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
	// FreeStream lets queued work finish by itself. Only what NewStream made
	// can be freed. A stream that is gone must not be used: streams of other
	// libraries are welcome, so a driver cannot know which handles are good.
	FreeStream(Stream) error
	// SyncStream waits for the stream. On one that is being captured it
	// answers ErrCapturing, and the capture is destroyed.
	SyncStream(Stream) error
	// StreamDone says whether the stream has done all its work of now. On one that
	// is being captured it is ErrCapturing, and the capture goes on.
	StreamDone(Stream) (bool, error)
	// CopyStream is the library's copy stream, one for each Device.
	CopyStream() Stream
	// Capturing says whether the stream is being captured, also when the
	// capture is already destroyed but not ended. Ask before any wait.
	Capturing(Stream) (bool, error)

	NewEvent(EventFlags) (Event, error)
	FreeEvent(Event) error
	// SyncEvent waits for the last Record, without spinning if the event is
	// EventBlocking. It destroys no capture of another stream.
	SyncEvent(Event) error
	Record(Event, Stream) error
	// Wait makes later work of the stream wait for the event's last Record.
	Wait(Stream, Event) error
	// Done says whether the last Record has been reached; true if there was none.
	Done(Event) (bool, error)
	// Elapsed is the device's own time between two events with EventTiming.
	Elapsed(from, to Event) (time.Duration, error)

	// Sync waits for all work of the context, like Driver.SyncIfActive.
	Sync() error
	// Do runs f on a locked thread with the context current.
	Do(f func() error) error
	// Close releases the context. Where it fails, only Close works any more. Twice
	// is fine.
	Close() error
}
