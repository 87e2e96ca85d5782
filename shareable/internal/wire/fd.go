package wire

import "sync/atomic"

// FD is an open file descriptor that is closed once. No finalizer closes it: a
// number that is closed late may be another file by then. It is safe for
// concurrent use, but for the time between Int and the use of the number.
type FD struct {
	next atomic.Int64 // the number and one, so that a zero FD is a closed one
}

// NewFD takes over fd. The caller must Close what it answers, or Take it back.
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

// Take answers the descriptor, or -1, and leaves it to the caller to close.
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
