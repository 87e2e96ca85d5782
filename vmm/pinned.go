package vmm

import (
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/cuvmm/cuvmm/internal/errtext"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/internal/order"
)

// Pinned is page-locked host memory that kernels and copies of the device can use, too. A program and its
// kernels exchange a few words in it faster than by copies. Safe for concurrent use, but the program must
// order access to its bytes. The caller must Close it.
type Pinned struct {
	dev    *Device
	on     *openDevice
	n      uint64
	block  pinnedBlock
	noted  *allocation
	closed atomic.Bool
}

// pinnedBlock is memory as the driver has allocated it.
type pinnedBlock struct {
	p     Ptr
	bytes []byte
}

// pinnedCache is the memory of Pinned that were closed, by size. Freeing page-locked memory waits
// for all work of the device, and so perhaps for another process: the next AllocPinned gets it, and
// what is left is freed when the device closes.
type pinnedCache struct {
	size atomic.Uint64 // bytes allocated, free or not

	mu   sync.Mutex // no other lock is taken, and no call of the driver made, while it is held
	free map[uint64][]pinnedBlock
}

// leastPinned is what the driver pins at least.
const leastPinned = 4 << 10

// AllocPinned allocates n bytes of page-locked host memory, rounded up to a power of two and to 4 KiB at
// least. Their contents are undefined. Memory of a closed Pinned is used again, and is freed when the
// last Device on the device closes; Stats.Pinned counts it until then. It returns ErrNotSupported without
// page-locked memory, and ErrInvalid for n = 0.
func (d *Device) AllocPinned(n uint64) (_ *Pinned, err error) {
	defer func() { err = d.wrap("allocate pinned memory", 0, n, err) }()
	if err := d.checkOpen(); err != nil {
		return nil, err
	}
	if n == 0 || n > 1<<62 {
		return nil, fmt.Errorf("%w: %d bytes", ErrInvalid, n)
	}
	x := &Pinned{dev: d, n: n}
	if err := d.track(x, "pinned memory of "+errtext.Size(n)); err != nil { // the device stays open now
		return nil, err
	}
	if x.on, err = d.ensureOpen(); err == nil {
		err = x.on.CheckAlive() // else what the cache has may be freed
	}
	if err == nil {
		x.block, err = x.on.pinnedCache.take(x.on, pinnedSize(n))
	}
	if err != nil {
		d.untrack(x)
		return nil, err
	}
	x.noted = d.noteAllocation(x.block.p, n)
	return x, nil
}

// pinnedSize is the size of the memory for n bytes, a power of two.
func pinnedSize(n uint64) uint64 { return max(leastPinned, uint64(1)<<bits.Len64(n-1)) }

func (c *pinnedCache) take(o *openDevice, size uint64) (b pinnedBlock, err error) {
	if b = c.reuse(size); b.p != 0 {
		return b, nil
	}
	allocator, ok := order.As[driver.HostAllocator](o.Device)
	if !ok {
		return b, fmt.Errorf("%w: pinned memory", ErrNotSupported)
	}
	if b.p, b.bytes, err = allocator.AllocHost(size); err == nil {
		c.size.Add(size)
	}
	return b, err
}

// reuse returns memory that was closed; none if there is none of the size.
func (c *pinnedCache) reuse(size uint64) (b pinnedBlock) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if all := c.free[size]; len(all) > 0 {
		b = all[len(all)-1]
		c.free[size] = all[:len(all)-1]
	}
	return b
}

// close frees what is left. It can be called again. Nothing else uses the cache meanwhile.
func (c *pinnedCache) close(o *openDevice) error {
	allocator, _ := order.As[driver.HostAllocator](o.Device)
	for size, all := range c.free {
		for len(all) > 0 {
			if err := allocator.FreeHost(all[len(all)-1].p); err != nil && !lost(err) {
				return err
			}
			all = all[:len(all)-1]
			c.free[size] = all
			c.size.Add(-size)
		}
	}
	return nil
}

// Ptr is the memory's address, for kernels and copies. After Close it is 0.
func (x *Pinned) Ptr() Ptr {
	if x == nil || x.dev == nil || x.closed.Load() {
		return 0
	}
	return x.block.p
}

// Bytes is the memory as a slice, until Close. It is nil afterwards, and once the device is lost or was
// reset, which frees the memory. So call Bytes before each use.
func (x *Pinned) Bytes() []byte {
	if x == nil || x.dev == nil || x.closed.Load() || x.on.CheckAlive() != nil {
		return nil
	}
	return x.block.bytes[:x.n:x.n]
}

// Close gives the memory back. No work may use it any more, and no slice of it. Twice is fine, and
// so is a nil Pinned.
func (x *Pinned) Close() error {
	if x == nil || x.dev == nil || x.closed.Swap(true) {
		return nil
	}
	x.noted.Retire()
	x.on.pinnedCache.put(x.block)
	x.dev.untrack(x)
	return nil
}

func (c *pinnedCache) put(b pinnedBlock) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.free == nil {
		c.free = map[uint64][]pinnedBlock{}
	}
	size := uint64(len(b.bytes))
	c.free[size] = append(c.free[size], b)
}
