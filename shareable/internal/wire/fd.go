package wire

import "sync/atomic"

// FD is an open file descriptor that is closed once. It has no finalizer: a number
// that is closed late may belong to another file by then. Its methods are safe for
// concurrent use; a number from Int is valid only until Close or Take.
type FD struct {
	next atomic.Int64 // the number plus 1, so that a zero FD is a closed one
}

// NewFD takes over fd. The caller must Close the FD, or Take the descriptor back.
func NewFD(fd int) *FD {
	f := new(FD)
	f.next.Store(int64(fd) + 1)
	return f
}

// Int is the descriptor, or -1 after Close and Take.
func (f *FD) Int() int {
	if f == nil {
		return -1
	}
	return int(f.next.Load()) - 1
}

// Take returns the descriptor, or -1 after Close and Take. The caller must close
// it.
func (f *FD) Take() int {
	if f == nil {
		return -1
	}
	return int(f.next.Swap(0)) - 1
}

// Close closes the descriptor. Further calls do nothing.
func (f *FD) Close() error {
	if fd := f.Take(); fd >= 0 {
		return closeFD(fd)
	}
	return nil
}
