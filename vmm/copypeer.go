package vmm

import (
	"fmt"

	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/internal/order"
)

// CopyPeer queues a copy of n bytes from memory of one device to memory of another, where neither has
// access to the other's memory. If one has, Copy works as well. Both devices must be of the same driver.
// CopyPeer returns ErrBounds for memory that is not mapped, ErrInvalid if UsedBy has named other streams
// for it, ErrCapturing during a capture, and ErrNotSupported where the driver has no such copy. From then
// on, calls that unmap this memory also wait for work of the stream's device.
func (s *Stream) CopyPeer(dst Ptr, to *Device, src Ptr, from *Device, n uint64) error {
	return s.wrap("copy between devices", dst, n, s.with(func(o *openDevice) error {
		for _, d := range []*Device{to, from} {
			if err := d.checkOpen(); err != nil {
				return err
			}
			if d.state.parent != o.state.parent {
				return fmt.Errorf("%w: %v is of another driver than the stream", ErrInvalid, d)
			}
		}
		c, ok := order.As[driver.PeerCopier](o.Device)
		if !ok {
			return fmt.Errorf("%w: copies between devices without access", ErrNotSupported)
		}
		// A graph would be launched without the checks that are made here.
		if err := s.runsWork(o); err != nil {
			return err
		}
		// Each side is used by the device that it is of, and so checked for that device.
		write, err := to.lockForPeer(s, Span{Addr: dst, Size: n, Access: AccessReadWrite})
		if err != nil {
			return err
		}
		defer write.unlock()
		read, err := from.lockForPeer(s, Span{Addr: src, Size: n, Access: AccessRead})
		if err != nil {
			return err
		}
		defer read.unlock()
		return c.CopyPeer(dst, to.state.n, src, from.state.n, n, s.queued())
	}))
}

// lockForPeer locks the reservation of memory of d that a copy on the stream uses, though the
// stream's device may have no access to it.
func (d *Device) lockForPeer(on *Stream, x Span) (lockedSpan, error) {
	if x.Size == 0 {
		return lockedSpan{}, nil
	}
	if x.Addr+Ptr(x.Size) < x.Addr {
		return lockedSpan{}, fmt.Errorf("%w: the addresses overflow", ErrBounds)
	}
	r := d.state.parent.find(x.Addr)
	l, err := d.lockReservation(on, r, x)
	if err == nil && r != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.users.AddCopier(on.dev.state) // waitForWork waits for a device that copies without access
	}
	return l, err
}
