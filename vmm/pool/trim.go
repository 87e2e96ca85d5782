package pool

import "github.com/cuvmm/cuvmm/vmm"

// TrimTo releases chunks in which nothing is allocated, wherever they lie, until the pool holds at
// most keep bytes. It returns how many bytes it released: to the device's cache
// (vmm.Device.SetReleaseThreshold) or to the driver. Memory freed in a stream whose work is not
// known to have ended stays. With ReuseOpportunistic the driver is asked, but TrimTo does not wait.
// If some chunks fail, others are still released: freed counts those, despite the error. The error
// is ErrBusy if a Hold of the Reservation keeps some.
func (p *Pool) TrimTo(keep uint64) (freed uint64, err error) {
	if err = p.live(); err == nil {
		p.repair()
		freed, err = p.trim(keep, p.allows(ReuseOpportunistic))
	}
	return freed, p.fail("trim", 0, keep, err)
}

// trimEnded is trim of memory that is known to be free, without a question to the driver.
func (p *Pool) trimEnded(keep uint64) (freed uint64, err error) { return p.trim(keep, false) }

// trim is TrimTo; ask reports whether to ask the driver how far streams have come.
func (p *Pool) trim(keep uint64, ask bool) (freed uint64, err error) {
	p.addUnderWay(1)
	defer p.addUnderWay(-1)
	if p.closed.Load() {
		return 0, errClosed
	}
	p.gather(ask)
	out, runs := p.takeUnused(keep, ask)
	if len(out)+len(runs) == 0 {
		return 0, nil
	}
	out, err = p.unmap(out, runs)
	for _, c := range out {
		if again := c.Close(); again != nil && err == nil {
			err = again // the driver has refused it: the device counts it as quarantined
		}
	}

	p.mu.Lock()
	defer p.mu.Unlock()
	p.putRunsLocked(runs)
	p.chunks.Add(-int64(len(out)))
	p.movedLocked()
	freed = uint64(len(out)) * p.chunk
	p.stats.Released += freed
	return freed, err
}

// takeUnused takes the spare and the idle chunks beyond keep bytes, and counts them as moving.
func (p *Pool) takeUnused(keep uint64, ask bool) (spare []*vmm.Chunk, runs []*extent) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.updateIdleLocked()
	if ask {
		p.queryStreamsLocked()
		p.updateIdleLocked()
	}
	n := int(p.chunks.Load()) - int((keep+p.chunk-1)/p.chunk) //nolint:gosec // Max bounds both
	if keep > uint64(p.most)*p.chunk || n <= 0 {              //nolint:gosec // not negative
		return nil, nil
	}
	spare = p.takeSpareLocked(n)
	if runs = p.takeIdleLocked(n - len(spare)); len(spare)+len(runs) > 0 {
		p.moving++
	}
	return spare, runs
}

// repair lets addresses be used again where the driver refused to map memory.
func (p *Pool) repair() {
	if p.bad.Load() == 0 {
		return
	}
	// Trim has the driver try once more what it refused.
	if _, err := p.dev.Trim(0); err != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.regions {
		for e := p.regions[i].first; e != nil; {
			next := e.next
			if e.kind == kindBad {
				for next != nil && next.kind == kindHole {
					next = next.next
				}
				p.addHoleLocked(e)
			}
			e = next
		}
	}
	p.bad.Store(0)
}

// onPressure gives back what no block uses when the device's memory runs out.
func (p *Pool) onPressure(error) bool {
	if p.live() != nil {
		return false
	}
	freed, _ := p.trim(0, p.allows(ReuseOpportunistic))
	return freed > 0
}

// onSync gives back what is beyond the release threshold.
func (p *Pool) onSync() {
	keep := p.threshold.Load()
	if p.waiting.Load() > 0 { // for memory that an Alloc needs
		return
	}
	if uint64(p.chunks.Load())*p.chunk <= keep || p.live() != nil { //nolint:gosec // not negative
		return
	}
	_, _ = p.trimEnded(keep) // what the driver refuses the device counts as quarantined
}

// SetReleaseThreshold sets how many bytes the pool keeps when a call of this module has
// synchronised a stream, an event, a fence or a device. The pool then releases memory beyond that,
// as far as no block uses it and its work has ended. It does not see a cuCtxSynchronize of the
// program's own. The default is 0.
func (p *Pool) SetReleaseThreshold(bytes uint64) error {
	err := p.live()
	if err == nil {
		p.threshold.Store(bytes)
	}
	return p.fail("set release threshold", 0, bytes, err)
}

// ReleaseThreshold is what SetReleaseThreshold has set.
func (p *Pool) ReleaseThreshold() (uint64, error) {
	if err := p.live(); err != nil {
		return 0, p.fail("read release threshold", 0, 0, err)
	}
	return p.threshold.Load(), nil
}
