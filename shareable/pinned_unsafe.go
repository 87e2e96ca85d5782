package shareable

import (
	"sync/atomic"
	"unsafe"
)

// storeWord writes the pinned word at off in one piece.
//
// Safety: b is page-locked memory of the driver's, on a page boundary, off a
// multiple of 8 within it, and it is freed only by who calls this.
func storeWord(b []byte, off int, v uint64) {
	atomic.StoreUint64((*uint64)(unsafe.Pointer(&b[off])), v)
}

// loadWord reads the pinned word at off in one piece.
//
// Safety: as storeWord.
func loadWord(b []byte, off int) uint64 {
	return atomic.LoadUint64((*uint64)(unsafe.Pointer(&b[off])))
}
