package driver

// RangeExporter is a Driver that gives address spans to other devices, network
// cards above all, as dma-buf.
type RangeExporter interface {
	// ExportRange gives a dma-buf of the memory that is mapped at [p, p+size),
	// whole pages of the host: several chunks, or a part of one. The descriptor
	// is close-on-exec and keeps that memory alive, whatever is mapped there
	// later. It needs a context of the device, and where none is active it makes
	// one for the call. What is empty, no whole pages, or not all mapped is
	// ErrInvalid. The caller must close the descriptor.
	ExportRange(p Ptr, size uint64) (fd int, err error)
}
