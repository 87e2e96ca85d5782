//go:build linux

package shareable

import (
	"encoding/binary"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cuvmm/cuvmm/shareable/internal/wire"
)

// word is the 64-bit word at off.
// Safety: mem is a page of its own, aligned to 4096 bytes and never moved by the
// garbage collector, and off is one of the page's offsets, multiples of 64.
func word(mem []byte, off int) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&mem[off]))
}

// initWords stores the words that never change, and sets the pointers to the others.
// Safety: as for word.
func (p *ownerPage) initWords(instance [16]byte, id uint64) {
	binary.LittleEndian.PutUint32(p.mem[atMagic:], pageMagic)
	binary.LittleEndian.PutUint32(p.mem[atVersion:], pageVersion)
	copy(p.mem[atInstance:], instance[:])
	binary.LittleEndian.PutUint64(p.mem[atObject:], id)
	p.setWords()
	p.state.Store(uint64(wire.StateLive))
	p.heartbeat.Store(uint64(time.Now().UnixNano()))
}

// setWords sets the pointers to the words.
// Safety: as for word.
func (p *ownerPage) setWords() {
	p.queued, p.published = word(p.mem, atQueued), word(p.mem, atDone)
	p.generation, p.state = word(p.mem, atGeneration), word(p.mem, atState)
	p.heartbeat = word(p.mem, atHeartbeat)
}
