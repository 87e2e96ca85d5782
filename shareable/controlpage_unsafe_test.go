//go:build linux

package shareable

import "unsafe"

// wakeWord is the futex word of a page.
//
// Safety: the page is mapped for writing for as long as its test runs.
func wakeWord(page []byte) *uint32 { return (*uint32)(unsafe.Pointer(&page[atWake])) }
