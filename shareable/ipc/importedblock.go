package ipc

import (
	"fmt"

	"github.com/cuvmm/cuvmm/vmm"
)

// ImportedBlock is a block of another process's pool, mapped here. Safe for concurrent use. The
// caller must free it, once, by Free or FreeNow.
type ImportedBlock struct {
	// Immutable.
	in *Importer
	m  *blockMapping

	freed bool // under in.mu
}

// Ptr is the first address in this process.
func (b *ImportedBlock) Ptr() vmm.Ptr {
	if b == nil || b.m == nil {
		return 0
	}
	return b.m.view.Ptr()
}

// Size is how many bytes the block has.
func (b *ImportedBlock) Size() uint64 {
	if b == nil || b.m == nil {
		return 0
	}
	return b.m.token.Size()
}

// MemoryArg sets m to the block as an argument of a kernel.
func (b *ImportedBlock) MemoryArg(m *vmm.MemoryArg) {
	*m = vmm.MemoryArg{}
	if b != nil && b.m != nil {
		b.m.view.MemoryArg(m)
	}
}

// Err returns nil while the exporter keeps the memory for this process. After ErrExporterGone it
// does not: the memory stays mapped, but if the exporter's process runs, only its server having
// been closed, it may use the memory for something else.
func (b *ImportedBlock) Err() error {
	if b == nil || b.m == nil {
		return ErrFreed
	}
	return exporterGone(b.m.view.Err())
}

// Grant gives devices access to the block here, and to all ImportedBlocks of its token. At first
// only the Importer's device has it, whatever the exporter has granted.
func (b *ImportedBlock) Grant(a vmm.Access, devs ...*vmm.Device) error {
	if b == nil || b.m == nil {
		return fail(nil, "grant", 0, 0, ErrFreed)
	}
	return b.m.view.Grant(a, devs...)
}

// Revoke waits for all work of the devices, and then takes their access away.
func (b *ImportedBlock) Revoke(devs ...*vmm.Device) error {
	if b == nil || b.m == nil {
		return fail(nil, "revoke", 0, 0, ErrFreed)
	}
	return b.m.view.Revoke(devs...)
}

// Access is what a device may do with the block here.
func (b *ImportedBlock) Access(d *vmm.Device) vmm.Access {
	if b == nil || b.m == nil {
		return vmm.AccessNone
	}
	return b.m.view.Access(d)
}

// Free gives the block up once the work that the stream has now has ended. It does not wait: a
// goroutine does, and unmaps the memory then, which the exporter sees. The stream may be of any
// device of the driver. If the token was imported several times, that is after the work of all
// their streams. An error leaves the block as it was: ErrFreed, vmm.ErrCapturing while the stream
// is being captured, vmm.ErrClosed.
func (b *ImportedBlock) Free(s *vmm.Stream) error {
	if b == nil || b.m == nil {
		return fail(nil, "free imported block", 0, 0, ErrFreed)
	}
	err := b.free(s)
	if err != nil && b.isFreed() {
		err = ErrFreed // and so its View is closed, maybe
	}
	return fail(b.in.dev, "free imported block", b.Ptr(), b.Size(), err)
}

func (b *ImportedBlock) isFreed() bool {
	b.in.mu.Lock()
	defer b.in.mu.Unlock()
	return b.freed
}

func (b *ImportedBlock) free(s *vmm.Stream) error {
	if s.Device().Driver() != b.in.dev.Driver() {
		if err := s.Usable(); err != nil {
			return err
		}
		return fmt.Errorf("%w: the stream is of another driver", vmm.ErrInvalid)
	}
	_, capturing, release, err := s.Hold()
	if err != nil {
		return err
	}
	release()
	if capturing {
		return fmt.Errorf("%w: the free would become part of the graph", vmm.ErrCapturing)
	}
	// The unmap then waits for this stream, and not for all work of the device.
	if err := b.m.view.UsedBy(s); err != nil {
		return err
	}
	e, err := s.Record()
	if err != nil {
		return err
	}
	i := b.in
	i.mu.Lock()
	if b.freed {
		i.mu.Unlock()
		return joinErr(ErrFreed, e.Close())
	}
	b.freed = true
	b.m.dropReachedLocked()
	b.m.before = append(b.m.before, e)
	last := i.leaveLocked(b.m)
	i.mu.Unlock()
	if last {
		go i.unmap(b.m)
	}
	return nil
}

// dropReachedLocked closes the first events that are reached, so that a block that is imported
// and freed often while another import of it stays does not gather them. It needs Importer.mu.
func (m *blockMapping) dropReachedLocked() {
	for len(m.before) > 0 {
		if done, err := m.before[0].Done(); !done || err != nil || m.before[0].Close() != nil {
			return
		}
		m.before = m.before[1:]
	}
}

// FreeNow gives up a block that no work uses any more, and unmaps the memory. It waits for nothing
// but for Frees of other ImportedBlocks of the same token. If the memory cannot be unmapped now,
// as during a capture, that follows later. After ErrFreed the block was freed before. After an
// error of the driver it is freed, and Close of the Importer tries again to unmap the memory.
func (b *ImportedBlock) FreeNow() error {
	if b == nil || b.m == nil {
		return fail(nil, "free imported block", 0, 0, ErrFreed)
	}
	return fail(b.in.dev, "free imported block", b.Ptr(), b.Size(), b.freeNow())
}

func (b *ImportedBlock) freeNow() error {
	i := b.in
	i.mu.Lock()
	if b.freed {
		i.mu.Unlock()
		return ErrFreed
	}
	b.freed = true
	last := i.leaveLocked(b.m)
	i.mu.Unlock()
	if !last {
		return nil
	}
	err := b.m.unmap()
	if passes(err) {
		go i.unmap(b.m)
		return nil
	}
	defer i.unmaps.Done()
	if err != nil {
		i.addFailed(b.m)
	}
	return err
}
