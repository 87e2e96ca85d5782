//go:build linux

package host

import (
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// pointer makes a pointer of an address that this package mapped.
//
// Safety: the address lies outside Go's heap, so neither the garbage collector
// nor checkptr has anything to say about it.
func pointer(p uint64) unsafe.Pointer {
	u := uintptr(p)
	return *(*unsafe.Pointer)(unsafe.Pointer(&u))
}

// bytesAt is [p, p+n) as a slice.
//
// Safety: the caller has found the span mapped, and an operation that is
// registered on its stream keeps it mapped (see loseIfUsed).
func bytesAt(p, n uint64) []byte {
	return unsafe.Slice((*byte)(pointer(p)), int(n))
}

// load reads the word at p in one piece.
//
// Safety: as bytesAt; p is aligned to width.
func load(p uint64, width int) uint64 {
	if width == 4 {
		return uint64(atomic.LoadUint32((*uint32)(pointer(p))))
	}
	return atomic.LoadUint64((*uint64)(pointer(p)))
}

// store writes the word at p in one piece.
//
// Safety: as load.
func store(p, v uint64, width int) {
	if width == 4 {
		atomic.StoreUint32((*uint32)(pointer(p)), uint32(v))
		return
	}
	atomic.StoreUint64((*uint64)(pointer(p)), v)
}

// swap stores v in the word of 8 bytes at p if it is old, in one piece.
//
// Safety: as load.
func swap(p, old, v uint64) bool {
	return atomic.CompareAndSwapUint64((*uint64)(pointer(p)), old, v)
}

// mmap maps n bytes at p, or anywhere for p == 0, from an offset of fd. The raw call is
// used because unix.Mmap keeps a table of its own.
//
// Safety: a fixed p is inside a reservation of this package.
func mmap(p, n uint64, prot, flags, fd int, off uint64) (uint64, error) {
	at, err := unix.MmapPtr(fd, int64(off), pointer(p), uintptr(n), prot, flags)
	return uint64(uintptr(at)), err
}

// munmap unmaps [p, p+n).
//
// Safety: the span is this package's and nothing uses it any more.
func munmap(p, n uint64) error {
	return unix.MunmapPtr(pointer(p), uintptr(n))
}

// mprotect sets what the CPU may do with [p, p+n).
//
// Safety: the span is mapped, and nothing running needs more than prot.
func mprotect(p, n uint64, prot int) error {
	return unix.Mprotect(bytesAt(p, n), prot)
}
