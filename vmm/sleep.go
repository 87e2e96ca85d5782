package vmm

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/cuvmm/cuvmm/internal/history"
	"github.com/cuvmm/cuvmm/internal/invariants"
	"github.com/cuvmm/cuvmm/internal/memsample"
	"github.com/cuvmm/cuvmm/vmm/internal/bank"
	"github.com/cuvmm/cuvmm/vmm/internal/lock"
	"github.com/cuvmm/cuvmm/vmm/internal/slots"
)

// SleepMode says what Sleep does with a range's bytes.
type SleepMode uint8

// What Sleep does with contents.
const (
	SleepDrop SleepMode = iota // Len becomes 0
	SleepKeep                  // they wait in host memory
)

// Sleep gives the memory of ranges back to the device and keeps their addresses. Their contents are kept
// in host memory, or dropped. Sleep first waits as Unmap does. All of the ranges fall asleep or none. A
// sleeping range has a Cap of 0 and returns ErrAsleep from all but Wake and Close. Sleep returns ErrBusy
// for a held range, and ErrNotSupported for one with a Supplier.
//
// If one range cannot be unmapped, Sleep maps the others again. If the driver refuses to map one, that
// range sleeps and keeps its memory and contents. The error says so, and Wake restores them.
//
// Memory registered with another library (RDMA, NCCL) does not come back, and the library goes on using
// its pages, until that registration ends; see Watch.
//
// The contents are copied into private memory of the process, in huge pages where possible, by all
// processors, up to 16. Sleep first checks how much memory the control group leaves. If the contents
// would not fit, it returns ErrOutOfMemory and the ranges stay awake. The addresses of that memory count
// against SetAddressLimit; beyond it, Sleep returns ErrAddressSpace.
func Sleep(mode SleepMode, ranges ...*Range) (err error) {
	defer func() { err = failFirst("sleep", ranges, err) }()
	if mode > SleepKeep {
		return fmt.Errorf("%w: sleep mode %d", ErrInvalid, mode)
	}
	unlock, err := lockRanges(ranges)
	if err != nil {
		return err
	}
	defer unlock()
	var all []*sleeper
	for _, g := range ranges {
		if g.supply != nil {
			return fmt.Errorf("%w: the range's Supplier has its memory, which Sleep cannot give back", ErrNotSupported)
		}
		all = append(all, &sleeper{Range: g, mode: mode})
	}
	// Each step for all ranges before the next one begins, so that undo can still take
	// back whatever was done.
	each := func(step func(*sleeper) error) func() error {
		return func() error {
			for _, s := range all {
				if err := step(s); err != nil {
					return err
				}
			}
			return nil
		}
	}
	for _, step := range []func() error{
		each((*sleeper).quiesce), each((*sleeper).waitForWork), func() error { return takeHostMemory(all) },
		func() error { return save(all) }, each((*sleeper).unmapAll),
	} {
		if err := step(); err != nil {
			return undoAll(err, "and mapping another range again, which now sleeps with its contents", all, (*sleeper).undo)
		}
	}
	for _, s := range all {
		s.finishSleep()
	}
	return nil
}

// Wake gives sleeping ranges memory again and restores their contents, for all of them or none.
// Addresses, chunk sizes and grants stay the same. A range that is awake is left alone.
func Wake(ranges ...*Range) error {
	var failed *Range
	var size uint64 // of its memory
	err := withMemory(func(err error) error { return failed.r.opError("wake", 0, size, err) }, func() (short *bank.Bank, err error) {
		if failed, size, err = wake(ranges); failed != nil {
			short = failed.r.dev.state.bank
		}
		return short, err
	})
	if failed != nil {
		return failed.wrap("wake", 0, size, err)
	}
	return failFirst("wake", ranges, err)
}

// failFirst wraps err for op on several ranges.
func failFirst(op string, ranges []*Range, err error) error {
	if len(ranges) == 0 {
		return (*Device)(nil).wrap(op, 0, 0, err)
	}
	return ranges[0].wrap(op, 0, 0, err)
}

// lockRanges keeps others from clipping and closing the ranges, from putting them to
// sleep and waking them, and from changing which devices may access them.
func lockRanges(ranges []*Range) (unlock func(), err error) {
	if len(ranges) == 0 || slices.ContainsFunc(ranges, func(g *Range) bool { return g == nil || g.r == nil }) {
		return nil, fmt.Errorf("%w: no range", ErrInvalid)
	}
	for i, g := range ranges { // before the locks, so that it does not wait for a Close that is under way
		if err := g.r.checkOpen(); err != nil && !errors.Is(err, ErrAsleep) {
			return nil, err
		}
		if slices.Contains(ranges[:i], g) {
			return nil, fmt.Errorf("%w: a range is named twice", ErrInvalid)
		}
	}
	all := make([]*Reservation, len(ranges))
	for i, g := range ranges {
		all[i] = g.r
	}
	unlockClose := lockEach(all, func(r *Reservation) *lock.Mutex { return &r.closeMu })
	unlockGrants := lockGrants(all)
	return func() {
		unlockGrants()
		unlockClose()
	}, nil
}

// sleeper is a range on its way to sleep, or back, and the memory it has meanwhile.
//
// To sleep, each step for all ranges before the next one begins:
//
//	quiesce         nothing new uses the range; all of it retires     (undone by resume)
//	waitForWork     the work that may use it has ended
//	takeHostMemory  there is memory of the host for its contents
//	save            they are copied there
//	unmapAll        it is unmapped; the memory is still ours          (undone by remapAll)
//	finishSleep     the memory is released, and the range sleeps: the point of no return
//
// Awake, each step for all ranges before the next one begins:
//
//	restore         it has memory and mappings                        (undone by rollback)
//	load            it has its contents
//	finishWake      the table and the counters show that
type sleeper struct {
	*Range
	mode     SleepMode
	retired  *retirement // nil before quiesce
	capacity uint64      // when it is awake
	mem      []*memory
}

// undo undoes the steps of sleep that were done. If the memory cannot be mapped again
// the range sleeps with it.
func (s *sleeper) undo() (err error) {
	switch {
	case s.retired == nil:
		return nil
	case len(s.mem) == 0: // nothing was unmapped that was below the capacity
		s.resume()
	default:
		if err = s.remapAll(); err != nil {
			s.sleptChunks, s.sleptMem, s.mem = nil, s.mem, nil
			s.showAsleep()
		}
	}
	s.freeHostCopy()
	return err
}

// quiesce lets nothing use the range any more and retires all of it. Then it waits for the
// copies of ours that are under way. Appends under way end first; later ones are told that
// the range sleeps, and wait for nothing.
func (s *sleeper) quiesce() error {
	if err := s.retireAll(); err != nil {
		return err
	}
	s.r.waitForCopies(0, s.r.size)
	return nil
}

// retireAll marks the range as asleep, and all of its memory as retiring.
func (s *sleeper) retireAll() error {
	g, r := s.Range, s.r
	g.growMu.Lock()
	defer g.growMu.Unlock()
	g.lenMu.Lock()
	defer g.lenMu.Unlock()
	r.mappingMu.Lock()
	defer r.mappingMu.Unlock()
	// All locks at once: no append, growth or unmap is half done when it sleeps.
	r.mu.Lock()
	defer r.mu.Unlock()
	err := r.checkOpen()
	if err == nil {
		err = r.checkAllHoldsLocked()
	}
	if err == nil {
		err = r.quarantineErrLocked(r.size)
	}
	if err != nil {
		return err
	}
	r.phase.Store(phaseAsleep)
	s.retired, s.capacity = r.retireLocked(0, r.table.Len()), g.cap.Load()
	g.cap.Store(0)
	return nil
}

// resume undoes quiesce.
func (s *sleeper) resume() {
	s.growMu.Lock() // a growth that found it asleep ends first
	defer s.growMu.Unlock()
	s.r.unretire(s.retired)
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	s.r.phase.Store(phaseOpen)
	s.cap.Store(s.capacity)
	s.r.notify() // whoever has had ErrAsleep meanwhile waits for this
}

// waitForWork waits for the work that may use the range.
func (s *sleeper) waitForWork() error { return s.r.waitForWork() }

// unmapAll unmaps all of the range and keeps what was below its capacity for now.
func (s *sleeper) unmapAll() error {
	r := s.r
	r.mappingMu.Lock()
	defer r.mappingMu.Unlock()
	n := r.table.Len()
	if n == 0 {
		return nil
	}
	// It is one stretch: what retires begins where the capacity ends.
	if err := r.unmapSlotsLocked(0, n); err != nil {
		return err
	}
	r.mu.Lock()
	removed := r.removeSlotsLocked(0, n, nil)
	r.notify()
	r.mu.Unlock()
	var have uint64
	for _, m := range removed {
		if have < s.capacity {
			s.mem = append(s.mem, m)
			have += m.Size
		} else {
			m.Release() //nolint:errcheck // it was retiring; counted as quarantined
		}
	}
	return nil
}

// remapAll undoes unmapAll and quiesce; what was retiring above the capacity was released.
func (s *sleeper) remapAll() error {
	s.growMu.Lock()
	defer s.growMu.Unlock()
	r := s.r
	r.mappingMu.Lock()
	defer r.mappingMu.Unlock()
	if _, err := r.mapOnDriverLocked(0, 0, s.capacity, s.mem, r.grants.Driver(), zeroNone); err != nil {
		return err
	}
	s.showAwakeLocked()
	return nil
}

// finishSleep releases the memory; the range is asleep.
func (s *sleeper) finishSleep() {
	s.sleptChunks = nil
	for _, m := range s.mem {
		s.sleptChunks = append(s.sleptChunks, m.Size)
		// Not into the cache: the program sleeps so that others get the memory.
		m.Cacheable.Store(false)
	}
	s.showAsleep()
	s.releaseMemory() // its bytes count as asleep
}

// showAsleep has the range be asleep.
func (s *sleeper) showAsleep() {
	s.lenMu.Lock()
	defer s.lenMu.Unlock()
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	if s.mode == SleepDrop && s.sleptMem == nil {
		s.publishLenLocked(0)
	}
	c := &s.r.dev.counters
	c.Move(s.len.Load(), &c.Used, &c.Asleep)
	s.asleep = true
	s.r.notify()
	s.r.note(history.Sleep, 0, s.capacity)
}

// releaseMemory gives up the sleeper's references.
func (s *sleeper) releaseMemory() {
	bank.ReleaseAll(s.mem) //nolint:errcheck // mapped, or counted as quarantined
	s.mem = nil
}

// wake returns also the range that could not be woken, and how much memory that needs.
func wake(ranges []*Range) (failed *Range, size uint64, err error) {
	unlock, err := lockRanges(ranges)
	if err != nil {
		return nil, 0, err
	}
	defer unlock()
	sizes := map[*bank.Bank]uint64{}
	for _, g := range ranges {
		if b := g.r.dev.state.bank; errors.Is(g.r.checkOpen(), ErrAsleep) {
			size := g.sleptSize()
			sizes[b] += size
			if err := b.CheckSize(sizes[b]); err != nil {
				return g, size, err
			}
		}
	}
	for b, size := range sizes { // all at once: one chunk lacks less than all of them
		if err := b.CheckRoom(size, forCaller); err != nil {
			g := firstBeyond(ranges, b)
			return g, g.sleptSize(), err
		}
	}
	var all []*sleeper
	for _, g := range ranges {
		err := g.r.checkOpen()
		if err == nil {
			continue
		}
		s := &sleeper{Range: g}
		if errors.Is(err, ErrAsleep) {
			err = s.restore()
		}
		if err != nil {
			rollback := func(s *sleeper) error { return s.rollback(nil) } // no copy has begun
			return g, g.sleptSize(), undoAll(err, "and", all, rollback)
		}
		all = append(all, s)
	}
	if s, err := load(all); err != nil {
		rollback := func(other *sleeper) (wait error) {
			if other.r.dev.state == s.r.dev.state { // its copy may be under way
				wait = other.r.waitForWork()
			}
			return other.rollback(wait)
		}
		return s.Range, s.sleptSize(), undoAll(err, "and", all, rollback)
	}
	for _, s := range all {
		s.finishWake()
	}
	freeHostCopies(all) // they are awake already
	return nil, 0, nil
}

// firstBeyond is the first of the ranges for which b has no room, when all of them together are too large for it. It
// needs closeMu of each.
func firstBeyond(ranges []*Range, b *bank.Bank) (last *Range) {
	left := b.Left(math.MaxUint64)
	for _, g := range ranges {
		if g.r.dev.state.bank != b || !errors.Is(g.r.checkOpen(), ErrAsleep) {
			continue
		}
		size := g.sleptSize()
		if last = g; size > left {
			break
		}
		left -= size
	}
	return last
}

// sleptSize is how much memory a range needs to wake. It needs r.closeMu.
func (g *Range) sleptSize() (n uint64) {
	for _, size := range g.sleptChunks {
		n += size
	}
	return n
}

// restore gives a sleeping range memory. If it fails the range has none, and sleeps on.
func (s *sleeper) restore() error {
	if err := s.r.unmapQuarantined(); err != nil {
		return err
	}
	err := s.createMemory()
	if err == nil && len(s.mem) > 0 {
		err = s.mapMemory()
	}
	if err != nil {
		s.releaseMemory()
	}
	return err
}

// createMemory takes memory for chunks of the same sizes as before, cached memory
// first. A range that has its memory keeps that until it is awake.
func (s *sleeper) createMemory() error {
	for _, m := range s.sleptMem {
		m.Retain()
		s.mem = append(s.mem, m)
		s.capacity += m.Size
	}
	d, p := s.r.dev, s.prop
	from := &memsample.Source{Kind: memsample.Range, Name: s.opts.Name, Made: s.made()}
	for _, size := range s.sleptChunks {
		var m *memory
		if !s.noCache {
			m = d.account.Cached(p, size, size, from)
		}
		if m == nil {
			var err error
			if m, _, err = d.account.Create(size, p, forCaller, from); err != nil {
				return err
			}
		}
		s.mem = append(s.mem, m)
		s.capacity += size
	}
	return nil
}

// mapMemory maps the sleeper's memory, all or nothing. The owner may write to it
// until setOwnAccess.
func (s *sleeper) mapMemory() error {
	r := s.r
	return r.dev.state.bank.RetryAfterRelease(forCaller, func() error {
		r.mappingMu.Lock()
		defer r.mappingMu.Unlock()
		r.mu.Lock()
		err := r.quarantineErrLocked(r.size) // a try that could not be undone
		r.mu.Unlock()
		if err != nil {
			return err
		}
		who, zeroed := r.grants.Driver(), r.zeroed
		if s.sleptMem != nil { // it has the contents
			zeroed = zeroNone
		}
		if who[0].Access == AccessRead && (s.len.Load() > 0 || zeroed != zeroNone) {
			who = slices.Clone(who)
			who[0].Access = AccessReadWrite
		}
		mayStillFill, err := r.mapOnDriverLocked(0, 0, s.capacity, s.mem, who, zeroed)
		if mayStillFill {
			r.watchMappedLocked(0, s.mem)
			r.mu.Lock()
			r.insertSlotsLocked(0, 0, s.mem, slots.Accessible, err) // for unmapQuarantined
			r.mu.Unlock()
		}
		return err
	})
}

// setOwnAccess has the owner access its memory as granted, where mapMemory gave it more.
func (s *sleeper) setOwnAccess() error {
	r := s.r
	if s.capacity == 0 || s.sleptMem == nil && s.len.Load() == 0 && r.zeroed == zeroNone {
		return nil
	}
	r.mappingMu.Lock()
	defer r.mappingMu.Unlock()
	own := r.grants.Driver()[:1]
	if own[0].Access != AccessRead {
		return nil
	}
	return r.dev.drv.SetAccess(r.ptr, s.capacity, own)
}

// rollback undoes restore and load. If err says that the copy may still run, or if unmapping
// fails, the memory stays mapped and is quarantined: Close waits for the copy.
func (s *sleeper) rollback(err error) error {
	r := s.r
	r.mappingMu.Lock()
	defer r.mappingMu.Unlock()
	if err == nil || lost(err) {
		err = nil
		if len(s.mem) > 0 {
			if err = r.dev.drv.Unmap(r.ptr, s.capacity); err == nil {
				r.note(history.Unmap, 0, s.capacity)
			}
		}
	}
	if err != nil {
		r.watchMappedLocked(0, s.mem)
		r.mu.Lock()
		r.insertSlotsLocked(0, 0, s.mem, slots.Accessible, err)
		r.mu.Unlock()
	}
	s.releaseMemory()
	return err
}

// finishWake shows memory that restore has mapped: the range is awake.
func (s *sleeper) finishWake() {
	s.growMu.Lock()
	defer s.growMu.Unlock()
	s.r.mappingMu.Lock()
	defer s.r.mappingMu.Unlock()
	s.showAwakeLocked()
	bank.ReleaseAll(s.sleptMem) //nolint:errcheck // mapped
	s.sleptMem = nil
	s.r.note(history.Wake, 0, s.capacity)
	s.requestGrowAhead()
}

// showAwakeLocked puts mapped memory into the table and opens the range. It needs
// s.growMu and r.mappingMu.
func (s *sleeper) showAwakeLocked() {
	invariants.Held(&s.r.mappingMu)
	r := s.r
	r.watchMappedLocked(0, s.mem)
	r.mu.Lock()
	s.countAwakeLocked()
	r.insertSlotsLocked(0, 0, s.mem, slots.Accessible, nil)
	r.phase.Store(phaseOpen)
	s.cap.Store(s.capacity)
	r.notify()
	r.mu.Unlock()
	s.releaseMemory() // the slots have references of their own
}
