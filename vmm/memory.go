package vmm

import (
	"cmp"
	"fmt"
	"math"
	"sync/atomic"

	"github.com/cuvmm/cuvmm/internal/errtext"
	"github.com/cuvmm/cuvmm/internal/history"
	"github.com/cuvmm/cuvmm/internal/invariants"
	"github.com/cuvmm/cuvmm/internal/memsample"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/internal/freelist"
	"github.com/cuvmm/cuvmm/vmm/internal/lock"
)

// memory is one piece of physical memory, counted by what refers to it: Chunks and
// mappings. When the last reference goes, the memory is cached or released.
type memory struct {
	dev       *Device
	handle    driver.Handle
	size      uint64
	prop      Prop
	cacheable atomic.Bool // a range may have it next, since nothing outside this process can have it
	created   bool        // counts against the limit; else it was imported
	recycled  bool        // it was in the cache, so it may hold bytes of another range
	refs      atomic.Int64
	sample    *memsample.Sample // nil if it was not sampled
}

// zeroing is which memory is filled with zeros when it is mapped.
type zeroing uint8

const (
	zeroNone     zeroing = iota
	zeroRecycled         // memory from the cache: new memory reads as zeros
	zeroAll
)

// purpose is what a growth is for.
type purpose bool

const (
	forCaller    purpose = true  // a caller waits: all or nothing, and others release what they can do without
	forGrowAhead purpose = false // nothing is waited for: what is affordable, and never at others' cost
)

// create makes memory with one reference. Prop's location is resolved already. With its error it
// returns the device that is short of memory.
func (d *Device) create(size uint64, p Prop, purpose purpose, from *memsample.Source) (m *memory, short *deviceState, err error) {
	if err := d.state.charge(size, purpose); err != nil {
		return nil, d.state, err
	}
	if m, err = d.createCharged(size, p, purpose, from); err != nil {
		d.state.uncharge(size)
	}
	return m, d.state.home(p), err
}

// createCharged is create of memory that counts against the limit already.
func (d *Device) createCharged(size uint64, p Prop, purpose purpose, from *memsample.Source) (m *memory, err error) {
	home := d.state.home(p)
	err = home.retryAfterRelease(purpose, func() error {
		if err := home.mayCreate(); err != nil {
			return err
		}
		h, err := d.drv.Create(size, p)
		if err != nil {
			return err
		}
		m = d.adopt(h, size, p, true, from)
		// A network card may go on reading memory that it was shown.
		m.cacheable.Store(p.Share == 0 && !p.RDMA)
		d.counters.Count(1, &d.counters.Creates)
		d.history.Add(history.Create, 0, size, 0, from.Name)
		return nil
	})
	return m, err
}

// home is the device whose memory it is: another one if the location says so and it is open here.
func (s *deviceState) home(p Prop) *deviceState {
	if p.Location.Kind != LocationDevice || p.Location.ID == s.n {
		return s
	}
	s.parent.mu.RLock()
	defer s.parent.mu.RUnlock()
	return cmp.Or(s.parent.states[p.Location.ID], s)
}

// adopt counts a handle that the driver has returned, of memory created here or imported.
func (d *Device) adopt(h driver.Handle, size uint64, p Prop, created bool, from *memsample.Source) *memory {
	m := &memory{dev: d, handle: h, size: size, prop: p, created: created, sample: memsample.Of(d.samples, from, size, 1)}
	m.refs.Store(1)
	d.counters.Raise(d.counters.Of(created), size, m.sample.Begin)
	return m
}

// retain adds a reference; false if there was none left.
func (m *memory) retain() bool {
	for {
		n := m.refs.Load()
		if n == 0 {
			return false
		}
		if m.refs.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// release takes a reference away. After the last one the memory is cached, or goes
// back to the driver.
func (m *memory) release() error {
	if m.refs.Add(-1) > 0 {
		return nil
	}
	if m.dev.cacheMemory(m) {
		pressure.freed.Add(1)
		return nil
	}
	return m.free()
}

// releaseAll releases memory, and returns what the driver refused.
func releaseAll(all []*memory) (failed error) {
	for _, m := range all {
		if err := m.release(); err != nil {
			failed = errtext.Join(failed, "and", err)
		}
	}
	return failed
}

// free gives memory without references back to the driver. If the driver refuses,
// it is counted as quarantined: Trim, growth that runs out of memory, and Device.Close
// try again.
func (m *memory) free() error {
	d := m.dev
	if err := d.drv.Release(m.handle); err != nil {
		d.counters.Add(m.size, &d.counters.Quarantined)
		d.mu.Lock()
		defer d.mu.Unlock()
		d.refusedMemory = append(d.refusedMemory, m)
		return err
	}
	d.counters.Lower(d.counters.Of(m.created), m.size, func() {
		if m.created { // else it is its owner's still
			d.counters.Releases++
			d.counters.FreedBytes += m.size
		}
		m.sample.End()
	})
	if m.created {
		d.history.Add(history.Release, 0, m.size, 0, "")
		d.state.discharge(m.size)
	} else {
		d.history.Add(history.Unimport, 0, m.size, 0, "")
	}
	d.state.home(m.prop).released.Add(m.size)
	pressure.freed.Add(1)
	return nil
}

// releaseRefused asks the driver again to release the memory that it refused.
func (d *Device) releaseRefused() (failed error) {
	d.mu.Lock()
	all := d.refusedMemory
	d.refusedMemory = nil
	d.mu.Unlock()
	for _, m := range all {
		d.counters.Sub(m.size, &d.counters.Quarantined)
		failed = errtext.Join(failed, "and", m.free())
	}
	return failed
}

// cache is memory of a device that no one uses and that the next growth of a
// Range may have: releasing memory is the expensive part of shrinking. Only cacheable
// memory comes here: created here, and never able to leave the process.
type cache struct {
	mu   lock.Mutex
	list freelist.List[driver.Prop, driver.Handle]
}

// SetReleaseThreshold sets how many bytes of unused memory the device caches for ranges and CreateOrReuse
// instead of releasing them, and returns the old value. Memory is cached when nothing maps it and no
// Chunk of it is open, whether it was a range's or made by Create or CreateOrReuse. Like
// sql.DB.SetMaxIdleConns, the threshold can be changed at any time. The default is 0: nothing is cached.
// Cached memory is released when memory runs out, by Trim and by Close. Memory that is shareable, for
// RDMA, imported, or on another device is never cached, and Create and Alloc never use cached memory.
// SetReleaseThreshold waits for the driver as Trim does.
func (d *Device) SetReleaseThreshold(bytes uint64) (old uint64) {
	if d == nil || d.state == nil {
		return 0
	}
	d.state.pressureMu.Lock() // as in Trim
	defer d.state.pressureMu.Unlock()
	live := d.checkOpen() == nil
	d.cache.mu.Lock()
	old = d.counters.Read(&d.counters.Threshold)
	var out []*memory
	if live {
		d.counters.Set(&d.counters.Threshold, bytes)
		out = d.evictLocked(bytes)
	}
	d.cache.mu.Unlock()
	releaseAll(out) //nolint:errcheck // counted as quarantined
	return old
}

// cacheMemory puts memory without references into the cache; false if it is to be
// released.
func (d *Device) cacheMemory(m *memory) bool {
	if !m.cacheable.Load() || m.prop.Location != d.location { // no range of d asks for other memory
		return false
	}
	c := &d.cache
	c.mu.Lock()
	threshold := d.counters.Read(&d.counters.Threshold)
	if m.size > threshold {
		c.mu.Unlock()
		return false
	}
	out := d.evictLocked(threshold - m.size)
	c.list.Put(m.prop, m.size, m.handle)
	d.counters.Raise(&d.counters.Cached, m.size, m.sample.End)
	c.mu.Unlock()
	releaseAll(out) //nolint:errcheck // counted as quarantined
	return true
}

// takeCached returns the largest cached memory with property p from least to most
// bytes, with one reference; nil if there is none, or if another operation has the turn.
func (d *Device) takeCached(p driver.Prop, least, most uint64, from *memsample.Source) *memory {
	if d.state.mayCreate() != nil {
		return nil
	}
	c := &d.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.list.Bytes == 0 {
		return nil
	}
	x := c.list.Take(p, least, most)
	if x == nil {
		return nil
	}
	m := d.uncached(x, from)
	m.cacheable.Store(true)
	return m
}

// uncached is the memory, with one reference, of a piece that was taken out of the cache.
func (d *Device) uncached(x *freelist.Piece[driver.Prop, driver.Handle], from *memsample.Source) *memory {
	// A new object: a Segment of the old one has no claim to it.
	m := &memory{dev: d, handle: x.Value, size: x.Size, prop: x.Kind, created: true, recycled: true}
	m.sample = memsample.Of(d.samples, from, x.Size, 1)
	m.refs.Store(1)
	d.counters.Lower(&d.counters.Cached, x.Size, m.sample.Begin)
	return m
}

// evictLocked takes the oldest memory out of the cache until at most keep bytes are
// left. The memory is not cacheable, so that its release does not cache it again. It needs
// cache.mu.
func (d *Device) evictLocked(keep uint64) (out []*memory) {
	invariants.Held(&d.cache.mu)
	c := &d.cache
	from := &memsample.Source{Kind: memsample.Leaving}
	for c.list.Bytes > keep {
		out = append(out, d.uncached(c.list.Oldest(), from))
	}
	return out
}

// Trim unmaps retired memory whose work has ended. It tries again what the driver refused (see
// Stats.Quarantined), and waits for work before it repairs access. Then it releases cached memory, the
// oldest first, until at most keep bytes of it are left. It returns how many bytes of the device's memory
// went back to the driver meanwhile. Another Trim, SetReleaseThreshold and operations that run out of
// memory on that GPU wait until Trim has ended.
func (d *Device) Trim(keep uint64) (freed uint64, err error) {
	if err := d.checkOpen(); err != nil {
		return 0, d.wrap("trim", 0, keep, err)
	}
	before := d.counters.Read(&d.counters.FreedBytes)
	err = d.state.parent.refusedCalls.retry(d) // it may wait, so not within trim
	err = errtext.Join(err, "and", d.state.syncFills())
	for _, r := range d.openReservations() {
		err = errtext.Join(err, "and", r.repair())
	}
	d.state.pressureMu.Lock() // a growth out of memory waits for what is about to go
	defer d.state.pressureMu.Unlock()
	err = errtext.Join(err, "and", d.trim(keep))
	return d.counters.Read(&d.counters.FreedBytes) - before, d.wrap("trim", 0, keep, err)
}

// trim is the part of Trim that waits for no work.
func (d *Device) trim(keep uint64) error {
	var err error
	if !d.state.mayFill() { // a fence covers no fill that came after it
		_, err = sweepRetired(d, waitForLock)
	}
	if d.counters.Read(&d.counters.Quarantined.Now) > 0 {
		for _, r := range d.openReservations() {
			err = errtext.Join(err, "and", r.unmapNeverAccessible())
		}
	}
	err = errtext.Join(err, "and", d.releaseRefused())
	d.cache.mu.Lock()
	out := d.evictLocked(keep)
	d.cache.mu.Unlock()
	return errtext.Join(err, "and", releaseAll(out))
}

// SetLimit bounds how many bytes of memory this process creates on the device, whatever the number of
// Devices opened on it; 0, the default, is no bound. It returns the old limit. Calls that would exceed it
// return ErrOutOfMemory, after cached memory has been released. A limit below the current use only stops
// growth. Imported memory does not count, nor does memory of the driver's pools and of package ipc;
// memory created here for another location does. The limit lasts until the last Device on the device
// closes; on a closed Device nothing changes.
func (d *Device) SetLimit(bytes uint64) (old uint64) {
	if d == nil || d.state == nil {
		return 0
	}
	d.mu.Lock() // a Device that is closed limits no one
	defer d.mu.Unlock()
	s := d.state
	s.mu.Lock()
	defer s.mu.Unlock()
	if old = s.limit; d.liveLocked() == nil {
		s.limit = bytes
	}
	return old
}

// limitLeft is how much may still be created if 1/parts of the limit is to stay free.
func (s *deviceState) limitLeft(parts uint64) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.limit == 0 {
		return math.MaxUint64
	}
	most := s.limit - s.limit/parts
	return most - min(most, s.created)
}

// tooLarge is an error if so much memory is beyond the limit, whatever else is released.
func (s *deviceState) tooLarge(size uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.limit > 0 && size > s.limit {
		return fmt.Errorf("%w: this process's limit is %s", errTooLarge, errtext.Size(s.limit))
	}
	return nil
}

// charge counts memory that is about to be created against the limit, all or nothing.
func (s *deviceState) charge(size uint64, purpose purpose) error {
	if err := s.tooLarge(size); err != nil {
		return err
	}
	return s.retryAfterRelease(purpose, func() error {
		if err := s.mayCreate(); err != nil {
			return err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if left := s.limit - min(s.limit, s.created); s.limit > 0 && size > left {
			return fmt.Errorf("%w: %s are left of this process's limit of %s", ErrOutOfMemory, errtext.Size(left), errtext.Size(s.limit))
		}
		s.created += size
		s.createdChanges++
		return nil
	})
}

// uncharge undoes charge of what was not created after all: others may have it.
func (s *deviceState) uncharge(size uint64) {
	if size > 0 {
		s.discharge(size)
		pressure.freed.Add(1)
	}
}

// discharge undoes charge.
func (s *deviceState) discharge(size uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.created -= size
	s.createdChanges++
}
