package pool

import (
	"fmt"
	"slices"

	"github.com/cuvmm/cuvmm/internal/nonnil"
	"github.com/cuvmm/cuvmm/vmm"
)

// Device is the device of the memory.
func (p *Pool) Device() *vmm.Device { return nonnil.Of(p).dev }

// Reservation is the addresses of the pool, to use with vmm.EnablePeers, to register, and to look
// at what is mapped. The pool maps and unmaps chunks at any time; a Hold keeps what is mapped.
func (p *Pool) Reservation() *vmm.Reservation { return nonnil.Of(p).res }

// Share is Options.Share.
func (p *Pool) Share() vmm.Share { return nonnil.Of(p).prop.Share }

// String names the pool, as the error of Device.Close does if the pool is still open.
func (p *Pool) String() string {
	if p == nil || p.dev == nil {
		return "no pool"
	}
	if p.base == 0 { // while its addresses are reserved, under this name
		return fmt.Sprintf("pool of %v", p.dev)
	}
	if p.name != "" {
		return fmt.Sprintf("pool %q of %v at %v", p.name, p.dev, p.base)
	}
	return fmt.Sprintf("pool of %v at %v", p.dev, p.base)
}

var errNoPool = fmt.Errorf("%w: no pool", vmm.ErrInvalid)

// live is nil while the pool is open.
func (p *Pool) live() error {
	switch {
	case p == nil || p.res == nil:
		return errNoPool
	case p.closed.Load():
		return errClosed
	}
	return nil
}

// with makes a call while the pool is open.
func (p *Pool) with(op string, f func() error) error {
	err := p.live()
	if err == nil {
		err = f()
	}
	return p.fail(op, 0, 0, err)
}

// SetReuse sets which policies are on, for later calls of Alloc and TrimTo. A value that is not a
// set of policies is ErrInvalid.
func (p *Pool) SetReuse(r Reuse) error {
	return p.with("set reuse", func() error {
		if r&^ReuseAll != 0 {
			return fmt.Errorf("%w: reuse %#x", vmm.ErrInvalid, uint8(r))
		}
		p.reuse.Store(uint32(r))
		return nil
	})
}

// Reuse is the policies that are on.
func (p *Pool) Reuse() (Reuse, error) {
	if err := p.live(); err != nil {
		return 0, p.fail("read reuse", 0, 0, err)
	}
	return Reuse(p.reuse.Load()), nil //nolint:gosec // a Reuse was stored
}

// Grant is Reservation.Grant: it gives devices access to all memory of the pool, present and
// future. From then on Alloc works in their streams.
func (p *Pool) Grant(a vmm.Access, devs ...*vmm.Device) error {
	return p.with("grant", func() error { return p.res.Grant(a, devs...) })
}

// Revoke is Reservation.Revoke: it waits as Unmap does. The access of Device itself cannot be
// revoked. Calls with streams of devs return ErrInvalid from then on.
func (p *Pool) Revoke(devs ...*vmm.Device) error {
	return p.with("revoke", func() error { return p.res.Revoke(devs...) })
}

// Access is what a device may do with the memory.
func (p *Pool) Access(d *vmm.Device) (vmm.Access, error) {
	if err := p.live(); err != nil {
		return vmm.AccessNone, p.fail("read access", 0, 0, err)
	}
	return p.res.Access(d), nil
}

// Stats is the pool in numbers, all of one moment. UsedPeak may be too high, for each stream and for
// long blocks together, by up to 1 MiB, or two blocks if those are longer.
func (p *Pool) Stats() (Stats, error) {
	if p == nil || p.res == nil {
		return Stats{}, p.fail("read statistics", 0, 0, errNoPool)
	}
	locked := p.lockFreed()
	s := p.statsLocked(locked)
	unlockAll(locked)
	p.mu.Unlock()
	return s, nil
}

// lockFreed is lockAll. Then no stream keeps a block that it has freed, so that what is pending
// includes it.
func (p *Pool) lockFreed() (streams []*stream) {
	streams = p.lockAll()
	for _, st := range streams {
		p.freeKeptLocked(st)
	}
	p.updateIdleLocked()
	return streams
}

// statsLocked is Stats, while all streams are locked by lockFreed.
func (p *Pool) statsLocked(locked []*stream) Stats {
	sum := p.sumLocked(locked)
	s := p.stats
	s.Reserved = uint64(p.chunks.Load()) * p.chunk                 //nolint:gosec // not negative
	s.ReservedPeak = max(s.Reserved, uint64(p.chunksPeak)*p.chunk) //nolint:gosec // not negative
	s.Used = uint64(sum.used)                                      //nolint:gosec // not negative
	s.UsedPeak = min(uint64(p.used.peak.Load()), s.ReservedPeak)   //nolint:gosec // not negative
	s.Blocks, s.Allocs, s.Frees = int(sum.blocks), sum.allocs, sum.frees
	for _, st := range p.all {
		s.Pending += st.free.total()
	}
	s.InSlabs = p.slabBytes - (s.Used - sum.pages)
	s.LargestFree = p.largestLocked()
	return s
}

// sumLocked is what all streams count together. Their mu is held.
func (p *Pool) sumLocked(streams []*stream) counts {
	sum := p.past
	sum.add(p.long)
	for _, st := range streams {
		sum.add(st.counts)
	}
	return sum
}

// lockAll locks all streams and the pool, so that nothing is counted. The caller unlocks them.
func (p *Pool) lockAll() (streams []*stream) {
	for {
		streams = p.list()
		for _, st := range streams { // the older ones first
			st.mu.Lock()
		}
		if p.mu.Lock(); slices.Equal(streams, p.all) {
			return streams
		}
		p.mu.Unlock()
		unlockAll(streams)
	}
}

// unlockAll unlocks streams, and not the pool.
func unlockAll(streams []*stream) {
	for _, st := range streams {
		st.mu.Unlock()
	}
}

// ResetPeaks sets the peaks to the present values.
func (p *Pool) ResetPeaks() error {
	if err := p.live(); err != nil {
		return p.fail("reset peaks", 0, 0, err)
	}
	locked := p.lockAll()
	defer p.mu.Unlock()
	for _, st := range locked {
		st.counts.settle(p) // what is charged in advance is not used
	}
	p.long.settle(p)
	p.chunksPeak = p.chunks.Load()
	p.used.peak.Store(p.used.now.Load())
	unlockAll(locked)
	return nil
}

// largestLocked is the longest free run; see bins.largest.
func (p *Pool) largestLocked() (size uint64) {
	for i := range p.regions {
		size = max(size, p.idle.bins[i].largest())
		for _, st := range p.all {
			size = max(size, st.free.bins[i].largest())
		}
	}
	return size
}
