package vmm

import (
	"cmp"
	"fmt"
	"slices"
)

// retire gives up the whole slots that fill [off, off+size) and names the turn.
// No copy of ours is using them when it returns, and none begins.
func (r *Reservation) retire(off, size uint64) (turn uint64, err error) {
	turn, err = r.markRetiring(off, size)
	if err == nil {
		r.copies.wait()
	}
	return turn, err
}

func (r *Reservation) markRetiring(off, size uint64) (turn uint64, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.live(); err != nil {
		return 0, err
	}
	i, j, err := r.wholeSlotsLocked(off, size)
	if err != nil {
		return 0, err
	}
	if n := r.heldLocked(); off < n {
		return 0, fmt.Errorf("%w: bytes below %#x are held", ErrBusy, n)
	}
	for k := i; k < j; k++ {
		switch s := &r.slots[k]; s.state {
		case retiring, unmapping:
			return 0, fmt.Errorf("%w: %v is retiring", ErrBusy, r.ptr+Ptr(s.off))
		case mapped:
			return 0, fmt.Errorf("quarantined: %w", s.quarantined)
		}
	}
	r.retireSeq++
	for k := i; k < j; k++ {
		r.retireSlotLocked(&r.slots[k])
	}
	return r.retireSeq, nil
}

// retireSlot and reviveSlot move a slot out of accessible and back. A
// quarantined slot without access stays mapped: only Close and Trim try it
// again. They need r.mu.
func (r *Reservation) retireSlotLocked(s *slot) {
	if s.state == accessible {
		s.state, s.retireSeq = retiring, r.retireSeq
		r.stats.Retiring += s.size()
		r.dev.counters.retiring.add(s.size())
	}
}

func (r *Reservation) unretireSlotLocked(s *slot) {
	if s.state >= retiring {
		s.state = accessible
		r.stats.Retiring -= s.size()
		r.dev.counters.retiring.sub(s.size())
	}
}

// retreat waits for the work that may use what retired in turn and unmaps it.
// Where either fails it makes it accessible again.
func (r *Reservation) fenceAndUnmap(turn, off, size uint64) error {
	err := r.fence()
	if err == nil {
		err = r.unmapEarlier()
	}
	if err == nil {
		err = r.unmapRetired(turn, off, size)
	}
	if err != nil {
		r.unretire(turn, off, size)
	}
	return err
}

// revive makes accessible again what retired in turn, all of it in [off, off+size).
func (r *Reservation) unretire(turn, off, size uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := r.slotAtLocked(off); i < len(r.slots) && r.slots[i].off < off+size; i++ {
		if s := &r.slots[i]; s.retireSeq == turn && s.state == retiring {
			r.unretireSlotLocked(s)
		}
	}
}

// sweep unmaps what retired in turn and has not been taken back since, all of
// it in [off, off+size). Its wait is over. Where the driver says no it is
// retiring as before.
func (r *Reservation) unmapRetired(turn, off, size uint64) error {
	r.mappingMu.Lock()
	defer r.mappingMu.Unlock()
	i, j, n := r.claimRetired(turn, off, size)
	if n == 0 {
		return nil
	}
	err := r.dev.drv().Unmap(r.ptr+Ptr(r.slots[i].off), n)
	r.mu.Lock()
	if err != nil {
		for k := i; k < j; k++ {
			r.slots[k].state = retiring
		}
		r.mu.Unlock()
		return err
	}
	gone := r.removeSlotsLocked(i, j, nil)
	r.generation.Add(1)
	r.notify()
	r.checkInvariantsLocked()
	r.mu.Unlock()
	for _, m := range gone {
		m.release() //nolint:errcheck // the addresses are free; memory that will not go back is counted as stuck
	}
	return nil
}

// claim takes what is left of a turn away from those who would take it back:
// slots [i, j) of n bytes. It needs r.layout.
func (r *Reservation) claimRetired(turn, off, size uint64) (i, j int, n uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	ours := func(i int) bool {
		return i < len(r.slots) && r.slots[i].off < off+size && r.slots[i].retireSeq == turn && r.slots[i].state == retiring
	}
	i = r.slotAtLocked(off)
	for i < len(r.slots) && r.slots[i].off < off+size && !ours(i) {
		i++
	}
	for j = i; ours(j); j++ {
		r.slots[j].state = unmapping
		n += r.slots[j].size()
	}
	return i, j, n
}

// reclaim makes retiring slots at off accessible again, front to back, until
// need is reached, and gives how far the accessible part goes then. A
// retirement of which nothing is left is forgotten, its events free.
func (r *Reservation) reclaim(off, need uint64) uint64 {
	off, marks := r.reclaimSlots(off, need)
	freeFences(marks)
	return off
}

func (r *Reservation) reclaimSlots(off, need uint64) (end uint64, marks []fenceEvent) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.live() != nil || off >= need {
		return off, nil
	}
	var taken uint64
	for i := r.slotAtLocked(off); i < len(r.slots) && off < need; i++ {
		s := &r.slots[i]
		// One that is accessible came back because its unmapping failed.
		if s.off != off || s.state != retiring && s.state != accessible {
			break
		}
		if s.state == retiring {
			taken += s.size()
			r.unretireSlotLocked(s)
			marks = r.forgetRetiredSlotLocked(s.retireSeq, marks)
		}
		off = s.end()
	}
	if taken > 0 {
		r.dev.counters.count(&r.dev.counters.counts.Reclaimed, taken)
		r.stats.Reclaimed += taken
	}
	return off, marks
}

// takenBack counts one slot of a retirement as taken back, and appends the
// marks of one that has no other. It needs r.mu.
func (r *Reservation) forgetRetiredSlotLocked(turn uint64, marks []fenceEvent) []fenceEvent {
	i, ok := slices.BinarySearchFunc(r.retirements, turn, (*retirement).bySeq)
	if !ok {
		return marks
	}
	t := r.retirements[i]
	if t.left--; t.left > 0 || t.unmapping {
		return marks
	}
	r.retirements = slices.Delete(r.retirements, i, i+1)
	return append(marks, t.fences...)
}

// retirement is memory that a Clip gave up without waiting, and the events
// behind which nothing uses it any more. Guarded by r.mu, but for the marks
// while it is asked.
type retirement struct {
	seq, off, size uint64
	left           int // slots that nobody has taken back
	fences         []fenceEvent
	unmapping      bool // somebody is at it
}

func (t *retirement) bySeq(turn uint64) int { return cmp.Compare(t.seq, turn) }

// over says whether nothing uses the memory any more.
func (t *retirement) finished() (bool, error) {
	for len(t.fences) > 0 {
		passed, err := t.fences[0].done()
		if err != nil || !passed {
			return false, err
		}
		t.fences[0].free()
		t.fences = t.fences[1:]
	}
	return true, nil
}

// postpone leaves a retirement to the device: its goroutine unmaps the memory
// once the events say so.
func (r *Reservation) unmapLater(t *retirement) {
	r.mu.Lock()
	for i := r.slotAtLocked(t.off); i < len(r.slots) && r.slots[i].off < t.off+t.size; i++ {
		if s := &r.slots[i]; s.retireSeq == t.seq && s.state == retiring {
			t.left++
		}
	}
	late := t.left == 0 // a growth was faster
	if !late {
		r.retirements = append(r.retirements, t)
		r.dev.retiringMu.Lock()
		r.dev.retiring[r] = struct{}{}
		r.dev.retiringMu.Unlock()
	}
	r.mu.Unlock()
	if late {
		freeFences(t.fences)
		return
	}
	r.dev.wakeWorker()
}

// ask takes the first retirement to work on; nil if there is none, and then the
// device need not look any more. The caller holds d.draining.
func (r *Reservation) nextRetirement() *retirement {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.retirements) == 0 {
		r.dev.retiringMu.Lock()
		defer r.dev.retiringMu.Unlock()
		delete(r.dev.retiring, r)
		return nil
	}
	t := r.retirements[0]
	t.unmapping = true
	return t
}

// asked undoes ask; a retirement that is over, or of which nothing is left, goes.
func (r *Reservation) finishRetirement(t *retirement, over bool) {
	r.mu.Lock()
	t.unmapping = false
	gone := over || t.left == 0
	if gone {
		r.retirements = slices.Delete(r.retirements, 0, 1)
	}
	r.mu.Unlock()
	if gone {
		freeFences(t.fences)
	}
}

// endRetired unmaps what waits no longer, in order: then there is never a hole
// between a range's capacity and the end of what retires. waited is that the
// caller has waited for all of it. What fails is still retiring: growth can
// take it back, and Close gives it back. The caller holds d.draining.
func (r *Reservation) unmapFinished(waited bool) (progress bool, err error) {
	for {
		t := r.nextRetirement()
		if t == nil {
			return progress, nil
		}
		if waited {
			freeFences(t.fences)
			t.fences = nil
		}
		over, err := t.finished()
		if over && err == nil {
			err = r.unmapRetired(t.seq, t.off, t.size)
		}
		over = over && err == nil
		r.finishRetirement(t, over)
		if !over {
			return progress, err
		}
		progress = true
	}
}

// endEarlier unmaps what r retired earlier and left to the device, after a wait
// that covers it: it lies behind what is given up now, so it goes first.
func (r *Reservation) unmapEarlier() error {
	r.dev.sweepMu.Lock()
	defer r.dev.sweepMu.Unlock()
	_, err := r.unmapFinished(true)
	return err
}

// forgetRetired drops what is left to be done; r has waited for all of it and
// has nothing mapped.
func (r *Reservation) dropRetirements() {
	r.dev.sweepMu.Lock()
	defer r.dev.sweepMu.Unlock()
	r.mu.Lock()
	all := r.retirements
	r.retirements = nil
	r.dev.retiringMu.Lock()
	delete(r.dev.retiring, r)
	r.dev.retiringMu.Unlock()
	r.mu.Unlock()
	for _, t := range all {
		freeFences(t.fences)
	}
}

// waiting is how many reservations have retirements that have not come to their
// end.
func (d *Device) retiringCount() int {
	d.retiringMu.Lock()
	defer d.retiringMu.Unlock()
	return len(d.retiring)
}

// drain unmaps what waits no longer, and says whether there was any.
func (d *Device) sweepRetired() (progress bool, failed error) {
	d.sweepMu.Lock()
	defer d.sweepMu.Unlock()
	d.retiringMu.Lock()
	all := make([]*Reservation, 0, len(d.retiring))
	for r := range d.retiring {
		all = append(all, r)
	}
	d.retiringMu.Unlock()
	for _, r := range all {
		some, err := r.unmapFinished(false)
		progress = progress || some
		failed = also(failed, "and", err)
	}
	return progress, failed
}
