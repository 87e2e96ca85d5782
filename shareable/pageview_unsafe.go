//go:build linux

package shareable

import (
	"encoding/binary"
	"math/bits"
	"sync/atomic"
	"unsafe"
)

// bigEndian says whether this machine's words have to be turned round.
var bigEndian = binary.NativeEndian.Uint16([]byte{1, 0}) != 1

// load64 reads the word at off in one piece.
//
// Safety: off is one of the constants above, a multiple of 8 within the page,
// which starts on a page boundary and stays mapped until close.
func (p *pageView) load64(off int) uint64 {
	v := atomic.LoadUint64((*uint64)(unsafe.Pointer(&p.b[off])))
	if bigEndian {
		return bits.ReverseBytes64(v)
	}
	return v
}

// load32 is load64 for the smaller words.
//
// Safety: as load64.
func (p *pageView) load32(off int) uint32 {
	v := p.raw32(off)
	if bigEndian {
		return bits.ReverseBytes32(v)
	}
	return v
}

// raw32 is the word as it lies in memory, which is what the kernel compares.
//
// Safety: as load64.
func (p *pageView) raw32(off int) uint32 {
	return atomic.LoadUint32((*uint32)(unsafe.Pointer(&p.b[off])))
}
