package vmm

import (
	"fmt"
	"slices"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// retire gives up the whole slots that fill [off, off+size) and names the turn.
// No copy of ours is using them when it returns, and none begins.
func (r *Reservation) retire(off, size uint64) (turn uint64, err error) {
	r.use.Lock()
	defer r.use.Unlock()
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
// quarantined slot without access stays mapped: only Close tries it again. They
// need r.mu.
func (r *Reservation) retireSlot(s *slot) {
	if s.state == accessible {
		s.state, s.turn = retiring, r.turns
		r.dev.meter.pending.add(s.size())
	}
}

func (r *Reservation) reviveSlot(s *slot) {
	if s.state >= retiring {
		s.state = accessible
		r.dev.meter.pending.sub(s.size())
	}
}

// retreat waits for the work that may use what retired in turn and unmaps it.
// Where either fails it makes it accessible again.
func (r *Reservation) retreat(turn, off, size uint64) error {
	err := r.fence()
	if err == nil {
		err = r.dev.endEarlier(r)
	}
	if err == nil {
		err = r.sweep(turn, off, size)
	}
	if err != nil {
		r.revive(turn)
	}
	return err
}

// revive makes accessible again what retired in turn.
func (r *Reservation) revive(turn uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.slots {
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

// readopt makes retiring slots at off accessible again, front to back, until
// need is reached, and gives how far the accessible part goes then.
func (r *Reservation) readopt(off, need uint64) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.live() != nil {
		return off
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
		}
		r.reviveSlot(s)
		off = s.end()
	}
	r.dev.meter.count(&r.dev.meter.counts.Readopted, taken)
	r.books.Readopted += taken
	return off
}

// retirement is memory that a Clip gave up without waiting, and the events
// behind which nothing uses it any more.
type retirement struct {
	r               *Reservation
	turn, off, size uint64
	marks           []mark
}

// mark is an event that was recorded behind work that may use some memory.
type mark struct {
	p   *port
	dev driver.Device
	e   driver.Event
}

// reached says whether the work has ended, by itself or with its device.
func (m mark) reached() (bool, error) {
	done, err := m.dev.Done(m.e)
	if lost(err) {
		return true, nil
	}
	return done, err
}

// wait waits for the work, by itself or with its device, and gives the event
// back.
func (m mark) wait() error {
	if err := m.dev.SyncEvent(m.e); err != nil && !lost(err) {
		return err
	}
	m.p.recycle(m.e)
	return nil
}

// recycle gives the events back.
func (t *retirement) recycle() {
	for _, m := range t.marks {
		m.p.recycle(m.e)
	}
	t.marks = nil
}

// over says whether nothing uses the memory any more.
func (t *retirement) over() (bool, error) {
	for len(t.marks) > 0 {
		m := t.marks[0]
		done, err := m.reached()
		if err != nil || !done {
			return false, err
		}
		m.p.recycle(m.e)
		t.marks = t.marks[1:]
	}
	return true, nil
}

// postpone leaves a retirement to the device: its goroutine unmaps the memory
// once the events say so.
func (d *Device) postpone(t *retirement) {
	d.pending.Lock()
	d.retired = append(d.retired, t)
	d.pending.Unlock()
	d.rouse()
}

// forget drops what is left to be done for r, which has waited for all of it.
func (d *Device) forget(r *Reservation) {
	d.draining.Lock()
	defer d.draining.Unlock()
	d.pending.Lock()
	defer d.pending.Unlock()
	kept := d.retired[:0]
	for _, t := range d.retired {
		if t.r == r {
			t.recycle()
		} else {
			kept = append(kept, t)
		}
	}
	clear(d.retired[len(kept):])
	d.retired = kept
}

// endEarlier unmaps what r retired earlier and left to the device, after a wait
// that covers it: it lies behind what is given up now, so it goes first.
func (d *Device) endEarlier(r *Reservation) error {
	d.draining.Lock()
	defer d.draining.Unlock()
	d.pending.Lock()
	all := slices.Clone(d.retired)
	d.pending.Unlock()
	for _, t := range all {
		if t.r != r {
			continue
		}
		t.recycle()
		if _, err := t.finish(); err != nil {
			return err
		}
	}
	return nil
}

// unmark takes the events of a port off what retires: its work has ended, and
// its context is about to.
func (d *Device) unmark(p *port) error {
	d.draining.Lock()
	defer d.draining.Unlock()
	d.pending.Lock()
	all := slices.Clone(d.retired)
	d.pending.Unlock()
	for _, t := range all {
		for i := len(t.marks) - 1; i >= 0; i-- {
			if m := t.marks[i]; m.p == p {
				if err := m.wait(); err != nil {
					return err
				}
				t.marks = slices.Delete(t.marks, i, i+1)
			}
		}
	}
	return nil
}

// waiting is how many retirements have not come to their end.
func (d *Device) waiting() int {
	d.pending.Lock()
	defer d.pending.Unlock()
	return len(d.retired)
}

// drain unmaps what waits no longer. Retirements of one reservation come to
// their end in order: then there is never a hole between its capacity and the
// end of what retires. It says whether any did.
func (d *Device) drain() (progress bool, failed error) {
	d.draining.Lock()
	defer d.draining.Unlock()
	d.pending.Lock()
	todo := d.retired
	d.retired = nil
	d.pending.Unlock()
	var rest []*retirement
	blocked := map[*Reservation]bool{}
	for _, t := range todo {
		over, err := false, error(nil)
		if !blocked[t.r] {
			over, err = t.finish()
		}
		if !over {
			blocked[t.r] = true
			rest = append(rest, t)
		}
		failed = also(failed, "and", err)
	}
	d.pending.Lock()
	defer d.pending.Unlock()
	d.retired = append(rest, d.retired...)
	return len(rest) < len(todo), failed
}

// finish unmaps the memory if its wait is over; false to try again later. What
// fails is still retiring: growth can take it back, and Close gives it back.
func (t *retirement) finish() (bool, error) {
	over, err := t.over()
	if err == nil && over {
		err = t.r.sweep(t.turn, t.off, t.size)
	}
	return over && err == nil, err
}
