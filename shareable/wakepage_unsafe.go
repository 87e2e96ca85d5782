//go:build linux

package shareable

import (
	"math"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// word is the futex, the first word of the page.
//
// Safety: the page is mapped until close, aligned, and never moved by the garbage
// collector.
func (p *wakePage) word() *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(&p.mem[0])) }

// Operations of futex(2). Without the private flag they reach every process
// that maps the page.
const (
	futexWait = 0
	futexWake = 1
)

// wait sleeps until the word differs from was, a wake comes, or the timeout is over.
// The caller checks the control page again in each case.
//
// Safety: as for word; the kernel only reads the word.
func (p *wakePage) wait(was uint32, timeout time.Duration) {
	ts := unix.NsecToTimespec(int64(timeout))
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&p.mem[0])), futexWait,
		uintptr(was), uintptr(unsafe.Pointer(&ts)), 0, 0)
}

// wakeOwn ends the waits of this process. It also ends those of other processes, which
// check and continue.
func (p *wakePage) wakeOwn() { _ = p.futexWake(math.MaxInt32) }

// wakeReader tells the reader that something has changed, and reports whether it slept.
// It wakes one waiter: a reader cannot make it long by waiting in many threads.
func (p *wakePage) wakeReader() bool {
	p.word().Add(1)
	return p.futexWake(1) > 0
}

// futexWake wakes up to n that wait for the word, and returns how many did.
//
// Safety: as for word; the kernel only uses the address.
func (p *wakePage) futexWake(n int32) uintptr {
	woken, _, errno := unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&p.mem[0])), futexWake,
		uintptr(n), 0, 0, 0)
	if errno != 0 {
		return 0
	}
	return woken
}
