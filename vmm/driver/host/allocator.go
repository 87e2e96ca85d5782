//go:build linux

package host

import (
	"cmp"
	"errors"

	"github.com/cuvmm/cuvmm/vmm/driver"
	"golang.org/x/sys/unix"
)

// block is plain or pinned memory, or that of a pool. Every device may use it, but for
// that of a pool. It belongs to a context and ends with it. On a lost device there is no
// other way to free it.
type block struct {
	context *context
	n       uint64 // bytes asked for
	pinned  bool   // for the host, so not counted on the device
	pool    *pool  // that it is of; nil: none

	name    [64]byte     // by which other processes open it, or this one has; zero: none
	foreign *deviceState // another process made it, on this device, and counts it; nil: this one did
	opens   int          // of OpenMem
}

// on is the device on which the memory lies.
func (b *block) on() *deviceState {
	if b.foreign != nil {
		return b.foreign
	}
	return b.context.state
}

// AllocPlain maps memory of the device.
func (v *device) AllocPlain(n uint64) (driver.Ptr, error) {
	return v.alloc("AllocPlain", n, false)
}

// AllocHost maps memory of the host. It is not locked into memory, because only the
// CPU reads it.
func (v *device) AllocHost(n uint64) (driver.Ptr, []byte, error) {
	p, err := v.alloc("AllocHost", n, true)
	if err != nil {
		return 0, nil, err
	}
	return p, bytesAt(uint64(p), n), nil
}

func (v *device) alloc(verb string, n uint64, pinned bool) (driver.Ptr, error) {
	if err := v.checkOpen(verb); err != nil {
		return 0, err
	}
	if n == 0 {
		return 0, refuse(verb, driver.ErrInvalid, "size 0")
	}
	u, d := v.context.state, v.context.d
	if n > addressLimit {
		return 0, refuse(verb, driver.ErrOutOfMemory, "%d bytes", n)
	}
	size := wholePages(n)

	d.memMu.Lock()
	defer d.unlockAndClose()
	if err := v.checkAlloc(verb, pinned); err != nil {
		return 0, err
	}
	if !pinned {
		if err := d.charge(verb, u, size); err != nil {
			return 0, err
		}
	}
	// Counted before it is mapped, so that there is never more than the device has.
	var file *sparse
	var err error
	if !pinned {
		file, err = v.context.plainFile(size)
	}
	var r *region
	if err == nil {
		r, err = d.mapBlock(verb, size, file)
	}
	if err != nil {
		if !pinned {
			u.used -= size
		}
		return 0, err
	}
	r.block = &block{context: v.context, n: n, pinned: pinned}
	d.insert(r)
	return driver.Ptr(r.base), nil
}

// checkAlloc checks that the context is there and no capture forbids to allocate. A
// capture that is not relaxed forbids plain memory, and the attempt destroys it.
func (v *device) checkAlloc(verb string, pinned bool) error {
	d := v.context.d
	d.workMu.Lock()
	defer d.workMu.Unlock()
	if v.context.stopped() {
		return v.context.stoppedError(verb)
	}
	if pinned {
		return nil
	}
	return v.context.destroyUnrelaxed(verb)
}

// mapBlock maps size bytes of new memory anywhere: of a file, or of none.
func (d *Driver) mapBlock(verb string, size uint64, file *sparse) (*region, error) {
	r := &region{size: size, file: file}
	fd, flags := -1, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS
	if file != nil {
		r.off = file.take(size)
		fd, flags = file.fd, unix.MAP_SHARED
	}
	base, err := d.mapAnywhere(verb, size, flags, fd, r.off)
	if err != nil {
		if file != nil {
			file.give(r.off, size)
		}
		return nil, err
	}
	r.base = base
	return r, nil
}

// mapAnywhere maps size bytes, and counts the mapping.
func (d *Driver) mapAnywhere(verb string, size uint64, flags, fd int, off uint64) (uint64, error) {
	return d.takeSpan(verb, size, driver.ErrOutOfMemory, func() (uint64, error) {
		return mmap(0, size, unix.PROT_READ|unix.PROT_WRITE, flags, fd, off)
	})
}

// FreePlain waits for the device, then unmaps the block. Memory of a pool is free at once.
func (v *device) FreePlain(p driver.Ptr) error { return v.free("FreePlain", p, false) }

// FreeHost waits for the device, then unmaps the block. A reset has done so already.
func (v *device) FreeHost(p driver.Ptr) error {
	err := v.free("FreeHost", p, true)
	if errors.Is(err, driver.ErrContextReset) {
		return nil
	}
	return err
}

// free waits for all work of the device, and for the work of other devices on the
// block. As on the card, freeing plain memory destroys captures that are not
// relaxed.
func (v *device) free(verb string, p driver.Ptr, pinned bool) error {
	if err := v.checkOpen(verb); err != nil {
		return err
	}
	d := v.context.d
	d.memMu.Lock()
	r := d.region(uint64(p))
	if r == nil || r.block == nil || r.base != uint64(p) || r.block.context != v.context || r.block.pinned != pinned || r.block.opens > 0 {
		d.memMu.Unlock()
		return refuse(verb, driver.ErrInvalid, "nothing was allocated so at %v", p)
	}
	d.workMu.Lock()
	if !pinned {
		if err := v.context.destroyUnrelaxed(verb); err != nil {
			d.workMu.Unlock()
			d.memMu.Unlock()
			return err
		}
	}
	if r.block.pool != nil {
		d.workMu.Unlock()
		defer d.unlockAndClose()
		d.freePooled(r)
		return nil
	}
	// Not listed any more, so no new work can use it and the wait needs no memMu.
	d.remove(r)
	d.memMu.Unlock()
	ops := v.context.pendingOps()
	d.visitOps(within(r.base, r.end()), func(o *op) { ops = append(ops, o) })
	_ = v.context.wait(verb, ops)
	d.workMu.Unlock()

	d.memMu.Lock()
	defer d.unlockAndClose()
	return d.unmapBlock(r)
}

// unmapBlock unmaps a block that is not listed any more.
func (d *Driver) unmapBlock(r *region) error {
	if err := munmap(r.base, r.size); err != nil {
		d.insert(r)
		return d.fail("munmap", driver.ErrOutOfMemory, err)
	}
	d.countUnmapped(r)
	return nil
}

// countUnmapped counts that a block was unmapped, whose memory goes back to the system
// once memMu is unlocked.
func (d *Driver) countUnmapped(r *region) {
	d.returnSpan(r.size)
	if !r.block.pinned && r.block.foreign == nil {
		r.block.context.state.used -= r.size
	}
	if r.file != nil {
		d.freed.blocks = append(d.freed.blocks, r)
	}
}

// freeBlocks unmaps the blocks of a context, and ends its pools. Where another device still has
// work on them, all devices are lost, as after an unmap.
func (d *Driver) freeBlocks(c *context) error {
	var first error
	for i := len(d.regions) - 1; i >= 0; i-- {
		r := d.regions[i]
		if r.block == nil || r.block.context != c {
			continue
		}
		d.loseIfUsed(within(r.base, r.end()))
		d.remove(r)
		first = cmp.Or(first, d.unmapBlock(r))
	}
	d.freePools(c)
	if c.plain != nil {
		c.plain.end()
		c.plain = nil
	}
	clear(c.opened)
	return first
}
