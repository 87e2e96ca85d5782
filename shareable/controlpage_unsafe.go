//go:build linux

package shareable

import (
	"encoding/binary"
	"math"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/shareable/internal/wire"
)

// word is the 64-bit word at off.
// Safety: mem is a page of its own, aligned to 4096 bytes and never moved by the
// garbage collector, and off is one of the page's offsets, multiples of 64.
func word(mem []byte, off int) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&mem[off]))
}

// word32 is word for the futex.
// Safety: as for word.
func word32(mem []byte, off int) *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(&mem[off]))
}

// initWords stores the words that never change, and sets the pointers to the others.
// Safety: as for word.
func (p *ownerPage) initWords(instance [16]byte, id uint64) {
	binary.LittleEndian.PutUint32(p.mem[atMagic:], pageMagic)
	binary.LittleEndian.PutUint32(p.mem[atVersion:], pageVersion)
	copy(p.mem[atInstance:], instance[:])
	binary.LittleEndian.PutUint64(p.mem[atObject:], id)
	p.queued, p.published = word(p.mem, atQueued), word(p.mem, atDone)
	p.generation, p.state = word(p.mem, atGeneration), word(p.mem, atState)
	p.heartbeat, p.wake = word(p.mem, atHeartbeat), word32(p.mem, atWake)
	p.state.Store(uint64(wire.StateLive))
	p.heartbeat.Store(uint64(time.Now().UnixNano()))
}

// Operations of futex(2). Without the private flag they reach every process
// that maps the page.
const (
	futexWait = 0
	futexWake = 1
)

// wait sleeps until the wake word differs from was, a wake comes, or the timeout is
// over. The caller checks the page again in each case.
//
// Safety: the word lies in the page, which stays mapped until close; the kernel
// only reads it.
func (p *readerPage) wait(was uint32, timeout time.Duration) {
	ts := unix.NsecToTimespec(int64(timeout))
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&p.b[atWake])), futexWait,
		uintptr(was), uintptr(unsafe.Pointer(&ts)), 0, 0)
}

// wakeWaiters wakes all that wait on the page, in order to end a wait of this
// process. Waits of other processes check the page and continue.
func (p *readerPage) wakeWaiters() { futexWakeAll(p.b) }

// futexWakeAll wakes all that wait on a page, in every process.
//
// Safety: the word lies in the page, which is mapped; the kernel only uses its
// address.
func futexWakeAll(page []byte) {
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&page[atWake])), futexWake,
		math.MaxInt32, 0, 0, 0)
}
