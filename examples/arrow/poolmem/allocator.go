// Package poolmem is a memory.Allocator for Arrow on a pool of package pool. It imports
// nothing of Arrow: its methods are those of the interface.
package poolmem

import (
	"errors"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/pool"
)

// alignment is what Arrow asks of its buffers.
const alignment = 64

// Allocator allocates buffers on host memory. The caller must Close it. Safe for concurrent
// use.
//
// Like Arrow's own allocators it returns zeros, and panics if there is no memory, since the
// interface has no errors. Free of memory that is not the Allocator's does nothing: Arrow
// frees buffers that it has not allocated.
type Allocator struct {
	dev    *vmm.Device
	pool   *pool.Pool
	stream *vmm.Stream // in which nothing is ever queued
}

// Open makes an Allocator on a device whose memory the CPU can address, such as
// "host?page=4K". The options' Align is at least 64.
func Open(device string, o pool.Options) (a *Allocator, err error) {
	a = &Allocator{}
	defer func() {
		if err != nil {
			err = errors.Join(err, a.Close())
			a = nil
		}
	}()
	if a.dev, err = vmm.Open(device); err != nil {
		return a, err
	}
	if err = a.dev.Supports(vmm.FeatureHostView); err != nil {
		return a, err
	}
	if a.stream, err = a.dev.NewStream(); err != nil {
		return a, err
	}
	o.Align = max(o.Align, alignment)
	a.pool, err = pool.New(a.dev, o)
	return a, err
}

// Close gives all memory back. While buffers are allocated it returns vmm.ErrBusy.
func (a *Allocator) Close() error {
	if a.pool != nil {
		if err := a.pool.Close(); err != nil {
			return err
		}
	}
	return errors.Join(a.stream.Close(), a.dev.Close())
}

// Stats is the pool in numbers.
func (a *Allocator) Stats() (pool.Stats, error) { return a.pool.Stats() }

// Allocate returns n bytes of zeros.
func (a *Allocator) Allocate(n int) []byte {
	b := a.allocate(n)
	clear(b)
	return b
}

func (a *Allocator) allocate(n int) []byte {
	if n == 0 {
		return []byte{}
	}
	b, err := a.pool.Alloc(a.stream, uint64(n))
	if err != nil {
		panic(err)
	}
	return bytesAt(b.Ptr(), n)
}

// Reallocate returns a buffer of n bytes that begins with those of b, and zeros behind them. It
// lies where b does, if the memory behind b is free. b must not be used any more.
func (a *Allocator) Reallocate(n int, b []byte) []byte {
	if n == 0 {
		a.Free(b)
		return []byte{}
	}
	if block, ok := a.find(b); ok {
		if _, err := a.pool.Resize(a.stream, block, uint64(n)); err == nil {
			resized := bytesAt(block.Ptr(), n)
			clear(resized[min(len(b), n):])
			return resized
		}
	}
	other := a.allocate(n) // there may be memory where b does not lie
	clear(other[copy(other, b):])
	a.Free(b)
	return other
}

// Free gives b up, a slice of any length that Allocate or Reallocate returned.
func (a *Allocator) Free(b []byte) {
	block, ok := a.find(b)
	if !ok {
		return
	}
	// The CPU is done with the memory, and no stream uses it.
	if err := a.pool.FreeNow(block); err != nil {
		panic(err)
	}
}

// find is the block that b is the beginning of.
func (a *Allocator) find(b []byte) (pool.Block, bool) {
	if cap(b) == 0 {
		return pool.Block{}, false
	}
	at := addressOf(b)
	block, ok := a.pool.Find(at)
	return block, ok && block.Ptr() == at
}
