package pool

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cuvmm/cuvmm/vmm"
)

// Device is whose memory it is.
func (p *Pool) Device() *vmm.Device {
	if p == nil {
		return nil
	}
	return p.dev
}

// Reservation is the addresses of the pool, for vmm.EnablePeers, for registering them, and
// for looking at what is mapped. The pool maps and unmaps chunks at any time; a Hold keeps
// what is mapped.
func (p *Pool) Reservation() *vmm.Reservation {
	if p == nil {
		return nil
	}
	return p.res
}

// String names the pool, as Device.Close does if it is still open.
func (p *Pool) String() string {
	if p == nil || p.dev == nil {
		return "no pool"
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

// TrimTo gives back chunks in which nothing is allocated, wherever they lie, until the pool
// holds at most keep bytes. It returns how many bytes it gave back: to the device's cache
// (vmm.Device.SetReleaseThreshold) or to the driver. Memory that was freed in a stream whose
// work is not known to have ended stays; with ReuseOpportunistic the driver is asked, but
// TrimTo does not wait.
func (p *Pool) TrimTo(keep uint64) (freed uint64, err error) {
	if err = p.live(); err == nil {
		p.repair()
		freed, err = p.trim(keep, p.allows(ReuseOpportunistic))
	}
	return freed, p.fail("trim", 0, keep, err)
}

// trim is TrimTo; ask says whether to ask the driver how far streams have come.
func (p *Pool) trim(keep uint64, ask bool) (freed uint64, err error) {
	p.mu.Lock()
	if p.closed.Load() {
		p.mu.Unlock()
		return 0, errClosed
	}
	p.busy++
	defer func() {
		p.doneLocked()
		p.mu.Unlock()
	}()
	if ask {
		p.askLocked()
	}
	p.mu.Unlock()
	p.gather()

	p.mu.Lock()
	p.settleLocked()
	n := int(p.chunks.Load()) - int((keep+p.chunk-1)/p.chunk) //nolint:gosec // Max bounds both
	if keep > uint64(p.most)*p.chunk || n <= 0 {              //nolint:gosec // not negative
		return 0, nil
	}
	out := p.takeSpareLocked(n)
	runs := p.takeIdleLocked(n - len(out))
	p.mu.Unlock()

	out, err = p.unmap(out, runs)
	for _, c := range out {
		if again := c.Close(); again != nil && err == nil {
			err = again // the driver has refused it: the device counts it as quarantined
		}
	}

	p.mu.Lock()
	for _, e := range runs {
		if p.slots[e.off/p.chunk].chunk == nil {
			p.addHoleLocked(e)
		} else {
			e.stamp = 0
			p.addFreeLocked(e, &p.idle)
		}
	}
	p.chunks.Add(-int64(len(out)))
	freed = uint64(len(out)) * p.chunk
	p.stats.Released += freed
	return freed, err
}

// repair lets addresses be used again where the driver refused to map memory.
func (p *Pool) repair() {
	p.mu.Lock()
	bad := p.bad > 0
	p.mu.Unlock()
	if !bad {
		return
	}
	if _, err := p.dev.Trim(0); err != nil { // which tries once more what was refused
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
	p.bad = 0
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
	if uint64(p.chunks.Load())*p.chunk <= keep || p.live() != nil { //nolint:gosec // not negative
		return
	}
	_, _ = p.trim(keep, false) // what the driver refuses the device counts as quarantined
}

// SetReleaseThreshold is how many bytes the pool keeps when a stream, an event or a device is
// synchronised by this module: then it gives back what is beyond, as far as no block uses it
// and its work has ended. A cuCtxSynchronize of the program's own is not seen. The default
// is 0.
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

// SetReuse switches the policies. What is allocated already stays as it is.
func (p *Pool) SetReuse(r Reuse) error {
	err := p.live()
	switch {
	case err != nil:
	case r&^ReuseAll != 0:
		err = fmt.Errorf("%w: reuse %#x", vmm.ErrInvalid, uint8(r))
	default:
		p.reuse.Store(uint32(r))
	}
	return p.fail("set reuse", 0, 0, err)
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
	err := p.live()
	if err == nil {
		if err = p.res.Grant(a, devs...); err == nil {
			p.checkAccess()
		}
	}
	return p.fail("grant", 0, 0, err)
}

// Revoke is Reservation.Revoke: it waits as Unmap does. The owner's access cannot be revoked.
// Streams of the devices return ErrInvalid from then on.
func (p *Pool) Revoke(devs ...*vmm.Device) error {
	err := p.live()
	if err == nil {
		err = p.res.Revoke(devs...)
		p.checkAccess()
	}
	return p.fail("revoke", 0, 0, err)
}

// Access is what a device may do with the memory.
func (p *Pool) Access(d *vmm.Device) (vmm.Access, error) {
	if err := p.live(); err != nil {
		return vmm.AccessNone, p.fail("read access", 0, 0, err)
	}
	return p.res.Access(d), nil
}

// checkAccess looks up anew which streams are of devices with access.
func (p *Pool) checkAccess() {
	for _, st := range p.list() {
		st.denied.Store(p.res.Access(st.s.Device()) == vmm.AccessNone)
	}
}

// Stats is the pool in numbers. UsedPeak is exact as long as the pool is used by one stream;
// of several, each may add up to 1 MiB to it.
func (p *Pool) Stats() (Stats, error) {
	if p == nil || p.res == nil {
		return Stats{}, p.fail("read statistics", 0, 0, errNoPool)
	}
	var sum counts
	add := func(c *counts) {
		sum.blocks += c.blocks
		sum.used += c.used
		sum.charged += c.charged
		sum.allocs += c.allocs
		sum.frees += c.frees
	}
	for _, st := range p.list() {
		st.mu.Lock()
		if !st.gone || p.closed.Load() { // else it is among the past ones
			add(&st.counts)
		}
		st.mu.Unlock()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.settleLocked()
	add(&p.past)
	add(&p.long)
	used := p.used.now.Load() + sum.used - sum.charged
	s := p.stats
	s.Reserved = uint64(p.chunks.Load()) * p.chunk  //nolint:gosec // not negative
	s.ReservedPeak = uint64(p.chunksPeak) * p.chunk //nolint:gosec // not negative
	s.Used = uint64(max(used, 0))
	s.UsedPeak = max(uint64(p.used.peak.Load()), s.Used) //nolint:gosec // not negative
	s.Blocks = int(max(sum.blocks, 0))
	s.Allocs, s.Frees = sum.allocs, sum.frees
	s.Pending = p.pendingLocked()
	s.LargestFree = p.largestLocked()
	return s, nil
}

// ResetPeaks sets the peaks to what there is now.
func (p *Pool) ResetPeaks() error {
	if err := p.live(); err != nil {
		return p.fail("reset peaks", 0, 0, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.chunksPeak = p.chunks.Load()
	p.used.peak.Store(p.used.now.Load())
	return nil
}

// pendingLocked is how many bytes were freed in streams that are not known to have come there.
func (p *Pool) pendingLocked() (bytes uint64) {
	for _, st := range p.all {
		bytes += st.free.bytes
	}
	return bytes
}

// largestLocked is the longest free run.
func (p *Pool) largestLocked() (size uint64) {
	for i := range p.regions {
		size = max(size, p.idle.bins[i].largest())
		for _, st := range p.all {
			size = max(size, st.free.bins[i].largest())
		}
	}
	return size
}

// Find returns the block that an address lies in, without a call of the driver; false if
// none is allocated there. Its Size is what the block has, which may be more than was asked
// for. It must not run beside a Free of that block.
func (p *Pool) Find(at vmm.Ptr) (Block, bool) {
	if p.live() != nil || at < p.base || uint64(at-p.base) >= uint64(len(p.slots))*p.chunk {
		return Block{}, false
	}
	off := uint64(at - p.base)
	s := &p.slots[off/p.chunk]
	page := int(off % p.chunk / pageSize) //nolint:gosec // far below 2^63
	pages := s.owners.Load()
	if pages != nil {
		if o := (*pages)[page].Load(); o != nil && o.slab != nil {
			return o.slab.block(at)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	e := s.cover
	for ; pages != nil && page >= 0; page-- { // the block may begin on an earlier page
		if o := (*pages)[page].Load(); o != nil {
			e = o.ext
			break
		}
	}
	if e == nil || e.kind != kindBlock || off >= e.end() || e.seq.Load() == 0 {
		return Block{}, false
	}
	return Block{ptr: p.base + vmm.Ptr(e.off), size: e.size, in: &e.owner, seq: e.seq.Load()}, true
}

// block is the block that an address of a slab lies in.
func (sl *slab) block(at vmm.Ptr) (Block, bool) {
	i := sl.index(at)
	if i >= len(sl.seqs) {
		return Block{}, false
	}
	seq := sl.seqs[i].Load()
	return Block{ptr: sl.ptr + vmm.Ptr(uint64(i)*sl.size), size: sl.size, in: &sl.owner, seq: seq}, seq != 0 //nolint:gosec // not negative
}

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
	if err := p.shut(); err != nil {
		return err
	}
	if err := p.res.Close(); err != nil {
		if errors.Is(err, vmm.ErrCapturing) || errors.Is(err, vmm.ErrBusy) {
			p.reopen()
		}
		return err
	}
	for _, stop := range p.stops {
		stop()
	}
	p.stops = nil
	p.mu.Lock()
	defer p.mu.Unlock()
	var failed error
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

// shut lets no call in any more, or returns ErrBusy.
func (p *Pool) shut() error {
	p.mu.Lock()
	p.closed.Store(true) // no stream is added, and no memory moves, from here on
	for p.busy > 0 {
		p.notBusy.Wait()
	}
	all := slices.Clone(p.all)
	p.mu.Unlock()
	var blocks int64
	for _, st := range all {
		st.mu.Lock()
		st.gone = true
		blocks += st.blocks
		st.mu.Unlock()
	}
	p.mu.Lock()
	blocks += p.long.blocks + p.past.blocks
	p.mu.Unlock()
	if blocks == 0 {
		return nil
	}
	p.reopen()
	return fmt.Errorf("%w: %d blocks are allocated", vmm.ErrBusy, blocks)
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
