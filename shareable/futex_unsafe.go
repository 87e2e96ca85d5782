//go:build linux

package shareable

import (
	"math"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Operations of futex(2). Without the private flag they reach every process
// that maps the page.
const (
	futexWait = 0
	futexWake = 1
)

// wait sleeps until the wake word is no longer was, somebody wakes those who
// wait on it, or the time is over. It says no more than that it is worth
// looking again.
//
// Safety: the word lies in the page, which stays mapped until close; the kernel
// only reads it.
func (p *readerPage) wait(was uint32, most time.Duration) {
	ts := unix.NsecToTimespec(int64(most))
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&p.b[atWake])), futexWait,
		uintptr(was), uintptr(unsafe.Pointer(&ts)), 0, 0)
}

// rouse wakes whoever waits on the page: it is how a wait of our own ends. Those
// of other processes look again and go on waiting.
func (p *readerPage) wakeWaiters() { futexWakeAll(p.b) }

// wakeAll wakes whoever waits on a page, in any process.
//
// Safety: the word lies in the page, which is mapped; the kernel only looks it up.
func futexWakeAll(page []byte) {
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&page[atWake])), futexWake,
		math.MaxInt32, 0, 0, 0)
}
