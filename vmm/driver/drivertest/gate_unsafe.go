package drivertest

import (
	"sync/atomic"
	"unsafe"
)

// storeWord stores v in the first four bytes of pinned memory in one piece,
// so that a stream that waits for it never sees half of it.
//
// Safety: pinned memory is page-aligned, or at least aligned for any word, and
// word has at least four bytes; the case that allocated it frees it last.
func storeWord(word []byte, v uint32) {
	atomic.StoreUint32((*uint32)(unsafe.Pointer(&word[0])), v)
}
