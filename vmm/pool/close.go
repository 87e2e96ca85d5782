package pool

import (
	"errors"
	"fmt"

	"github.com/cuvmm/cuvmm/vmm"
)

// Close gives back all memory and the addresses. While a block is allocated it returns
// ErrBusy and changes nothing. It waits for work as Reservation.Close does; while a stream is
// being captured it returns ErrCapturing and the pool stays open. Twice is fine, and so is a
// nil Pool.
func (p *Pool) Close() error {
	if p == nil || p.res == nil {
		return nil
	}
	return p.fail("close", 0, 0, p.close())
}

func (p *Pool) close() error {
	p.closeMu.Lock()
	defer p.closeMu.Unlock()
	if p.stops == nil {
		return p.extras.close()
	}
	// First without shutting: a Close that is refused disturbs no other call.
	if err := p.checkUnused(); err != nil {
		return err
	}
	if err := p.shut(); err != nil {
		return err
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
		if err := c.Close(); err != nil && failed == nil {
			failed = err
		}
	}
	p.spare = nil
	for _, st := range p.all {
		p.dropFencesLocked(st)
	}
	p.chunks.Store(0)
	if failed != nil {
		return failed
	}
	return p.extras.close()
}

// checkUnused returns ErrBusy if a block is allocated. Beside other calls it may be wrong.
func (p *Pool) checkUnused() error {
	p.mu.Lock()
	// A stream that is forgotten meanwhile keeps its counts: it is not among the past ones yet.
	all, blocks := p.list(), p.long.blocks+p.past.blocks
	p.mu.Unlock()
	for _, st := range all {
		st.mu.Lock()
		blocks += st.blocks
		st.mu.Unlock()
	}
	if blocks == 0 {
		return nil
	}
	return fmt.Errorf("%w: %d blocks are allocated", vmm.ErrBusy, blocks)
}

// shut lets no call in any more. If a block is allocated it lets calls in again, and returns
// ErrBusy.
func (p *Pool) shut() error {
	p.mu.Lock()
	p.closed.Store(true) // no stream is added, and no memory moves, from here on
	for p.underWay > 0 {
		p.noneUnderWay.Wait()
	}
	p.mu.Unlock()
	for _, st := range p.list() {
		st.mu.Lock()
		st.gone = true
		st.mu.Unlock()
	}
	err := p.checkUnused()
	if err != nil {
		p.reopen()
	}
	return err
}

// reopen undoes shut.
func (p *Pool) reopen() {
	p.closed.Store(false)
	for _, st := range p.list() {
		st.mu.Lock()
		st.gone = false
		st.mu.Unlock()
	}
}
