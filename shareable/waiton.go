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
	pinnedBytes  = 4096
	waitBytes = 16
)

// pins is the page-locked memory of a view on which streams wait. No stream ever
// waits on another process's word: when that process dies, the stream and every
// synchronise of its context would hang.
type streamWaits struct {
	mu    sync.Mutex
	raw   driver.Device
	hostAlloc   driver.HostAllocator
	memOps  driver.StreamMemOps
	pages []pinnedPage
	all []*streamWait // all there are
	closed  bool
}

type pinnedPage struct {
	p vmm.Ptr
	b []byte
}

// slot is a stream's wait for n bytes.
type streamWait struct {
	p    vmm.Ptr
	b    []byte
	off  int
	n    uint64
	idle bool // no stream knows of it
}

func (s *streamWait) release()     { storeWord(s.b, s.off, 1) }
func (s *streamWait) passed() bool { return s.idle || loadWord(s.b, s.off+8) == 1 }

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
	p := &v.waits
	p.mu.Lock()
	defer p.mu.Unlock()
	if ok, err := v.reached(n); ok || err != nil {
		return err
	}
	x, err := p.acquireLocked(v.dev)
	if err != nil {
		return err
	}
	x.n, x.idle = n, false
	if err := p.memOps.WaitValue(s.Raw(), x.p, 1, 8); err != nil {
		x.idle = true
		return err
	}
	// Without this the slot is never used again, and that is all.
	_ = p.memOps.WriteValue(s.Raw(), x.p+8, 1, 8)
	v.mu.Lock()
	defer v.mu.Unlock()
	if ok, err := v.reachedLocked(n); ok || err != nil {
		x.release()
		return nil
	}
	v.pendingWaits = append(v.pendingWaits, x)
	v.watchLocked()
	return nil
}

// arrived is reached for those who do not hold v.mu.
func (v *View) reached(n uint64) (bool, error) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.reachedLocked(n)
}

// take gives a slot that no stream looks at. It needs p.mu.
func (p *streamWaits) acquireLocked(dev *vmm.Device) (*streamWait, error) {
	if p.closed {
		return nil, errViewClosed
	}
	for _, s := range p.all {
		if s.passed() {
			s.reset()
			return s, nil
		}
	}
	if err := p.addPageLocked(dev); err != nil {
		return nil, err
	}
	return p.all[len(p.all)-1], nil
}

// clear makes a slot that was passed one to wait on.
func (s *streamWait) reset() {
	s.idle = true
	storeWord(s.b, s.off, 0)
	storeWord(s.b, s.off+8, 0)
}

// more pins another page.
func (p *streamWaits) addPageLocked(dev *vmm.Device) error {
	raw, err := dev.Raw()
	if err != nil {
		return err
	}
	pin, canPin := raw.(driver.HostAllocator)
	wait, canWait := raw.(driver.StreamMemOps)
	if !canPin || !canWait {
		return fmt.Errorf("%w: streams of %v cannot wait for memory", vmm.ErrNotSupported, dev)
	}
	at, b, err := pin.AllocHost(pinnedBytes)
	if err != nil {
		return err
	}
	p.raw, p.hostAlloc, p.memOps = raw, pin, wait
	p.pages = append(p.pages, pinnedPage{at, b})
	for off := 0; off < pinnedBytes; off += waitBytes {
		s := &streamWait{p: at + vmm.Ptr(off), b: b, off: off}
		s.reset()
		p.all = append(p.all, s)
	}
	return nil
}

// free gives the memory back once no stream looks at it. All slots are released.
func (p *streamWaits) close(dev *vmm.Device) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	if len(p.pages) == 0 {
		return nil
	}
	if err := dev.Sync(); err != nil {
		return err
	}
	for len(p.pages) > 0 {
		if err := p.hostAlloc.FreeHost(p.pages[0].p); err != nil {
			return err
		}
		p.pages = p.pages[1:]
	}
	p.all = nil
	return nil
}
