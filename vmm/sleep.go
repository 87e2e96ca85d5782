package vmm

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"
)

// Keep says what becomes of the bytes of a range that sleeps.
type SleepMode uint8

// What Sleep does with contents.
const (
	SleepDrop SleepMode = iota // Len becomes 0
	SleepKeep                  // they wait in host memory
)

// Sleep gives the memory of ranges back to the device and keeps their addresses.
// Their contents wait in host memory, or are dropped. It waits first as Unmap
// does; all of them fall asleep or none. A sleeping range answers ErrAsleep to
// all but Wake and Close; its Cap is 0. One that is held answers ErrBusy.
//
// A range that has slept keeps the host memory for the next time, until Clip or
// Close.
func Sleep(k SleepMode, ranges ...*Range) error {
	unlock, err := lockAll(ranges)
	if err != nil {
		return failed("sleep", ranges, err)
	}
	defer unlock()
	return failed("sleep", ranges, sleep(k, ranges))
}

// Wake gives sleeping ranges memory again, at the same addresses, in chunks of
// the same sizes, with the same grants, and brings back their contents: all of
// them or none. A range that is awake is left alone.
func Wake(ranges ...*Range) error {
	unlock, err := lockAll(ranges)
	if err != nil {
		return failed("wake", ranges, err)
	}
	defer unlock()
	return failed("wake", ranges, wake(ranges))
}

func failed(op string, ranges []*Range, err error) error {
	if len(ranges) == 0 {
		return (*Device)(nil).fail(op, 0, 0, err)
	}
	return ranges[0].fail(op, 0, 0, err)
}

// lockAll keeps others from clipping and closing the ranges, from putting them to
// sleep and waking them, and from changing who may access them: each kind of lock in
// the order of the ranges.
func lockAll(ranges []*Range) (unlock func(), err error) {
	if len(ranges) == 0 || slices.Contains(ranges, nil) {
		return nil, fmt.Errorf("%w: no range", ErrInvalid)
	}
	for _, g := range ranges { // without waiting for the Close that is under way
		if err := g.live(); err != nil && !errors.Is(err, ErrAsleep) {
			return nil, err
		}
	}
	sorted := inOrder(ranges)
	if len(slices.Compact(slices.Clone(sorted))) < len(sorted) {
		return nil, fmt.Errorf("%w: a range is named twice", ErrInvalid)
	}
	var held []*sync.Mutex
	for _, g := range sorted {
		held = append(held, &g.r.closeMu)
	}
	for _, g := range sorted {
		held = append(held, &g.r.grantMu)
	}
	for _, l := range held {
		l.Lock()
	}
	return func() {
		for _, l := range slices.Backward(held) {
			l.Unlock()
		}
	}, nil
}

// sleeper is a range on its way to sleep or back, and what it has of memory.
// What it goes through, and what undoes it:
//
//	doze    stayUp    nobody else gets in; everything retires
//	save              its contents are copied to host memory
//	depart  comeBack  it is unmapped; the memory is still ours
//	commit            the memory is released, and it sleeps
//
//	rise    fall      it has memory, mappings and contents
//	enter             that stands in the books, and it is awake
type sleeper struct {
	*Range
	seq      uint64
	capacity uint64 // its capacity when it is awake
	mem      []*memory
}

func sleep(k SleepMode, ranges []*Range) error {
	if k > SleepKeep {
		return fmt.Errorf("%w: contents %d", ErrInvalid, k)
	}
	var all []*sleeper
	err := func() error {
		for _, g := range ranges {
			s, err := g.quiesce()
			if err != nil {
				return err
			}
			all = append(all, s)
		}
		for _, s := range all {
			if err := s.r.fence(); err != nil {
				return err
			}
		}
		for _, s := range all {
			if k == SleepDrop {
				break
			}
			if err := s.save(); err != nil {
				return err
			}
		}
		return nil
	}()
	if err != nil {
		for _, s := range all {
			s.resume()
		}
		return err
	}
	for i, s := range all {
		if err := s.unmapAll(); err != nil {
			for _, s := range all[:i] {
				if again := s.remapAll(); again != nil {
					err = also(err, "and mapping another range again, which now sleeps", again)
					s.commit(k)
				}
			}
			for _, s := range all[i:] {
				s.resume()
			}
			return err
		}
	}
	for _, s := range all {
		s.commit(k)
	}
	return nil
}

// doze lets nobody use the range any more and retires all of it; no copy of ours
// is under way when it returns.
func (g *Range) quiesce() (*sleeper, error) {
	s, err := g.markAsleep()
	if err == nil {
		g.r.copies.wait()
	}
	return s, err
}

// markAsleep is the part of doze that takes locks. Whoever appends ends first; those
// who come later are told that it sleeps, and wait for nothing.
func (g *Range) markAsleep() (*sleeper, error) {
	r := g.r
	g.lenMu.Lock()
	defer g.lenMu.Unlock()
	g.capMu.Lock()
	defer g.capMu.Unlock()
	r.mappingMu.Lock()
	defer r.mappingMu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.live(); err != nil {
		return nil, err
	}
	if len(r.holds) > 0 {
		return nil, fmt.Errorf("%w: bytes below %#x are held", ErrBusy, r.heldLocked())
	}
	for i := 0; r.stats.Quarantined > 0 && i < len(r.slots); i++ {
		if err := r.slots[i].quarantined; err != nil {
			return nil, fmt.Errorf("quarantined: %w", err)
		}
	}
	r.phase.Store(isAsleep)
	r.retireSeq++
	for i := range r.slots {
		r.retireSlotLocked(&r.slots[i])
	}
	s := &sleeper{Range: g, seq: r.retireSeq, capacity: g.cap.Load()}
	g.cap.Store(0)
	return s, nil
}

// stayUp undoes doze.
func (s *sleeper) resume() {
	s.capMu.Lock() // a growth that found it asleep ends first
	defer s.capMu.Unlock()
	s.r.unretire(s.seq, 0, s.r.size)
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	s.r.phase.Store(isOpen)
	s.cap.Store(s.capacity)
}

// save copies the contents to host memory. Nothing is using the range.
func (s *sleeper) save() error {
	n := s.len.Load()
	if n == 0 {
		return nil
	}
	raw, err := s.r.dev.ensureOpen()
	if err != nil {
		return err
	}
	b, err := s.newHostCopy(n)
	if err != nil {
		return fmt.Errorf("host memory for %s: %w", sizeText(n), err)
	}
	return raw.copyOut(b, s.r.ptr)
}

// makeBed gives n bytes of host memory.
func (g *Range) newHostCopy(n uint64) ([]byte, error) {
	if g.hostCopy.live() != nil { // there is none, or one that could not be closed
		if err := g.freeHostCopy(); err != nil {
			return nil, err
		}
		d, err := g.r.dev.hostDevice()
		if err != nil {
			return nil, err
		}
		if g.hostCopy, err = d.NewRange(RangeOptions{Max: g.r.size}); err != nil {
			return nil, err
		}
		// Nobody else works on it, so it waits for no stranger's streams.
		g.hostCopy.r.waitForOwnStreams()
	}
	if err := g.hostCopy.ensure(n); err != nil {
		return nil, err
	}
	if err := g.hostCopy.SetLen(n); err != nil {
		return nil, err
	}
	return g.hostCopy.Host()
}

// stripBed gives the host memory back.
func (g *Range) freeHostCopy() error {
	err := g.hostCopy.Close()
	if err == nil {
		g.hostCopy = nil
	}
	return err
}

// depart unmaps all of the range and keeps what was below its capacity for now.
func (s *sleeper) unmapAll() error {
	gone, err := s.unmap()
	var have uint64
	for _, m := range gone {
		if have < s.capacity {
			s.mem = append(s.mem, m)
			have += m.size
		} else {
			m.release() //nolint:errcheck // it was retiring; counted as stuck
		}
	}
	return err
}

// unmap gives the memory that was mapped.
func (s *sleeper) unmap() ([]*memory, error) {
	r := s.r
	r.mappingMu.Lock()
	defer r.mappingMu.Unlock()
	n := len(r.slots)
	if n == 0 {
		return nil, nil
	}
	// It is one stretch: what retires lies right behind the capacity.
	if err := r.dev.drv().Unmap(r.ptr, r.slots[n-1].end()); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.generation.Add(1)
	return r.removeSlotsLocked(0, n, nil), nil
}

// size is how much memory the sleeper has with it.
func (s *sleeper) size() (n uint64) {
	for _, m := range s.mem {
		n += m.size
	}
	return n
}

// comeBack undoes depart and doze; what was retiring behind the capacity is gone.
func (s *sleeper) remapAll() error {
	r := s.r
	s.capMu.Lock()
	defer s.capMu.Unlock()
	r.mappingMu.Lock()
	defer r.mappingMu.Unlock()
	if len(s.mem) > 0 {
		if err := r.mapChunks(0, 0, s.size(), s.mem, r.driverGrants); err != nil {
			return err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	s.commitAwakeLocked()
	return nil
}

// enter puts mapped memory into the books; the range is awake. It needs
// s.grow, r.layout and r.mu.
func (s *sleeper) commitAwakeLocked() {
	r := s.r
	r.insertSlotsLocked(0, 0, s.mem, accessible, nil)
	s.releaseMemory((*memory).release)
	r.phase.Store(isOpen)
	s.cap.Store(s.capacity)
	r.notify()
	r.checkInvariantsLocked()
}

// dropAll gives up the sleeper's references.
func (s *sleeper) releaseMemory(drop func(*memory) error) {
	for _, m := range s.mem {
		drop(m) //nolint:errcheck // mapped, or counted as stuck
	}
	s.mem = nil
}

// commit releases the memory; the range is asleep.
func (s *sleeper) commit(k SleepMode) {
	s.sleptChunks = nil
	for _, m := range s.mem {
		s.sleptChunks = append(s.sleptChunks, m.size)
	}
	s.releaseMemory((*memory).releaseUncached)
	s.lenMu.Lock()
	defer s.lenMu.Unlock()
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	if k == SleepDrop {
		s.publishLen(0)
	}
	s.r.dev.counters.used.move(&s.r.dev.counters.asleep, s.len.Load())
	s.asleep = true
	s.r.notify()
}

// woken undoes commit's books. It needs r.mu.
func (g *Range) bookAwakeLocked() {
	g.r.dev.counters.asleep.move(&g.r.dev.counters.used, g.len.Load())
	g.asleep = false
}

func wake(ranges []*Range) error {
	var all []*sleeper
	for _, g := range ranges {
		err := g.live()
		if err == nil {
			continue
		}
		s := &sleeper{Range: g}
		if errors.Is(err, ErrAsleep) {
			err = s.restore()
		}
		if err != nil {
			for _, s := range all {
				err = also(err, "and", s.rollback(nil)) // its copy has ended
			}
			return err
		}
		all = append(all, s)
	}
	for _, s := range all {
		r := s.r
		s.capMu.Lock()
		r.mappingMu.Lock()
		r.mu.Lock()
		s.bookAwakeLocked()
		s.commitAwakeLocked()
		r.mu.Unlock()
		r.mappingMu.Unlock()
		s.capMu.Unlock()
		s.lookAhead()
	}
	return nil
}

// rise gives a sleeping range memory and contents. Where it fails the range has
// none, and sleeps on.
func (s *sleeper) restore() error {
	d, p := s.r.dev, chunkProp(s.r.dev, s.opts)
	if err := s.repair(); err != nil {
		return err
	}
	for _, size := range s.sleptChunks {
		var m *memory
		if !s.noCache {
			m = d.takeCached(p, size, size)
		}
		if m == nil {
			var err error
			if m, err = d.create(size, p, true); err != nil {
				s.releaseMemory((*memory).release)
				return err
			}
		}
		s.mem = append(s.mem, m)
		s.capacity += size
	}
	if len(s.mem) == 0 {
		return nil
	}
	var stuck error // a try that could not be undone
	err := d.state.retryAfterRelease(true, func() error {
		if stuck = s.r.quarantinedBelow(s.r.size); stuck != nil {
			return nil
		}
		return s.mapMemory()
	})
	err = cmp.Or(err, stuck)
	if err != nil {
		s.releaseMemory((*memory).release)
		return err
	}
	if err := s.load(); err != nil {
		return also(err, "and", s.rollback(s.r.fence())) // it may be under way
	}
	return nil
}

// putBack maps the sleeper's memory, all or nothing. The owner may write to it
// until load has.
func (s *sleeper) mapMemory() error {
	r := s.r
	r.mappingMu.Lock()
	defer r.mappingMu.Unlock()
	who := r.driverGrants
	if who[0].Access == AccessRead && s.len.Load() > 0 {
		who = slices.Clone(who)
		who[0].Access = AccessReadWrite
	}
	return r.mapChunks(0, 0, s.capacity, s.mem, who)
}

// heal unmaps what an earlier undo could not.
func (s *sleeper) repair() error {
	why := s.r.quarantinedBelow(s.r.size)
	if why == nil {
		return nil
	}
	if err := s.r.fence(); err != nil && !lost(err) {
		return also(why, "and waiting to unmap it", err)
	}
	gone, err := s.r.unmapEverything()
	for _, m := range gone {
		m.release() //nolint:errcheck // counted as stuck
	}
	return err
}

// load copies the contents back.
func (s *sleeper) load() error {
	if s.len.Load() == 0 {
		return nil
	}
	raw, err := s.r.dev.ensureOpen()
	if err != nil {
		return err
	}
	b, err := s.hostCopy.Host()
	if err != nil {
		return err
	}
	if err := raw.copyIn(s.r.ptr, b); err != nil {
		return err
	}
	r := s.r
	r.mappingMu.Lock()
	defer r.mappingMu.Unlock()
	if r.driverGrants[0].Access == AccessRead { // as granted; see putBack
		return r.dev.drv().SetAccess(r.ptr, s.capacity, r.driverGrants[:1])
	}
	return nil
}

// fall undoes rise, after a wait that answered err. What cannot be unmapped
// is quarantined, accessible: Close waits for the copy that may be under way.
func (s *sleeper) rollback(err error) error {
	r := s.r
	r.mappingMu.Lock()
	defer r.mappingMu.Unlock()
	if err == nil || lost(err) {
		err = nil
		if len(s.mem) > 0 {
			err = r.dev.drv().Unmap(r.ptr, s.capacity)
		}
	}
	if err != nil {
		r.mu.Lock()
		r.insertSlotsLocked(0, 0, s.mem, accessible, err)
		r.mu.Unlock()
	}
	s.releaseMemory((*memory).release)
	return err
}

// lodge is where the contents of sleeping ranges wait: host memory.
func (d *Device) hostDevice() (*Device, error) {
	d.hostMu.Lock()
	defer d.hostMu.Unlock()
	if d.host == nil {
		h, err := Open("host")
		if err != nil {
			return nil, err
		}
		d.host = h
	}
	return d.host, nil
}

// unlodge undoes lodge.
func (d *Device) closeHostDevice() error {
	d.hostMu.Lock()
	defer d.hostMu.Unlock()
	err := d.host.Close()
	if err == nil {
		d.host = nil
	}
	return err
}
