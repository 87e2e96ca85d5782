package vmm

import (
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/internal/spare"
)

// cache is memory of a device that nobody uses and that the next growth of a
// Range may have: releasing memory is the expensive part of shrinking. Only
// private memory comes here, what was created here and could never leave the
// process.
type cache struct {
	mu        sync.Mutex
	threshold uint64
	pieces    spare.Pieces[driver.Prop, driver.Handle]
}

// SetReleaseThreshold is how many bytes of memory that nobody uses any more the device
// keeps for its ranges to grow with, instead of giving them back; as
// sql.DB.SetMaxIdleConns it can be changed at any time, and gives the old
// value. The default is 0: nothing is kept. What is kept goes where memory runs
// out, in Trim and in Close. Memory that was shareable or imported is never
// kept, and Create and Alloc never take what was.
func (d *Device) SetReleaseThreshold(bytes uint64) (old uint64) {
	if d == nil {
		return 0
	}
	d.state.pressureMu.Lock() // as in Trim
	defer d.state.pressureMu.Unlock()
	live := d.live() == nil
	d.cache.mu.Lock()
	old = d.cache.threshold
	var out []*memory
	if live {
		d.cache.threshold = bytes
		out = d.evictLocked(bytes)
	}
	d.cache.mu.Unlock()
	d.freeEvicted(out) //nolint:errcheck // counted as stuck
	return old
}

// Trim unmaps what retired and waits no longer, offers the driver once more what it
// would not take back (see Stats.Quarantined), and gives back kept memory, the oldest
// first, until no more than keep bytes of it are left. Freed is how many bytes of the
// device's memory the driver got back meanwhile.
func (d *Device) Trim(keep uint64) (freed uint64, err error) {
	if err := d.live(); err != nil {
		return 0, d.fail("trim", 0, keep, err)
	}
	before := d.counters.released.Load()
	err = d.retryReleases()   // which may wait, and so is not for trim
	d.state.pressureMu.Lock() // a growth out of memory waits for what is about to go
	defer d.state.pressureMu.Unlock()
	err = also(err, "and", d.trim(keep))
	return d.counters.released.Load() - before, d.fail("trim", 0, keep, err)
}

func (d *Device) trim(keep uint64) error {
	_, err := d.sweepRetired()
	if d.retiringCount() > 0 {
		d.wakeWorker() // the goroutine may have looked while we had them
	}
	err = also(err, "and", d.repair())
	err = also(err, "and", d.releaseQuarantined())
	return also(err, "and", d.freeEvicted(d.evict(keep)))
}

// relieved calls f. If f fails with ErrOutOfMemory and a caller waits for the memory,
// it has memory released and calls f again. It stops when no memory was released
// since the last try; another goroutine's release counts.
func (p *deviceState) retryAfterRelease(awaited bool, f func() error) error {
	for {
		seen := p.released.Load()
		err := f()
		if !awaited || !errors.Is(err, ErrOutOfMemory) || !p.releaseForOthers(seen) {
			return err
		}
	}
}

// relieve has all Devices on the port give back what they can do without, and
// says whether any memory was given back since seen was read.
func (p *deviceState) releaseForOthers(seen uint64) bool {
	p.pressureUntil.Store(time.Now().Add(afterFailure).UnixNano())
	p.pressureMu.Lock() // what somebody else is about to give back counts
	defer p.pressureMu.Unlock()
	p.mu.Lock()
	devs := slices.Clone(p.devices)
	p.mu.Unlock()
	for _, d := range devs {
		if p.released.Load() == seen {
			d.trim(0) //nolint:errcheck // what will not go back is counted as stuck
		}
	}
	return p.released.Load() != seen
}

// reservations lists those that are open.
func (d *Device) reservations() (all []*Reservation) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for thing := range d.open {
		if r, ok := thing.(*Reservation); ok {
			all = append(all, r)
		}
	}
	return all
}

// heal has reservations mend what an undo could not.
func (d *Device) repair() (failed error) {
	if d.counters.quarantinedNow() == 0 {
		return nil
	}
	for _, r := range d.reservations() {
		failed = also(failed, "and", r.repair())
	}
	return failed
}

// heal unmaps memory that was mapped but never accessible, and sets access again
// where the driver may differ from the books. It waits for no work: the former was
// never usable, and the latter takes nothing away.
func (r *Reservation) repair() error {
	r.mappingMu.Lock()
	defer r.mappingMu.Unlock()
	r.mu.Lock()
	bad := r.live() == nil && r.stats.Quarantined > 0
	r.mu.Unlock()
	if !bad {
		return nil
	}
	var failed error
	for i := len(r.slots) - 1; i >= 0; i-- { // cutting leaves those before it alone
		if r.slots[i].state == mapped {
			failed = also(failed, "and", r.unmapSlot(i))
		}
	}
	if r.accessUnsure() {
		failed = also(failed, "and", r.setAllAccess())
	}
	return failed
}

// unmapSlot unmaps one slot. It needs r.layout.
func (r *Reservation) unmapSlot(i int) error {
	s := r.slots[i]
	if err := r.dev.drv().Unmap(r.ptr+Ptr(s.off), s.size()); err != nil {
		return err
	}
	r.mu.Lock()
	gone := r.removeSlotsLocked(i, i+1, nil)
	r.generation.Add(1)
	r.mu.Unlock()
	for _, m := range gone {
		m.release() //nolint:errcheck // counted as stuck
	}
	return nil
}

// setBooked gives the driver the access that stands in the books. It needs r.layout.
func (r *Reservation) setAllAccess() error {
	all, _ := r.accessCalls(AccessNone, nil)
	err := r.eachRun(func(_, _ int, off, size uint64) error {
		return r.dev.drv().SetAccess(r.ptr+Ptr(off), size, all)
	})
	if err == nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.accessCertainLocked()
	}
	return err
}

// discard gives memory that was kept back to the driver.
func (d *Device) freeEvicted(all []*memory) (failed error) {
	for _, m := range all {
		failed = also(failed, "and", m.free())
	}
	return failed
}

// keep takes memory that nobody uses any more; false if it is to go back.
func (d *Device) cacheMemory(m *memory) bool {
	if !m.private || m.prop.Location != d.location() { // no range of d asks for other memory
		return false
	}
	c := &d.cache
	c.mu.Lock()
	if m.size > c.threshold {
		c.mu.Unlock()
		return false
	}
	out := d.evictLocked(c.threshold - m.size)
	c.pieces.Put(m.prop, m.size, m.h)
	d.counters.cached.add(m.size)
	c.mu.Unlock()
	d.freeEvicted(out) //nolint:errcheck // counted as stuck
	return true
}

// take gives the largest kept memory of the kind from least to most bytes, with
// one reference; nil if there is none.
func (d *Device) takeCached(p driver.Prop, least, most uint64) *memory {
	c := &d.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	x := c.pieces.Take(p, least, most)
	if x == nil {
		return nil
	}
	d.counters.cached.sub(x.Size)
	// A new object: whoever still has a Segment of the old one has no claim to it.
	m := &memory{dev: d, h: x.Value, size: x.Size, prop: p, private: true, created: true}
	m.refs.Store(1)
	return m
}

// over takes the oldest out of the cache until no more than keep bytes are left.
func (d *Device) evict(keep uint64) (out []*memory) {
	d.cache.mu.Lock()
	defer d.cache.mu.Unlock()
	return d.evictLocked(keep)
}

// evict is over with the cache's lock held.
func (d *Device) evictLocked(keep uint64) (out []*memory) {
	c := &d.cache
	for c.pieces.Bytes() > keep {
		x := c.pieces.Oldest()
		d.counters.cached.sub(x.Size)
		out = append(out, &memory{dev: d, h: x.Value, size: x.Size, prop: x.Kind, created: true})
	}
	return out
}
