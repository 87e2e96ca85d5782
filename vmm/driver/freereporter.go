package driver

// FreeReporter is a Driver that knows when memory that was shared is free. It never uses
// the number of a handle again.
type FreeReporter interface {
	// Freed reports whether h was released and no other process has a descriptor or a
	// mapping of its memory any more. In doubt it is false.
	Freed(h Handle) (bool, error)
}
