package vmm

import (
	"fmt"
	"maps"
	"slices"

	"github.com/cuvmm/cuvmm/internal/errtext"
	"github.com/cuvmm/cuvmm/internal/history"
	"github.com/cuvmm/cuvmm/internal/invariants"
	"github.com/cuvmm/cuvmm/vmm/internal/bank"
	"github.com/cuvmm/cuvmm/vmm/internal/lock"
	"github.com/cuvmm/cuvmm/vmm/internal/order"
	"github.com/cuvmm/cuvmm/vmm/internal/slots"
)

// Memory is unmapped in these steps. What retire did, unretire undoes, up to unmapRetired:
//
//	retire         its slots are given up: no new use begins
//	waitForCopies  the library's own copies end, and LockSpans of it
//	waitForWork    the work of devices ends, or an event is recorded after it
//	unmapRetired   one driver call; then each chunk is cached or released
//
// Between retire and unmapRetired a growth may take slots back (reclaim). Unmap does
// all steps itself. Clip after UsedBy leaves the last two to the device's goroutine.

// retirement is memory that was given up together. If it is left to the device's
// goroutine, it stands in r.retirements, and no work uses it once its fences are done.
// Guarded by r.mu, but for the fences while it is being swept.
type retirement struct {
	off, size uint64
	left      int // slots that no growth has taken back
	fences    []order.Fence
	sweeping  bool // a goroutine has its fences; growth may still take slots back
}

// Unmap unmaps the whole chunks that fill [off, off+size), after waiting for work that may use them (see
// the package comment). It completes or changes nothing. It returns ErrInvalid for part of a chunk or a
// hole, and ErrBusy for held bytes.
func (r *Reservation) Unmap(off, size uint64) error {
	return r.retireAndUnmap("unmap", off, size, r.waitForWork)
}

// UnmapNow is Unmap, but the caller promises that no work uses the chunks any more, on any device or
// stream, whatever UsedBy has named. It waits only for the library's own copies, as for ReadAt or CopyIn
// of a Device, so it does not return ErrCapturing.
func (r *Reservation) UnmapNow(off, size uint64) error {
	return r.retireAndUnmap("unmap now", off, size, r.waitForOwnCopies)
}

// retireAndUnmap is Unmap, with wait for the work that may use the chunks.
func (r *Reservation) retireAndUnmap(op string, off, size uint64, wait func() error) error {
	if err := r.checkNotOwnedByRange(); err != nil {
		return r.wrap(op, off, size, err)
	}
	t, err := r.retire(off, size)
	if err == nil {
		r.waitForCopies(off, size)
		err = r.waitAndUnmap(t, wait)
	}
	return r.wrap(op, off, size, err)
}

// waitForOwnCopies waits for the library's own streams on the devices that may use the memory.
func (r *Reservation) waitForOwnCopies() error {
	if r.dev.state.parent.hooks.noWait {
		return nil
	}
	return waitStreams(r.dev.state, r.users.Devices(), nil)
}

// Clip gives back the chunks that lie wholly beyond Len. It waits as Unmap does. On error nothing
// has changed.
//
// After UsedBy it does not wait. The chunks are unmapped after the work already queued in the named
// streams, and retire until then (see Stats.Retiring). A growth that needs the memory earlier takes it
// back without a driver call and without a wait. Work that those streams have queued then overwrites what
// is appended meanwhile, just as after a SetLen alone. With RangeOptions.Zero, Clip always waits.
//
// Memory registered with another library (RDMA, NCCL) keeps its pages until that registration ends; see
// Watch.
func (g *Range) Clip() error {
	if g == nil || g.r == nil || g.r.checkOpen() != nil { // before the lock, so that it does not wait for a Close
		return g.wrap("clip", 0, 0, g.checkOpen())
	}
	r := g.r
	r.closeMu.Lock() // not lenMu: an Append does not wait for the work that a Clip waits for
	defer r.closeMu.Unlock()
	t, was, err := g.retireTail(0)
	if err != nil {
		return g.wrap("clip", g.len.Load(), 0, err)
	}
	if t != nil {
		r.waitForCopies(t.off, t.size)
		// Without UsedBy any work of a device may use the memory: no event covers that.
		if r.users.WaitsFor() != nil || r.zeroed != zeroNone || r.dev.state.parent.hooks.noWait {
			err = r.waitAndUnmap(t, r.waitForWork)
		} else {
			devs, streams := r.usersNow()
			err = r.queueUnmap(t, devs, streams)
		}
		if err != nil {
			g.recountCap(was)
			return g.wrap("clip", g.len.Load(), 0, err)
		}
	}
	if g.hostCopy.Mem != nil {
		_ = g.hostCopy.Free() // what cannot be freed now is freed by the next Clip, or Close
	}
	return nil
}

// clipAhead clips what growth ahead has mapped in [from, end), but for keep bytes beyond Len. No
// work but the stream's has used it.
func (g *Range) clipAhead(from, end, keep uint64, s *Stream) {
	r := g.r
	if !r.closeMu.TryLock() { // a Clip may be waiting for work, and clips it itself
		return
	}
	defer r.closeMu.Unlock()
	if g.cap.Load() != end {
		return
	}
	t, was, err := g.retireTail(max(from, g.len.Load()+keep))
	if err != nil || t == nil {
		return
	}
	r.mu.Lock()
	devs, spans := r.users.Devices(), &r.users.Spans
	inUse := r.copies.UnderWay() || spans.Overlap(t.off, t.off+t.size, spans.Last()) // not waited for
	r.mu.Unlock()
	if inUse {
		r.unretire(t)
	}
	if inUse || r.queueUnmap(t, devs, []*Stream{s}) != nil {
		g.recountCap(was)
	}
}

// retireTail retires the chunks beyond Len and beyond keep, and takes them off Cap, which it returns
// as it was; nil if there are none.
func (g *Range) retireTail(keep uint64) (t *retirement, was uint64, err error) {
	r := g.r
	g.growMu.Lock()
	defer g.growMu.Unlock()
	g.lenMu.Lock() // second: an append that fits does not wait for a growth that the Clip waits for
	defer g.lenMu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	was = g.cap.Load()
	end := r.table.Accessible(was, r.size) // above Cap only after a failure
	off := end
	for i := r.table.Len() - 1; i >= 0 && r.table.At(i).Off >= max(keep, g.len.Load()); i-- {
		off = min(off, r.table.At(i).Off)
	}
	if off == end {
		return nil, was, r.checkOpen()
	}
	// Cap falls first, so that no caller counts on memory that is about to go.
	now := min(was, off)
	g.cap.Store(now)
	if t, err = r.retireSpanLocked(off, end-off); err != nil {
		g.cap.Store(was)
	} else if now < was {
		r.note(history.Clip, now, was-now)
	}
	return t, was, err
}

// recountCap sets Cap to what is accessible, after a Clip that failed, up to what it was before. Below
// Cap all is.
func (g *Range) recountCap(was uint64) {
	g.growMu.Lock()
	defer g.growMu.Unlock()
	g.r.mu.Lock()
	defer g.r.mu.Unlock()
	if g.r.checkOpen() == nil {
		now := g.cap.Load()
		again := min(g.r.table.Accessible(now, g.r.size), was)
		if again > now {
			g.cap.Store(again)
			g.r.note(history.Grow, now, again-now)
		}
	}
}

// retire gives up the whole slots that fill [off, off+size): no use of them begins
// any more. The caller then waits for copies.
func (r *Reservation) retire(off, size uint64) (*retirement, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.retireSpanLocked(off, size)
}

// retireSpanLocked is retire. It needs r.mu.
func (r *Reservation) retireSpanLocked(off, size uint64) (*retirement, error) {
	invariants.Held(&r.mu)
	if err := r.checkOpen(); err != nil {
		return nil, err
	}
	end := off + size
	if size == 0 || end < off || end > r.size {
		return nil, r.outOfBounds(off, size)
	}
	i, j, ok := r.table.Whole(off, end)
	if !ok {
		return nil, fmt.Errorf("%w: [%#x, %#x) is not made of whole chunks", ErrInvalid, off, end)
	}
	if err := r.checkHoldsLocked(off, end, nil); err != nil {
		return nil, err
	}
	// Checked before the first slot changes, so that on error nothing has changed.
	for _, s := range r.table.Between(i, j) {
		switch s.State {
		case slots.Retiring, slots.Unmapping:
			return nil, fmt.Errorf("%w: %v is retiring", ErrBusy, r.ptr+Ptr(s.Off))
		case slots.Mapped:
			return nil, fmt.Errorf("quarantined: %w", s.Quarantined)
		}
	}
	return r.retireLocked(i, j), nil
}

// retireLocked retires the accessible slots of [i, j). A quarantined slot without
// access stays mapped: only Close and Trim try it again. It needs r.mu.
func (r *Reservation) retireLocked(i, j int) *retirement {
	invariants.Held(&r.mu)
	t := &retirement{}
	var bytes uint64
	for _, s := range r.table.Between(i, j) {
		if s.State != slots.Accessible {
			continue
		}
		if bytes == 0 {
			t.off = s.Off
		}
		t.size = s.Off + s.Size - t.off
		s.State, s.Retired = slots.Retiring, t
		t.left++
		bytes += s.Size
	}
	r.dev.counters.Add(bytes, &r.dev.counters.Retiring, &r.counters.Retiring)
	return t
}

// unretireLocked makes a slot that was given up accessible again. If it was the last one
// of its retirement, that is forgotten, and its fences are appended. It needs r.mu.
func (r *Reservation) unretireLocked(s *slot, fences []order.Fence) []order.Fence {
	invariants.Held(&r.mu)
	t := s.Retired
	s.State, s.Retired = slots.Accessible, nil
	r.dev.counters.Sub(s.Size, &r.dev.counters.Retiring, &r.counters.Retiring)
	if t.left--; t.left > 0 || t.sweeping {
		return fences
	}
	r.retirements = slices.DeleteFunc(r.retirements, func(e *retirement) bool { return e == t })
	return append(fences, t.fences...)
}

// unretire makes accessible again what is left of a retirement, which is not left to the
// device's goroutine.
func (r *Reservation) unretire(t *retirement) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.table.In(t.off, t.off+t.size) {
		if s.Retired == t {
			r.unretireLocked(s, nil)
		}
	}
}

// waitAndUnmap calls wait, which waits for the work that may use a retirement's memory, and
// unmaps it. If either fails it makes the memory accessible again.
func (r *Reservation) waitAndUnmap(t *retirement, wait func() error) error {
	err := wait()
	if err == nil {
		// What retired earlier in a range lies above t, and the wait covered it too: it is unmapped first.
		err = r.unmapEarlier()
	}
	if err == nil {
		err = r.unmapRetired(t)
	}
	if err != nil {
		r.unretire(t)
	}
	return err
}

// unmapRetired unmaps what is left of a retirement. Its work has ended. If the driver
// refuses it is retiring as before.
func (r *Reservation) unmapRetired(t *retirement) error {
	r.mappingMu.Lock()
	defer r.mappingMu.Unlock()
	return r.unmapRetiredLocked(t)
}

// unmapRetiredLocked is unmapRetired with r.mappingMu held.
func (r *Reservation) unmapRetiredLocked(t *retirement) error {
	invariants.Held(&r.mappingMu)
	// First it is claimed: from here on no growth takes it back. Growth takes from the
	// front only, so what is left is one run.
	var i, j int
	var size uint64
	r.mu.Lock()
	for k, s := range r.table.In(t.off, t.off+t.size) {
		if s.Retired != t {
			continue
		}
		if size == 0 {
			i = k
		}
		j = k + 1
		size += s.Size
		s.State = slots.Unmapping
	}
	r.mu.Unlock()
	if size == 0 {
		return nil
	}
	err := r.unmapSlotsLocked(i, j)
	r.mu.Lock()
	if err != nil {
		for _, s := range r.table.Between(i, j) {
			s.State = slots.Retiring
		}
		r.mu.Unlock()
		return err
	}
	removed := r.removeSlotsLocked(i, j, nil)
	r.notify()
	r.mu.Unlock()
	bank.ReleaseAll(removed) //nolint:errcheck // the addresses are free; what the driver refuses is counted as quarantined
	return nil
}

// queueUnmap leaves a retirement to the device's goroutine. It records events after the work
// that may use the memory: of the library's own streams on devs, and of streams. The
// goroutine unmaps the memory once they are done. If events cannot cover all of that work,
// queueUnmap waits for it and unmaps at once. If it fails it makes the memory accessible
// again.
func (r *Reservation) queueUnmap(t *retirement, devs []*deviceState, streams []*Stream) error {
	fences, enough, err := recordFences(r.dev.state, devs, streams)
	if err != nil {
		r.unretire(t)
		return err
	}
	if !enough {
		return r.waitAndUnmap(t, func() error { return waitStreams(r.dev.state, devs, streams) })
	}
	r.mu.Lock()
	queued := t.left > 0 // else a growth was faster
	if queued {
		t.fences = fences
		r.retirements = append(r.retirements, t)
		r.dev.mu.Lock()
		r.dev.retiring[r] = struct{}{}
		r.dev.startWorkerLocked()
		r.dev.mu.Unlock()
	}
	r.mu.Unlock()
	if !queued {
		freeFences(fences)
	}
	return nil
}

// unmapFinishedLocked unmaps the retirements whose work has ended, in their order: so there is never
// a hole between a range's capacity and the end of its retiring memory. done reports whether the work before
// a fence has ended: fenceDone, or hasEnded if the caller has waited for all of it. If acquire
// does not lock r.mappingMu, the rest is left for the next time. What fails is still retiring: a growth can take
// it back, and Close releases it. It needs r.sweepMu.
func (r *Reservation) unmapFinishedLocked(done func(*order.Fence) (bool, error), acquire func(*lock.Mutex) bool) (progress bool, failed error) {
	invariants.Held(&r.sweepMu)
	for {
		// Take the oldest retirement. Without any, the device's goroutine has nothing to do here.
		r.mu.Lock()
		if len(r.retirements) == 0 {
			r.dev.mu.Lock()
			delete(r.dev.retiring, r)
			r.dev.mu.Unlock()
			r.mu.Unlock()
			return progress, nil
		}
		t := r.retirements[0]
		t.sweeping = true // its fences are this goroutine's until it is false again
		r.mu.Unlock()

		// Has the work behind all its fences ended? Without r.mu, since the driver is called. A fence
		// that is done is freed at once, so that the next look begins with the one after it.
		finished, err := true, error(nil)
		for len(t.fences) > 0 && finished && err == nil {
			if finished, err = done(&t.fences[0]); finished && err == nil {
				t.fences[0].Free()
				t.fences = t.fences[1:]
			}
		}
		// If so, unmap it. If a lock is taken or the driver refuses, it stays the first in the queue.
		if finished = finished && err == nil && acquire(&r.mappingMu); finished {
			err = r.unmapRetiredLocked(t)
			r.mappingMu.Unlock()
			finished = err == nil
		}

		// Take it out of the queue. A growth may have taken all of it back meanwhile, and has left its
		// fences to us.
		r.mu.Lock()
		t.sweeping = false
		removed := finished || t.left == 0
		if removed {
			r.retirements = slices.Delete(r.retirements, 0, 1)
		}
		r.mu.Unlock()
		if removed && len(t.fences) > 0 {
			freeFences(t.fences)
		}
		if !finished {
			return progress, err
		}
		progress = true
	}
}

// hasEnded is fenceDone where the caller has waited for the work.
func hasEnded(*order.Fence) (bool, error) { return true, nil }

// fenceDone reports whether the work before a fence has ended. A fence that cannot tell, since its
// event is part of another library's capture, or none could be recorded, is replaced by one
// that is at the stream's end now.
func fenceDone(f *order.Fence) (bool, error) {
	done, err := f.Done()
	if err == nil {
		return done, nil
	}
	var again order.Fence
	var failed error
	if s, ok := f.Of().(*Stream); ok {
		again, failed = s.fence()
	} else {
		again, failed = f.On().QueueFence(f.On().CopyStream())
	}
	if failed != nil {
		return false, err
	}
	f.Free()
	*f = again
	return false, nil
}

// unmapEarlier unmaps what r has left to the device's goroutine. The caller has waited
// for its work.
func (r *Reservation) unmapEarlier() error {
	if err := r.dev.state.syncFills(); err != nil {
		return err
	}
	r.sweepMu.Lock()
	defer r.sweepMu.Unlock()
	_, err := r.unmapFinishedLocked(hasEnded, waitForLock)
	return err
}

// waitForLock is like TryLock, and waits.
func waitForLock(m *lock.Mutex) bool {
	m.Lock()
	return true
}

// sweepRetired unmaps what has retired and is not in use any more, and reports whether there was
// any. It leaves out what acquire does not lock: waitForLock locks all, (*lock.Mutex).TryLock what no
// other call has locked.
func sweepRetired(d *Device, acquire func(*lock.Mutex) bool) (progress bool, failed error) {
	d.mu.Lock()
	all := slices.Collect(maps.Keys(d.retiring))
	d.mu.Unlock()
	for _, r := range all {
		if !acquire(&r.sweepMu) {
			continue
		}
		some, err := r.unmapFinishedLocked(fenceDone, acquire)
		r.sweepMu.Unlock()
		progress = progress || some
		if err != nil {
			failed = errtext.Join(failed, "and", err)
		}
	}
	return progress, failed
}

// unmapRunsLocked unmaps the slots that match, run by run, and releases the memory that
// was there. A run that the driver does not unmap is quarantined, and failed says why;
// refused is the error for memory that it did not take back, which is counted as
// quarantined. It needs r.mappingMu.
func (r *Reservation) unmapRunsLocked(match func(*slot) bool) (refused, failed error) {
	invariants.Held(&r.mappingMu)
	var removed []*memory
	// From the end, so that taking slots out leaves those to come alone.
	for j := r.table.Len(); j > 0; {
		i := j - 1
		r.mu.Lock() // which slots there are needs mappingMu; their states change with r.mu alone
		if !match(r.table.At(i)) {
			r.mu.Unlock()
			j = i
			continue
		}
		for i > 0 && match(r.table.At(i-1)) && r.table.At(i-1).End() == r.table.At(i).Off {
			i--
		}
		r.mu.Unlock()
		err := r.unmapSlotsLocked(i, j)
		r.mu.Lock()
		if err == nil {
			removed = r.removeSlotsLocked(i, j, removed)
		} else {
			failed = errtext.Join(failed, "and", err)
			for _, s := range r.table.Between(i, j) {
				r.quarantineLocked(s, err)
			}
		}
		r.mu.Unlock()
		j = i
	}
	r.mu.Lock()
	r.notify()
	r.mu.Unlock()
	return bank.ReleaseAll(removed), failed
}
