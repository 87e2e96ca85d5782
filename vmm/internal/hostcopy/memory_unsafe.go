//go:build linux

package hostcopy

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// allocate maps memory and returns the size bytes of it that begin with a huge page. Memory of less than
// a huge page has its pages at once: it is all written soon, and each fault would cost more.
func allocate(size uint64) (mapping, mem []byte, err error) {
	const private = unix.MAP_PRIVATE | unix.MAP_ANONYMOUS
	if size < unit {
		mapping, err = unix.Mmap(-1, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, private|unix.MAP_POPULATE)
		return mapping, mapping, err
	}
	mapping, err = unix.Mmap(-1, 0, int(size+unit), unix.PROT_READ|unix.PROT_WRITE, private)
	if err != nil {
		return nil, nil, err
	}
	front := -uintptr(unsafe.Pointer(&mapping[0])) % unit
	mem = mapping[front:][:size:size]
	_ = unix.Madvise(mem, unix.MADV_HUGEPAGE) // small pages do as well
	return mapping, mem, nil
}

func free(mapping []byte) error { return unix.Munmap(mapping) }

// drop gives the pages back. free does the same, in one thread.
func drop(b []byte) { _ = unix.Madvise(b, unix.MADV_DONTNEED) }

var pageSize = uintptr(os.Getpagesize())

// pages is the pages in which the bytes lie.
//
// Safety: the pointer is used by a system call that keeps nothing, while the caller has the bytes;
// the pages hold at least one of those each, so they are the process's. Populating pages and asking
// for them changes no contents.
func pages(b []byte) (first unsafe.Pointer, n uintptr) {
	p := unsafe.Pointer(&b[0])
	into := uintptr(p) % pageSize
	return unsafe.Add(p, -int(into)), (into + uintptr(len(b)) + pageSize - 1) &^ (pageSize - 1)
}

// populate gives the bytes pages, if the system can do that: else they come as they are written.
func populate(b []byte) {
	p, n := pages(b)
	_, _, _ = unix.Syscall(unix.SYS_MADVISE, uintptr(p), n, unix.MADV_POPULATE_WRITE)
}

// resident reports whether the bytes, all of one page, have it; also where that is not known.
func resident(b []byte) bool {
	p, _ := pages(b)
	var in byte
	_, _, failed := unix.Syscall(unix.SYS_MINCORE, uintptr(p), pageSize, uintptr(unsafe.Pointer(&in)))
	return failed != 0 || in&1 != 0
}
