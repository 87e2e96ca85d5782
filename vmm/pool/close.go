package pool

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/cuvmm/cuvmm/internal/inside"
	"github.com/cuvmm/cuvmm/vmm"
)

// Close releases all memory and the addresses. It returns ErrBusy and changes nothing while a block
// is allocated. It waits for work as Reservation.Close does. While a stream is being captured it
// returns ErrCapturing and the pool stays open. Twice is fine, and so is a nil Pool.
func (p *Pool) Close() (err error) {
	if p == nil || p.res == nil {
		return nil
	}
	defer func() { err = p.fail("close", 0, 0, err) }()
	p.closeMu.Lock()
	defer p.closeMu.Unlock()
	if p.stops == nil {
		return nil
	}
	if err := p.shut(); err != nil {
		return err
	}
	// The chunks go after the addresses, which hold the device open until then.
	if release, err := inside.VMM.KeepOpen(p.dev, "pool that is closing"); err == nil {
		defer release()
	}
	failed := p.res.Close()
	if errors.Is(failed, vmm.ErrCapturing) || errors.Is(failed, vmm.ErrBusy) {
		p.reopen()
		return failed
	}
	// The addresses of a lost device are closed nevertheless. After another error the pool lets
	// no call in but Close, which goes on here.
	if failed != nil && !(errors.Is(failed, vmm.ErrDeviceLost) && p.res.Close() == nil) {
		return failed
	}
	for _, stop := range p.stops {
		stop()
	}
	p.stops = nil
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.slots {
		if c := p.slots[i].chunk; c != nil {
			p.spare = append(p.spare, c)
			p.slots[i].chunk = nil
		}
	}
	for _, c := range p.spare {
		failed = cmp.Or(failed, c.Close())
	}
	p.spare = nil
	for _, st := range p.all {
		p.dropFencesLocked(st)
	}
	p.chunks.Store(0)
	return failed
}

// shut lets no call in any more. While a block is allocated it returns ErrBusy, and has changed
// nothing.
func (p *Pool) shut() error {
	for {
		streams := p.lockAll()
		blocks := p.long.blocks + p.past.blocks
		for _, st := range streams {
			blocks += st.blocks
		}
		closing := blocks == 0 && p.underWay == 0
		if closing {
			p.closed.Store(true) // no stream is added, and no memory moves, from here on
		}
		for _, st := range streams {
			st.gone = closing
			st.mu.Unlock()
		}
		if !closing && blocks == 0 {
			p.noneUnderWay.Wait()
		}
		p.mu.Unlock()
		switch {
		case closing:
			return nil
		case blocks != 0:
			return fmt.Errorf("%w: %d blocks are allocated", vmm.ErrBusy, blocks)
		}
	}
}

// openAgain waits for a Close under way, and reports whether the pool has stayed open after all.
func (p *Pool) openAgain() bool {
	p.closeMu.Lock()
	defer p.closeMu.Unlock()
	return !p.closed.Load()
}

// reopen undoes shut.
func (p *Pool) reopen() {
	for _, st := range p.list() {
		st.mu.Lock()
		st.gone = false
		st.mu.Unlock()
	}
	p.closed.Store(false) // last: until then what finds a stream gone waits for this
}
