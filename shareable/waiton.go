package shareable

import (
	"fmt"
	"sync"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// A slot is two words: the view writes the first to let the stream run, and the
// stream the second once it does.
const (
	pinBytes  = 4096
	slotBytes = 16
)

// pins is the page-locked memory of a view on which streams wait. No stream ever
// waits on another process's word: when that process dies, the stream and every
// synchronise of its context would hang.
type pins struct {
	mu    sync.Mutex
	raw   driver.Device
	pin   driver.HostAllocator
	wait  driver.StreamMemOps
	pages []pinned
	slots []*slot // all there are
	over  bool
}

type pinned struct {
	p vmm.Ptr
	b []byte
}

// slot is a stream's wait for n bytes.
type slot struct {
	p    vmm.Ptr
	b    []byte
	off  int
	n    uint64
	free bool // no stream knows of it
}

func (s *slot) release()     { storeWord(s.b, s.off, 1) }
func (s *slot) passed() bool { return s.free || loadWord(s.b, s.off+8) == 1 }

// WaitOn makes work that is queued on s from now on wait until Len is n, or
// until it never will be, which Err then gives the reason for, or Sealed; where
// that is known already it answers as Wait does and queues nothing. It waits
// for nothing itself. The first one pins memory, which a capture elsewhere on the
// device that is not relaxed does not survive. The stream must be one of the view's device, and stay open
// until WaitOn returns. If it is being captured the answer is vmm.ErrCapturing;
// where streams cannot wait for memory, vmm.ErrNotSupported.
//
// Should the owner take back memory that the stream waits for more of, the view
// lets go of the owner (ErrRetired), because unmapping waits for the stream.
func (v *View) WaitOn(s *vmm.Stream, n uint64) error {
	if v == nil || s == nil {
		return fmt.Errorf("%w: no view, or no stream", vmm.ErrInvalid)
	}
	// A copy of nothing says whether the stream is open and not being captured.
	if err := s.CopyIn(0, nil); err != nil {
		return err
	}
	p := &v.pins
	p.mu.Lock()
	defer p.mu.Unlock()
	if ok, err := v.arrived(n); ok || err != nil {
		return err
	}
	x, err := p.take(v.dev)
	if err != nil {
		return err
	}
	x.n, x.free = n, false
	if err := p.wait.WaitValue(s.Raw(), x.p, 1, 8); err != nil {
		x.free = true
		return err
	}
	// Without this the slot is never used again, and that is all.
	_ = p.wait.WriteValue(s.Raw(), x.p+8, 1, 8)
	v.mu.Lock()
	defer v.mu.Unlock()
	if ok, err := v.reached(n); ok || err != nil {
		x.release()
		return nil
	}
	v.pending = append(v.pending, x)
	v.watch()
	return nil
}

// arrived is reached for those who do not hold v.mu.
func (v *View) arrived(n uint64) (bool, error) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.reached(n)
}

// take gives a slot that no stream looks at. It needs p.mu.
func (p *pins) take(dev *vmm.Device) (*slot, error) {
	if p.over {
		return nil, errViewClosed
	}
	for _, s := range p.slots {
		if s.passed() {
			s.clear()
			return s, nil
		}
	}
	if err := p.more(dev); err != nil {
		return nil, err
	}
	return p.slots[len(p.slots)-1], nil
}

// clear makes a slot that was passed one to wait on.
func (s *slot) clear() {
	s.free = true
	storeWord(s.b, s.off, 0)
	storeWord(s.b, s.off+8, 0)
}

// more pins another page.
func (p *pins) more(dev *vmm.Device) error {
	raw, err := dev.Raw()
	if err != nil {
		return err
	}
	pin, canPin := raw.(driver.HostAllocator)
	wait, canWait := raw.(driver.StreamMemOps)
	if !canPin || !canWait {
		return fmt.Errorf("%w: streams of %v cannot wait for memory", vmm.ErrNotSupported, dev)
	}
	at, b, err := pin.AllocHost(pinBytes)
	if err != nil {
		return err
	}
	p.raw, p.pin, p.wait = raw, pin, wait
	p.pages = append(p.pages, pinned{at, b})
	for off := 0; off < pinBytes; off += slotBytes {
		s := &slot{p: at + vmm.Ptr(off), b: b, off: off}
		s.clear()
		p.slots = append(p.slots, s)
	}
	return nil
}

// free gives the memory back once no stream looks at it. All slots are released.
func (p *pins) free(dev *vmm.Device) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.over = true
	if len(p.pages) == 0 {
		return nil
	}
	if err := dev.Sync(); err != nil {
		return err
	}
	for len(p.pages) > 0 {
		if err := p.pin.FreeHost(p.pages[0].p); err != nil {
			return err
		}
		p.pages = p.pages[1:]
	}
	p.slots = nil
	return nil
}
