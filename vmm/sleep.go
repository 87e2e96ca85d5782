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
		held = append(held, &g.r.closer)
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
	turn uint64
	room uint64 // its capacity when it is awake
	mem  []*memory
}

func sleep(k SleepMode, ranges []*Range) error {
	if k > SleepKeep {
		return fmt.Errorf("%w: contents %d", ErrInvalid, k)
	}
	var all []*sleeper
	err := func() error {
		for _, g := range ranges {
			s, err := g.doze()
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
			s.stayUp()
		}
		return err
	}
	for i, s := range all {
		if err := s.depart(); err != nil {
			for _, s := range all[:i] {
				if again := s.comeBack(); again != nil {
					err = also(err, "and mapping another range again, which now sleeps", again)
					s.commit(k)
				}
			}
			for _, s := range all[i:] {
				s.stayUp()
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
func (g *Range) doze() (*sleeper, error) {
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
	g.write.Lock()
	defer g.write.Unlock()
	g.grow.Lock()
	defer g.grow.Unlock()
	r.layout.Lock()
	defer r.layout.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.live(); err != nil {
		return nil, err
	}
	if len(r.holds) > 0 {
		return nil, fmt.Errorf("%w: bytes below %#x are held", ErrBusy, r.held())
	}
	for i := 0; r.books.Quarantined > 0 && i < len(r.slots); i++ {
		if err := r.slots[i].stuck; err != nil {
			return nil, fmt.Errorf("quarantined: %w", err)
		}
	}
	r.phase.Store(isAsleep)
	r.turns++
	for i := range r.slots {
		r.retireSlot(&r.slots[i])
	}
	s := &sleeper{Range: g, turn: r.turns, room: g.cap.Load()}
	g.cap.Store(0)
	return s, nil
}

// stayUp undoes doze.
func (s *sleeper) stayUp() {
	s.grow.Lock() // a growth that found it asleep ends first
	defer s.grow.Unlock()
	s.r.revive(s.turn, 0, s.r.size)
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	s.r.phase.Store(isOpen)
	s.cap.Store(s.room)
}

// save copies the contents to host memory. Nothing is using the range.
func (s *sleeper) save() error {
	n := s.len.Load()
	if n == 0 {
		return nil
	}
	raw, err := s.r.dev.raw()
	if err != nil {
		return err
	}
	b, err := s.makeBed(n)
	if err != nil {
		return fmt.Errorf("host memory for %s: %w", sizeText(n), err)
	}
	return raw.copyOut(b, s.r.ptr)
}

// makeBed gives n bytes of host memory.
func (g *Range) makeBed(n uint64) ([]byte, error) {
	if g.bed.live() != nil { // there is none, or one that could not be closed
		if err := g.stripBed(); err != nil {
			return nil, err
		}
		d, err := g.r.dev.lodge()
		if err != nil {
			return nil, err
		}
		if g.bed, err = d.NewRange(RangeOptions{Max: g.r.size}); err != nil {
			return nil, err
		}
		// Nobody else works on it, so it waits for no stranger's streams.
		g.bed.r.usesNone()
	}
	if err := g.bed.room(n); err != nil {
		return nil, err
	}
	if err := g.bed.SetLen(n); err != nil {
		return nil, err
	}
	return g.bed.Host()
}

// stripBed gives the host memory back.
func (g *Range) stripBed() error {
	err := g.bed.Close()
	if err == nil {
		g.bed = nil
	}
	return err
}

// depart unmaps all of the range and keeps what was below its capacity for now.
func (s *sleeper) depart() error {
	gone, err := s.unmap()
	var have uint64
	for _, m := range gone {
		if have < s.room {
			s.mem = append(s.mem, m)
			have += m.size
		} else {
			m.drop() //nolint:errcheck // it was retiring; counted as stuck
		}
	}
	return err
}

// unmap gives the memory that was mapped.
func (s *sleeper) unmap() ([]*memory, error) {
	r := s.r
	r.layout.Lock()
	defer r.layout.Unlock()
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
	return r.cut(0, n, nil), nil
}

// size is how much memory the sleeper has with it.
func (s *sleeper) size() (n uint64) {
	for _, m := range s.mem {
		n += m.size
	}
	return n
}

// comeBack undoes depart and doze; what was retiring behind the capacity is gone.
func (s *sleeper) comeBack() error {
	r := s.r
	s.grow.Lock()
	defer s.grow.Unlock()
	r.layout.Lock()
	defer r.layout.Unlock()
	if len(s.mem) > 0 {
		if err := r.place(0, 0, s.size(), s.mem, r.who); err != nil {
			return err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	s.enter()
	return nil
}

// enter puts mapped memory into the books; the range is awake. It needs
// s.grow, r.layout and r.mu.
func (s *sleeper) enter() {
	r := s.r
	r.insert(0, 0, s.mem, accessible, nil)
	s.dropAll((*memory).drop)
	r.phase.Store(isOpen)
	s.cap.Store(s.room)
	r.notify()
	r.check()
}

// dropAll gives up the sleeper's references.
func (s *sleeper) dropAll(drop func(*memory) error) {
	for _, m := range s.mem {
		drop(m) //nolint:errcheck // mapped, or counted as stuck
	}
	s.mem = nil
}

// commit releases the memory; the range is asleep.
func (s *sleeper) commit(k SleepMode) {
	s.sizes = nil
	for _, m := range s.mem {
		s.sizes = append(s.sizes, m.size)
	}
	s.dropAll((*memory).dropForGood)
	s.write.Lock()
	defer s.write.Unlock()
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	if k == SleepDrop {
		s.show(0)
	}
	s.r.dev.meter.used.move(&s.r.dev.meter.asleep, s.len.Load())
	s.slept = true
	s.r.notify()
}

// woken undoes commit's books. It needs r.mu.
func (g *Range) woken() {
	g.r.dev.meter.asleep.move(&g.r.dev.meter.used, g.len.Load())
	g.slept = false
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
			err = s.rise()
		}
		if err != nil {
			for _, s := range all {
				err = also(err, "and", s.fall(nil)) // its copy has ended
			}
			return err
		}
		all = append(all, s)
	}
	for _, s := range all {
		r := s.r
		s.grow.Lock()
		r.layout.Lock()
		r.mu.Lock()
		s.woken()
		s.enter()
		r.mu.Unlock()
		r.layout.Unlock()
		s.grow.Unlock()
		s.lookAhead()
	}
	return nil
}

// rise gives a sleeping range memory and contents. Where it fails the range has
// none, and sleeps on.
func (s *sleeper) rise() error {
	d, p := s.r.dev, prop(s.r.dev, s.opts)
	if err := s.heal(); err != nil {
		return err
	}
	for _, size := range s.sizes {
		var m *memory
		if !s.fresh {
			m = d.take(p, size, size)
		}
		if m == nil {
			var err error
			if m, err = d.create(size, p, true); err != nil {
				s.dropAll((*memory).drop)
				return err
			}
		}
		s.mem = append(s.mem, m)
		s.room += size
	}
	if len(s.mem) == 0 {
		return nil
	}
	var stuck error // a try that could not be undone
	err := d.port.relieved(true, func() error {
		if stuck = s.r.stuckBelow(s.r.size); stuck != nil {
			return nil
		}
		return s.putBack()
	})
	err = cmp.Or(err, stuck)
	if err != nil {
		s.dropAll((*memory).drop)
		return err
	}
	if err := s.load(); err != nil {
		return also(err, "and", s.fall(s.r.fence())) // it may be under way
	}
	return nil
}

// putBack maps the sleeper's memory, all or nothing. The owner may write to it
// until load has.
func (s *sleeper) putBack() error {
	r := s.r
	r.layout.Lock()
	defer r.layout.Unlock()
	who := r.who
	if who[0].Access == AccessRead && s.len.Load() > 0 {
		who = slices.Clone(who)
		who[0].Access = AccessReadWrite
	}
	return r.place(0, 0, s.room, s.mem, who)
}

// heal unmaps what an earlier undo could not.
func (s *sleeper) heal() error {
	why := s.r.stuckBelow(s.r.size)
	if why == nil {
		return nil
	}
	if err := s.r.fence(); err != nil && !lost(err) {
		return also(why, "and waiting to unmap it", err)
	}
	gone, err := s.r.unmapAll()
	for _, m := range gone {
		m.drop() //nolint:errcheck // counted as stuck
	}
	return err
}

// load copies the contents back.
func (s *sleeper) load() error {
	if s.len.Load() == 0 {
		return nil
	}
	raw, err := s.r.dev.raw()
	if err != nil {
		return err
	}
	b, err := s.bed.Host()
	if err != nil {
		return err
	}
	if err := raw.copyIn(s.r.ptr, b); err != nil {
		return err
	}
	r := s.r
	r.layout.Lock()
	defer r.layout.Unlock()
	if r.who[0].Access == AccessRead { // as granted; see putBack
		return r.dev.drv().SetAccess(r.ptr, s.room, r.who[:1])
	}
	return nil
}

// fall undoes rise, after a wait that answered err. What cannot be unmapped
// is quarantined, accessible: Close waits for the copy that may be under way.
func (s *sleeper) fall(err error) error {
	r := s.r
	r.layout.Lock()
	defer r.layout.Unlock()
	if err == nil || lost(err) {
		err = nil
		if len(s.mem) > 0 {
			err = r.dev.drv().Unmap(r.ptr, s.room)
		}
	}
	if err != nil {
		r.mu.Lock()
		r.insert(0, 0, s.mem, accessible, err)
		r.mu.Unlock()
	}
	s.dropAll((*memory).drop)
	return err
}

// lodge is where the contents of sleeping ranges wait: host memory.
func (d *Device) lodge() (*Device, error) {
	d.lodgeMu.Lock()
	defer d.lodgeMu.Unlock()
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
func (d *Device) unlodge() error {
	d.lodgeMu.Lock()
	defer d.lodgeMu.Unlock()
	err := d.host.Close()
	if err == nil {
		d.host = nil
	}
	return err
}
