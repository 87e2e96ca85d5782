package shareable

import (
	"encoding/binary"
	"sync/atomic"
	"unsafe"

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

// lay writes what stays and finds the words that move.
func (p *page) lay(instance [16]byte, id uint64) {
	binary.LittleEndian.PutUint32(p.mem[offMagic:], pageMagic)
	binary.LittleEndian.PutUint32(p.mem[offVersion:], pageVersion)
	copy(p.mem[offInstance:], instance[:])
	binary.LittleEndian.PutUint64(p.mem[offObject:], id)
	p.queued, p.done = word(p.mem, offQueued), word(p.mem, offDone)
	p.generation, p.state = word(p.mem, offGeneration), word(p.mem, offState)
	p.heartbeat, p.wake = word(p.mem, offHeartbeat), word32(p.mem, offWake)
	p.state.Store(uint64(wire.StateLive))
}
