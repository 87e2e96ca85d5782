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
	i, j, err := r.whole(off, size)
	if err != nil {
		return 0, err
	}
	if n := r.held(); off < n {
		return 0, fmt.Errorf("%w: bytes below %#x are held", ErrBusy, n)
	}
	for k := i; k < j; k++ {
		switch s := &r.slots[k]; s.state {
		case retiring, unmapping:
			return 0, fmt.Errorf("%w: %v is retiring", ErrBusy, r.ptr+Ptr(s.off))
		case mapped:
			return 0, fmt.Errorf("quarantined: %w", s.stuck)
		}
	}
	r.turns++
	for k := i; k < j; k++ {
		r.retireSlot(&r.slots[k])
	}
	return r.turns, nil
}

// retireSlot and reviveSlot move a slot out of accessible and back. A
// quarantined slot without access stays mapped: only Close and Trim try it
// again. They need r.mu.
func (r *Reservation) retireSlot(s *slot) {
	if s.state == accessible {
		s.state, s.turn = retiring, r.turns
		r.books.Retiring += s.size()
		r.dev.meter.pending.add(s.size())
	}
}

func (r *Reservation) reviveSlot(s *slot) {
	if s.state >= retiring {
		s.state = accessible
		r.books.Retiring -= s.size()
		r.dev.meter.pending.sub(s.size())
	}
}

// retreat waits for the work that may use what retired in turn and unmaps it.
// Where either fails it makes it accessible again.
func (r *Reservation) retreat(turn, off, size uint64) error {
	err := r.fence()
	if err == nil {
		err = r.endEarlier()
	}
	if err == nil {
		err = r.sweep(turn, off, size)
	}
	if err != nil {
		r.revive(turn, off, size)
	}
	return err
}

// revive makes accessible again what retired in turn, all of it in [off, off+size).
func (r *Reservation) revive(turn, off, size uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := r.slotAt(off); i < len(r.slots) && r.slots[i].off < off+size; i++ {
		if s := &r.slots[i]; s.turn == turn && s.state == retiring {
			r.reviveSlot(s)
		}
	}
}

// sweep unmaps what retired in turn and has not been taken back since, all of
// it in [off, off+size). Its wait is over. Where the driver says no it is
// retiring as before.
func (r *Reservation) sweep(turn, off, size uint64) error {
	r.layout.Lock()
	defer r.layout.Unlock()
	i, j, n := r.claim(turn, off, size)
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
	gone := r.cut(i, j, nil)
	r.generation.Add(1)
	r.notify()
	r.check()
	r.mu.Unlock()
	for _, m := range gone {
		m.drop() //nolint:errcheck // the addresses are free; memory that will not go back is counted as stuck
	}
	return nil
}

// claim takes what is left of a turn away from those who would take it back:
// slots [i, j) of n bytes. It needs r.layout.
func (r *Reservation) claim(turn, off, size uint64) (i, j int, n uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	ours := func(i int) bool {
		return i < len(r.slots) && r.slots[i].off < off+size && r.slots[i].turn == turn && r.slots[i].state == retiring
	}
	i = r.slotAt(off)
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
	freeAll(marks)
	return off
}

func (r *Reservation) reclaimSlots(off, need uint64) (end uint64, marks []mark) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.live() != nil || off >= need {
		return off, nil
	}
	var taken uint64
	for i := r.slotAt(off); i < len(r.slots) && off < need; i++ {
		s := &r.slots[i]
		// One that is accessible came back because its unmapping failed.
		if s.off != off || s.state != retiring && s.state != accessible {
			break
		}
		if s.state == retiring {
			taken += s.size()
			r.reviveSlot(s)
			marks = r.takenBack(s.turn, marks)
		}
		off = s.end()
	}
	if taken > 0 {
		r.dev.meter.count(&r.dev.meter.counts.Reclaimed, taken)
		r.books.Reclaimed += taken
	}
	return off, marks
}

// takenBack counts one slot of a retirement as taken back, and appends the
// marks of one that has no other. It needs r.mu.
func (r *Reservation) takenBack(turn uint64, marks []mark) []mark {
	i, ok := slices.BinarySearchFunc(r.retired, turn, (*retirement).byTurn)
	if !ok {
		return marks
	}
	t := r.retired[i]
	if t.left--; t.left > 0 || t.asked {
		return marks
	}
	r.retired = slices.Delete(r.retired, i, i+1)
	return append(marks, t.marks...)
}

// retirement is memory that a Clip gave up without waiting, and the events
// behind which nothing uses it any more. Guarded by r.mu, but for the marks
// while it is asked.
type retirement struct {
	turn, off, size uint64
	left            int // slots that nobody has taken back
	marks           []mark
	asked           bool // somebody is at it
}

func (t *retirement) byTurn(turn uint64) int { return cmp.Compare(t.turn, turn) }

// over says whether nothing uses the memory any more.
func (t *retirement) over() (bool, error) {
	for len(t.marks) > 0 {
		passed, err := t.marks[0].passed()
		if err != nil || !passed {
			return false, err
		}
		t.marks[0].free()
		t.marks = t.marks[1:]
	}
	return true, nil
}

// postpone leaves a retirement to the device: its goroutine unmaps the memory
// once the events say so.
func (r *Reservation) postpone(t *retirement) {
	r.mu.Lock()
	for i := r.slotAt(t.off); i < len(r.slots) && r.slots[i].off < t.off+t.size; i++ {
		if s := &r.slots[i]; s.turn == t.turn && s.state == retiring {
			t.left++
		}
	}
	late := t.left == 0 // a growth was faster
	if !late {
		r.retired = append(r.retired, t)
		r.dev.pending.Lock()
		r.dev.retiring[r] = struct{}{}
		r.dev.pending.Unlock()
	}
	r.mu.Unlock()
	if late {
		freeAll(t.marks)
		return
	}
	r.dev.rouse()
}

// ask takes the first retirement to work on; nil if there is none, and then the
// device need not look any more. The caller holds d.draining.
func (r *Reservation) ask() *retirement {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.retired) == 0 {
		r.dev.pending.Lock()
		defer r.dev.pending.Unlock()
		delete(r.dev.retiring, r)
		return nil
	}
	t := r.retired[0]
	t.asked = true
	return t
}

// asked undoes ask; a retirement that is over, or of which nothing is left, goes.
func (r *Reservation) asked(t *retirement, over bool) {
	r.mu.Lock()
	t.asked = false
	gone := over || t.left == 0
	if gone {
		r.retired = slices.Delete(r.retired, 0, 1)
	}
	r.mu.Unlock()
	if gone {
		freeAll(t.marks)
	}
}

// endRetired unmaps what waits no longer, in order: then there is never a hole
// between a range's capacity and the end of what retires. waited is that the
// caller has waited for all of it. What fails is still retiring: growth can
// take it back, and Close gives it back. The caller holds d.draining.
func (r *Reservation) endRetired(waited bool) (progress bool, err error) {
	for {
		t := r.ask()
		if t == nil {
			return progress, nil
		}
		if waited {
			freeAll(t.marks)
			t.marks = nil
		}
		over, err := t.over()
		if over && err == nil {
			err = r.sweep(t.turn, t.off, t.size)
		}
		over = over && err == nil
		r.asked(t, over)
		if !over {
			return progress, err
		}
		progress = true
	}
}

// endEarlier unmaps what r retired earlier and left to the device, after a wait
// that covers it: it lies behind what is given up now, so it goes first.
func (r *Reservation) endEarlier() error {
	r.dev.draining.Lock()
	defer r.dev.draining.Unlock()
	_, err := r.endRetired(true)
	return err
}

// forgetRetired drops what is left to be done; r has waited for all of it and
// has nothing mapped.
func (r *Reservation) forgetRetired() {
	r.dev.draining.Lock()
	defer r.dev.draining.Unlock()
	r.mu.Lock()
	all := r.retired
	r.retired = nil
	r.dev.pending.Lock()
	delete(r.dev.retiring, r)
	r.dev.pending.Unlock()
	r.mu.Unlock()
	for _, t := range all {
		freeAll(t.marks)
	}
}

// waiting is how many reservations have retirements that have not come to their
// end.
func (d *Device) waiting() int {
	d.pending.Lock()
	defer d.pending.Unlock()
	return len(d.retiring)
}

// drain unmaps what waits no longer, and says whether there was any.
func (d *Device) drain() (progress bool, failed error) {
	d.draining.Lock()
	defer d.draining.Unlock()
	d.pending.Lock()
	all := make([]*Reservation, 0, len(d.retiring))
	for r := range d.retiring {
		all = append(all, r)
	}
	d.pending.Unlock()
	for _, r := range all {
		some, err := r.endRetired(false)
		progress = progress || some
		failed = also(failed, "and", err)
	}
	return progress, failed
}
