package ipc

import (
	"fmt"
	"sync/atomic"

	"github.com/cuvmm/cuvmm/internal/door"
	"github.com/cuvmm/cuvmm/internal/nonnil"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// Block is memory of an imported pool. Safe for concurrent use. The caller must free it, once,
// by Free or FreeNow.
type Block struct {
	// Immutable.
	p    *Pool
	m    *mapping
	size uint64

	freed atomic.Bool // set under p.mu
}

// mapping is what the driver has imported for a token. Its fields are under Pool.mu, but for
// those that do not change.
type mapping struct {
	// Immutable.
	key     tokenKey
	ptr     vmm.Ptr
	size    uint64 // as the token said that was imported first
	release func() // lets this process free the block, if it is its own
	noted   door.Allocation

	blocks int          // how many Blocks are not freed
	before []*vmm.Event // of Blocks that were freed in stream order; the last free comes after them
}

// Ptr is the first address in this process.
func (b *Block) Ptr() vmm.Ptr {
	if b == nil || b.m == nil {
		return 0
	}
	return b.m.ptr
}

// Size is Token.Size.
func (b *Block) Size() uint64 { return nonnil.Of(b).size }

// MemoryArg sets m to the block as an argument of a kernel. A launch refuses a block that was
// freed, with ErrFreed.
func (b *Block) MemoryArg(m *vmm.MemoryArg) {
	*m = vmm.MemoryArg{}
	switch {
	case b == nil || b.m == nil:
	case b.freed.Load():
		m.Refuse(ErrFreed)
	default:
		*m = vmm.MemoryArg{Span: vmm.Span{Addr: b.m.ptr, Size: b.size, Access: vmm.AccessReadWrite}, Count: b.size, Stride: 1}
	}
}

// Free gives the block up once the work that the stream has now has ended. It does not wait.
// The stream may be of any device of the driver. If the same token was imported several times,
// the memory is unmapped after the work of all their streams. An error leaves the block as it
// was: ErrFreed, vmm.ErrCapturing while the stream is being captured, vmm.ErrClosed. After
// vmm.ErrDeviceLost it is freed, since all is lost anyway.
func (b *Block) Free(s *vmm.Stream) error {
	return b.free(func(p *Pool) error {
		if s.Device().Driver() != p.dev.Driver() {
			if err := s.Usable(); err != nil {
				return err
			}
			return fmt.Errorf("%w: the stream is of another driver", vmm.ErrInvalid)
		}
		handle, capturing, release, err := s.Hold()
		if err != nil {
			return err
		}
		defer release()
		if capturing {
			return fmt.Errorf("%w: the free would become part of the graph", vmm.ErrCapturing)
		}
		return p.freeInOrderLocked(b.m, s, handle)
	})
}

// FreeNow gives up a block that no work uses any more. It waits for nothing but for Frees of
// other Blocks of the same token. The errors are those of Free.
func (b *Block) FreeNow() error {
	return b.free(func(p *Pool) error {
		m := b.m
		for m.blocks == 1 && len(m.before) > 0 {
			e := m.before[0]
			if err := p.syncUnlocked(e); err != nil {
				return err
			}
			switch {
			case b.freed.Load():
				return ErrFreed // meanwhile
			case len(m.before) > 0 && m.before[0] == e:
				m.before = m.before[1:]
				p.closeEventLocked(e)
			}
		}
		if m.blocks > 1 {
			return nil
		}
		return m.unmap(func() error { return p.frees.FreePlain(m.ptr) })
	})
}

// unmap makes the call by which the memory goes. Graphs that use it are not launched any more.
func (m *mapping) unmap(call func() error) error {
	m.noted.Retire()
	err := call()
	if err != nil && !lost(err) {
		m.noted.Restore()
	}
	return err
}

// free makes a call that gives up one Block of a mapping, and notes that it did.
func (b *Block) free(call func(*Pool) error) error {
	if b == nil || b.p == nil {
		return fail(nil, "free imported block", 0, 0, ErrFreed)
	}
	p := b.p
	return fail(p.dev, "free imported block", b.m.ptr, b.size, func() error {
		p.mu.Lock()
		defer p.mu.Unlock()
		if b.freed.Load() {
			return ErrFreed
		}
		err := call(p)
		if err != nil && !lost(err) {
			return err
		}
		b.freed.Store(true)
		p.dropLocked(b.m)
		return err
	}())
}

// freeInOrderLocked gives up one Block of a mapping in the order of a stream. It needs p.mu.
func (p *Pool) freeInOrderLocked(m *mapping, s *vmm.Stream, handle driver.Stream) error {
	if m.blocks > 1 {
		e, err := s.Record()
		if err == nil {
			m.before = append(m.before, e)
		}
		return err
	}
	for _, e := range m.before {
		if err := s.Wait(e); err != nil {
			return err
		}
	}
	// Made before the free: what can fail comes first.
	ended, err := s.Device().NewEvent(vmm.EventBlocking)
	if err != nil {
		return err
	}
	if err := m.unmap(func() error { return p.frees.FreeAsync(m.ptr, handle) }); err != nil {
		p.closeEventLocked(ended)
		return err
	}
	// The memory is given up: from here on nothing is an error of Free.
	if ended.Record(s) != nil {
		_ = s.Sync() // then an Import that follows must not wait for anything
	}
	p.leaving[m.key] = ended
	return nil
}

// dropLocked notes that a Block of the mapping was freed. It needs p.mu.
func (p *Pool) dropLocked(m *mapping) {
	if m.blocks--; m.blocks > 0 {
		return
	}
	delete(p.mapped, m.key)
	p.used -= m.size
	tokens.removeImport(m.key)
	m.release()
	for _, e := range m.before {
		p.closeEventLocked(e)
	}
	// What has left by now need not be waited for.
	for k, e := range p.leaving {
		if done, err := e.Done(); done || err != nil {
			delete(p.leaving, k)
			p.closeEventLocked(e)
		}
	}
}

// closeEventLocked closes an event, or leaves that to Close. It needs p.mu.
func (p *Pool) closeEventLocked(e *vmm.Event) {
	if e.Close() != nil {
		p.unclosed = append(p.unclosed, e)
	}
}
