package driver

// RangeExporter is a Driver that exports address spans as dma-buf, for other devices
// such as network cards.
type RangeExporter interface {
	// ExportRange returns a dma-buf of the memory that is mapped at [p, p+size),
	// whole pages of the host: several chunks, or a part of one. The descriptor is
	// close-on-exec and keeps that memory alive, whatever is mapped there later.
	// The caller must close it. ExportRange needs a context of the device; if none
	// is active, it makes one for the call. A span that is empty, is no whole
	// pages, or is not mapped throughout is ErrInvalid, and a flag that the driver
	// does not know ErrNotSupported.
	ExportRange(p Ptr, size uint64, flags DMABufFlags) (fd int, err error)
}
