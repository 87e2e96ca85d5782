package shareable

import (
	"sync/atomic"
	"unsafe"
)

// storeWord stores v to the page-locked word at off, in one atomic store.
//
// Safety: b is page-locked memory of the driver, aligned to a page, and off is a
// multiple of 8 within it. Only the caller frees it.
func storeWord(b []byte, off int, v uint64) {
	atomic.StoreUint64((*uint64)(unsafe.Pointer(&b[off])), v)
}

// loadWord loads the page-locked word at off, in one atomic load.
//
// Safety: as storeWord.
func loadWord(b []byte, off int) uint64 {
	return atomic.LoadUint64((*uint64)(unsafe.Pointer(&b[off])))
}
