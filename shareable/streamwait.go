package shareable

import (
	"fmt"
	"sync"

	"github.com/cuvmm/cuvmm/internal/invariants"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

const (
	pinnedBytes = 4096 // of one page-locked allocation
	waitBytes   = 16   // of one wait: two words of 8 bytes
)

// streamWaits is the page-locked memory on whose words streams wait. They are
// words of this process: if a stream waited on another process's word and that
// process died, the stream and every synchronisation of its context would hang.
type streamWaits struct {
	// Guarded by mu.
	mu        sync.Mutex
	hostAlloc driver.HostAllocator // set with the first page
	memOps    driver.StreamMemOps  // set with the first page
	pages     []pinnedPage
	all       []*streamWait // every wait in the pages
	closed    bool
}

// pinnedPage is page-locked memory: its device address and its bytes.
type pinnedPage struct {
	p vmm.Ptr
	b []byte
}

// streamWait is a stream's wait for n bytes. The View stores 1 to its first word
// to release the stream; the stream stores 1 to the second once it has passed.
type streamWait struct {
	// Immutable.
	p   vmm.Ptr
	b   []byte
	off int

	n    uint64 // guarded by View.mu once it is in pendingWaits
	idle bool   // guarded by streamWaits.mu: no stream uses it
}

func (s *streamWait) release()     { storeWord(s.b, s.off, 1) }
func (s *streamWait) passed() bool { return s.idle || loadWord(s.b, s.off+8) == 1 }

// WaitOn makes work queued on s from now on wait until Len is at least n. If n becomes unreachable
// the stream is released, and Err or Sealed tells why. If Len has reached n, or never can, WaitOn
// returns as Wait does and queues nothing. The call itself does not wait.
//
// The stream must be of the View's device and stay open until WaitOn returns. WaitOn returns
// vmm.ErrCapturing if the stream is being captured, and vmm.ErrNotSupported if streams cannot wait
// for memory. The first call allocates page-locked memory, which invalidates a capture elsewhere on
// the device unless it is relaxed.
//
// If the owner takes back memory while the stream waits for bytes of it, the View detaches from the
// owner (ErrRetired), because unmapping waits for the stream.
func (v *View) WaitOn(s *vmm.Stream, n uint64) error {
	if v == nil || s == nil {
		return fmt.Errorf("%w: no view, or no stream", vmm.ErrInvalid)
	}
	queue, capturing, release, err := s.Hold() // no capture begins meanwhile
	if err != nil {
		return err
	}
	defer release()
	if capturing {
		return vmm.ErrCapturing
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
	if err := p.memOps.WaitValue(queue, x.p, 1, 8); err != nil {
		x.idle = true
		return err
	}
	// If this fails, the two words are never used again, which is no error.
	_ = p.memOps.WriteValue(queue, x.p+8, 1, 8)
	v.mu.Lock()
	defer v.mu.Unlock()
	// Len may have moved since it was checked above, and nothing would notify.
	if ok, err := v.reachedLocked(n); ok || err != nil {
		x.release()
		return nil
	}
	v.pendingWaits = append(v.pendingWaits, x)
	v.watchLocked()
	return nil
}

// acquireLocked returns a wait that no stream uses. Requires mu.
func (p *streamWaits) acquireLocked(dev *vmm.Device) (*streamWait, error) {
	invariants.Held(&p.mu)
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

// reset prepares the words for the next wait.
func (s *streamWait) reset() {
	s.idle = true
	storeWord(s.b, s.off, 0)
	storeWord(s.b, s.off+8, 0)
}

// addPageLocked allocates another page of waits. Requires mu.
func (p *streamWaits) addPageLocked(dev *vmm.Device) error {
	invariants.Held(&p.mu)
	raw, err := dev.Raw()
	if err != nil {
		return err
	}
	hostAlloc, canAlloc := raw.(driver.HostAllocator)
	memOps, canWait := raw.(driver.StreamMemOps)
	if !canAlloc || !canWait {
		return fmt.Errorf("%w: streams of %v cannot wait for memory", vmm.ErrNotSupported, dev)
	}
	at, b, err := hostAlloc.AllocHost(pinnedBytes)
	if err != nil {
		return err
	}
	// The driver is kept for close: the device may not return it any more by then.
	p.hostAlloc, p.memOps = hostAlloc, memOps
	p.pages = append(p.pages, pinnedPage{at, b})
	for off := 0; off < pinnedBytes; off += waitBytes {
		s := &streamWait{p: at + vmm.Ptr(off), b: b, off: off}
		s.reset()
		p.all = append(p.all, s)
	}
	return nil
}

// close frees the memory once no stream reads it. The caller has released every
// wait.
func (p *streamWaits) close(dev *vmm.Device) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	if len(p.pages) == 0 {
		return nil
	}
	// Nothing says which stream still reads which word, so all work is waited for.
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
