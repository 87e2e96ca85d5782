package pool

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/cuvmm/cuvmm/vmm"
)

// heldBit is set in the number of a block, where the pool keeps it, while HoldBlock holds the
// block. So a call that frees finds another number than the block's, and costs no more for it.
const heldBit = 1 << 63

// resizingBit is set there while Resize is at work, so that no other call that frees finds it.
const resizingBit = 1 << 62

// numberBits are the number itself.
const numberBits = resizingBit - 1

// holds is how often blocks are held, by where the pool keeps their numbers.
type holds struct {
	mu sync.Mutex // no other lock is taken while it is held
	of map[*atomic.Uint64]int
}

// HoldBlock keeps a block from being freed or resized until release: Free, FreeNow, Resize and
// Close return ErrBusy. The memory stays in place, because the pool never moves memory that a block
// uses. So another process can be given it, as b.Size() bytes of Reservation from b.Ptr() on: see
// Server.PublishSpan of package shareable. Calling release twice is fine. Errors are ErrDoubleFree,
// ErrForeignBlock, ErrClosed, and ErrInvalid for a block of 0 bytes, or a value from before Resize
// made the block shorter.
func (p *Pool) HoldBlock(b Block) (release func(), err error) {
	if err = p.live(); err == nil {
		release, err = p.addHold(b)
	}
	if err == nil {
		if has := p.sizeOf(b); b.size > has {
			release()
			err = fmt.Errorf("%w: the block has %d bytes by now", vmm.ErrInvalid, has)
		}
	}
	if err != nil {
		return nil, p.fail("hold block", b.ptr, b.size, err)
	}
	return release, nil
}

// sizeOf is how many bytes a block has, which is held.
func (p *Pool) sizeOf(b Block) uint64 {
	if b.in.slab != nil {
		return b.in.slab.size
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return b.in.ext.size
}

func (p *Pool) addHold(b Block) (release func(), err error) {
	if b.in == nil || b.in.pool != p {
		return nil, ErrForeignBlock
	}
	number := b.number()
	if number == nil {
		return nil, fmt.Errorf("%w: a block of 0 bytes", vmm.ErrInvalid)
	}
	h := &p.holds
	h.mu.Lock()
	defer h.mu.Unlock()
	if !number.CompareAndSwap(b.seq, b.seq|heldBit) && number.Load() != b.seq|heldBit {
		return nil, notAllocated(number, b.seq)
	}
	if h.of == nil {
		h.of = map[*atomic.Uint64]int{}
	}
	h.of[number]++
	return sync.OnceFunc(func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.of[number]--; h.of[number] == 0 {
			delete(h.of, number)
			number.Store(b.seq)
		}
	}), nil
}
