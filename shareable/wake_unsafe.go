//go:build linux

package shareable

import (
	"math"
	"unsafe"

	"golang.org/x/sys/unix"
)

// wakeAll wakes whoever waits on a page, in any process.
// Safety: the word lies in the page, which is mapped; the kernel only looks it up.
func wakeAll(mem []byte) {
	const wake = 1 // FUTEX_WAKE, not private
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&mem[offWake])), wake, math.MaxInt32, 0, 0, 0)
}
