package vmm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cuvmm/cuvmm/internal/invariants"
	"github.com/cuvmm/cuvmm/vmm/internal/lock"
	"github.com/cuvmm/cuvmm/vmm/internal/order"
	"github.com/cuvmm/cuvmm/vmm/internal/slots"
)

// UsedBy names the streams that work on this memory. It is a promise: from the
// first call on, unmapping waits for these streams and the library's own only,
// instead of for whole devices. Streams of other contexts and other libraries
// count too; see Device.WrapStream. Closing a stream takes it off the list.
// From then on this package's own calls on a stream that is not on it, Stream.Copy
// for one, return ErrInvalid if they would touch the memory. Streams that UnmapAfter has
// named are waited for as well, until their chunks are unmapped.
func (r *Reservation) UsedBy(streams ...*Stream) error {
	return r.wrap("use streams", 0, 0, r.nameStreams(streams))
}

func (r *Reservation) nameStreams(streams []*Stream) error {
	if r == nil || r.dev == nil || len(streams) == 0 {
		return fmt.Errorf("%w: no reservation, or no stream", ErrInvalid)
	}
	var unusable error
	for _, s := range streams {
		unusable = cmp.Or(unusable, s.checkUsable(r.dev.state.parent))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := cmp.Or(r.checkOpen(), unusable); err != nil {
		return err
	}
	if r.namedStreams == nil {
		r.namedStreams = map[*Stream]struct{}{}
	}
	r.setWaitsForLocked()
	r.namings.Add(1)
	for _, s := range streams {
		if s.addWaitedForBy(r) { // else it has closed, and its work was waited for
			r.namedStreams[s] = struct{}{}
		}
	}
	return nil
}

// setWaitsForLocked computes waitsFor anew: the devices that waitForWork waits for, so that
// it takes no lock to find them; nil after UsedBy. It needs r.mu, and is called after each
// change of the grants, of access in doubt and of copiers, and after UsedBy.
func (r *Reservation) setWaitsForLocked() {
	invariants.Held(&r.mu)
	if r.namedStreams != nil {
		r.waitsFor.Store(nil)
		return
	}
	devs := r.mayAccessLocked(nil)
	r.waitsFor.Store(&devs)
}

// mayAccessLocked appends the devices whose work may use the memory. It needs r.mu.
func (r *Reservation) mayAccessLocked(devs []*deviceState) []*deviceState {
	invariants.Held(&r.mu)
	for _, b := range r.bans {
		if b.inDoubt != nil && !slices.Contains(devs, b.deviceState) {
			devs = append(devs, b.deviceState)
		}
	}
	for _, d := range r.copiers {
		if !slices.Contains(devs, d) {
			devs = append(devs, d)
		}
	}
	for _, g := range r.grants {
		if !slices.Contains(devs, g.dev.state) {
			devs = append(devs, g.dev.state)
		}
	}
	return devs
}

// usersNow appends what may be using the memory after UsedBy. The devices are those whose
// work may use the memory: of each, the library's own stream counts. The streams are those
//
//   - that UsedBy has named
//   - on which an AppendOn may not have run yet
//   - that an UnmapAfter still waits for
//
// UsedBy promises that there is no other work.
func (r *Reservation) usersNow(devs []*deviceState, streams []*Stream) ([]*deviceState, []*Stream) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for s := range r.namedStreams {
		streams = append(streams, s)
	}
	for s := range r.pendingAppends {
		if _, named := r.namedStreams[s]; !named {
			streams = append(streams, s)
		}
	}
	for i := 0; !r.inRange && i < r.table.Len(); i++ { // a range has no UnmapAfter
		if t := r.table.At(i).Retired; t != nil {
			for _, s := range t.streams {
				if !slices.Contains(streams, s) {
					streams = append(streams, s)
				}
			}
		}
	}
	return r.mayAccessLocked(devs), streams
}

// waitForWork waits for all work that may use the memory: of every device with
// access, or, after UsedBy, of the named streams and the library's own. It begins
// no wait that would destroy a capture it can see. A device that closes
// meanwhile has waited for its work itself.
func (r *Reservation) waitForWork() error {
	if r.dev.state.parent.hooks.noWait {
		return nil
	}
	if devs := r.waitsFor.Load(); devs != nil {
		return waitDevices(r.dev.state, *devs)
	}
	var stateBuf [8]*deviceState
	var streamBuf [16]*Stream
	devs, streams := r.usersNow(stateBuf[:0], streamBuf[:0])
	return waitStreams(r.dev.state, devs, streams)
}

// recordFences records an event after the work that the streams, and the library's
// own streams on the devices, have now. Of a stream in a capture that BeginCapture has begun
// it is recorded at the capture's end. enough is false if events cannot tell when
// all of it has ended: for streams that take none of ours, as those of other contexts,
// and for copies of ours that could not be waited for.
func recordFences(owner *deviceState, devs []*deviceState, streams []*Stream) (fences []order.Fence, enough bool, failed error) {
	enough = true
	add := func(dev *deviceState, f order.Fence, err error) {
		switch {
		case err == nil && !f.IsZero():
			fences = append(fences, f)
		case errors.Is(err, ErrCapturing): // by another library
			failed = err
		case err != nil && !(lost(err) && dev != owner): // a peer that is lost runs nothing any more
			enough = false
		}
	}
	for i := 0; i < len(streams) && failed == nil; i++ {
		f, err := streams[i].lateFence()
		add(streams[i].dev.state, f, err)
	}
	for i := 0; i < len(devs) && failed == nil; i++ {
		dev := devs[i]
		if o := dev.openDevice.Load(); o != nil {
			f, err := o.QueueFence(o.CopyStream())
			add(dev, f, err)
			enough = enough && o.stage.maybeBusy.Load() == 0
		}
	}
	if failed != nil || !enough {
		freeFences(fences)
		return nil, false, failed
	}
	return fences, true, nil
}

// waitDevices waits for the whole context of each device, whoever queued the work.
func waitDevices(owner *deviceState, devs []*deviceState) error {
	lock.Waits()
	var w waitResult
	var buf [8]contextWait
	waits := buf[:0]
	// All begin before the first one waits: one that a capture refuses waits for nothing.
	for _, dev := range devs {
		one, err := dev.beginWait()
		if errors.Is(err, ErrCapturing) {
			for _, begun := range waits {
				begun.f.Free()
			}
			return fmt.Errorf("wait for device %d: %w", dev.n, err)
		}
		if errors.Is(err, ErrContextReset) { // another library may have made the context anew
			one, err = contextWait{dev: dev, theirs: true}, nil
		}
		if err == nil {
			waits = append(waits, one)
		}
		w.add(owner, dev, err)
	}
	for _, one := range waits {
		w.add(owner, one.dev, one.wait())
	}
	return w.err
}

// waitStreams waits for the streams and for the library's own on each device.
func waitStreams(owner *deviceState, devs []*deviceState, streams []*Stream) error {
	lock.Waits()
	var w waitResult
	fences := make([]order.Fence, len(streams))
	errs := make([]error, len(streams))
	for i, s := range streams {
		if fences[i], errs[i] = s.fence(); errors.Is(errs[i], ErrCapturing) {
			freeFences(fences[:i])
			return errs[i]
		}
	}
	for i, s := range streams {
		w.add(owner, s.dev.state, s.syncFence(fences[i], errs[i]))
	}
	for _, dev := range devs {
		if o := dev.openDevice.Load(); o != nil {
			w.add(owner, dev, o.syncOwn())
		}
	}
	return w.err
}

// waitResult is what came of several waits. All of them are begun, whatever the
// others return: a device that is not waited for would be lost by the unmap.
// A peer that is lost runs nothing any more, so it counts as waited for. The
// owner's ErrDeviceLost is reported only if nothing else failed.
type waitResult struct{ err error }

func (w *waitResult) add(owner, dev *deviceState, err error) {
	switch {
	case err == nil, dev != owner && errors.Is(err, ErrDeviceLost):
	case w.err == nil, errors.Is(w.err, ErrDeviceLost):
		w.err = fmt.Errorf("wait for device %d: %w", dev.n, err)
	}
}

// appendSpan is the AppendOns of one stream that may not have run yet, by number.
type appendSpan struct{ first, last uint64 }

// noteAppendLocked notes an AppendOn on s. It needs r.mu.
func (r *Reservation) noteAppendLocked(s *Stream) {
	invariants.Held(&r.mu)
	r.appendSeq++
	span, ok := r.pendingAppends[s]
	if !ok {
		if !s.addWaitedForBy(r) {
			return // closed meanwhile, its work waited for
		}
		span.first = r.appendSeq
		if r.pendingAppends == nil {
			r.pendingAppends = map[*Stream]appendSpan{}
		}
	}
	span.last = r.appendSeq
	r.pendingAppends[s] = span
}

// appendsDone notes that the AppendOns on s up to the given one have run.
func (r *Reservation) appendsDone(s *Stream, upTo uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	span, ok := r.pendingAppends[s]
	switch {
	case !ok:
	case span.last > upTo:
		r.pendingAppends[s] = appendSpan{max(span.first, upTo+1), span.last}
	default:
		delete(r.pendingAppends, s)
		if _, named := r.namedStreams[s]; !named {
			s.removeWaitedForBy(r)
		}
	}
}

// appendTail is the end of a stream with AppendOns, of which the last is numbered upTo,
// that may not have run yet.
type appendTail struct {
	s    *Stream
	upTo uint64
	f    order.Fence
	err  error
}

// waitAppends waits until the AppendOns up to the one numbered seq have run.
func (r *Reservation) waitAppends(seq uint64) error {
	lock.Waits()
	var tails []appendTail
	r.mu.Lock()
	for s, span := range r.pendingAppends {
		if span.first <= seq {
			tails = append(tails, appendTail{s: s, upTo: span.last})
		}
	}
	r.mu.Unlock()
	// All events are recorded before the first wait, so that appends which come later are not
	// waited for.
	for i := range tails {
		t := &tails[i]
		if t.f, t.err = t.s.recordEnd(); errors.Is(t.err, ErrCapturing) {
			for _, recorded := range tails[:i] {
				recorded.f.Free()
			}
			return fmt.Errorf("wait for a stream of %v: %w", t.s.dev, t.err)
		}
	}
	var failed error
	for _, t := range tails {
		err := t.s.syncFence(t.f, t.err)
		if err == nil {
			r.appendsDone(t.s, t.upTo)
		} else if failed == nil {
			failed = fmt.Errorf("wait for a stream of %v: %w", t.s.dev, err)
		}
	}
	return failed
}

// inFlight counts the library's own copies of a reservation's memory that are
// under way. Code that takes memory away marks it first and then waits for the copies
// that began before. Copies that begin later see the mark. So a copy is waited for
// only by code that takes away its memory. Its zero value is ready.
//
// There are two counts, and the epoch says which of them counts what begins
// now. A wait changes the epoch and waits until the other count is 0.
type inFlight struct {
	epoch   atomic.Uint64
	active  [2]atomic.Int64
	waiting atomic.Bool

	mu    sync.Mutex    // one wait at a time
	ended chan struct{} // wakes it; made by the first; guarded by mu, read while waiting is set
}

// begin counts a copy; the caller passes what it returns to end.
func (c *inFlight) begin() (epoch uint64) {
	for {
		e := c.epoch.Load()
		c.active[e&1].Add(1)
		if c.epoch.Load() == e {
			return e
		}
		c.end(e) // a wait came between, and may not have seen it
	}
}

// end undoes begin.
func (c *inFlight) end(epoch uint64) {
	if c.active[epoch&1].Add(-1) == 0 && c.waiting.Load() {
		select {
		case c.ended <- struct{}{}:
		default:
		}
	}
}

// underWay reports whether there are any.
func (c *inFlight) underWay() bool { return c.active[0].Load() != 0 || c.active[1].Load() != 0 }

// wait waits for the copies that began before it, and for no other.
func (c *inFlight) wait() {
	lock.Waits()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended == nil {
		c.ended = make(chan struct{}, 1)
	}
	c.waiting.Store(true)
	defer c.waiting.Store(false)
	before := c.epoch.Add(1) - 1
	for c.active[before&1].Load() > 0 {
		<-c.ended
	}
}

// Close waits for work that may use the memory, unmaps it and frees the addresses. A held
// reservation, and one inside a Range, returns ErrBusy and stays as it is; so does, with
// ErrCapturing, one that a captured stream may use, of which other calls may return ErrClosed until
// that is known. If the device is lost, everything is given back all the same and the error
// returned. On any other failure nothing but Close works any more; call it again. Twice is fine,
// and so is a nil Reservation.
func (r *Reservation) Close() error { return r.CloseContext(context.Background()) }

// CloseContext is Close that stops waiting when ctx is done and returns its
// error. The close goes on by itself; Device.Close waits for it. There is one at a time: another
// CloseContext waits for it first.
func (r *Reservation) CloseContext(ctx context.Context) error {
	if r == nil || r.dev == nil {
		return nil
	}
	if err := r.checkNotOwnedByRange(); err != nil {
		return r.wrap("close", 0, r.size, err)
	}
	return r.closeContext(ctx, func() error { return r.close(new(sync.Mutex)) })
}

// closeContext runs closeAll, of the reservation or of its range, for CloseContext.
func (r *Reservation) closeContext(ctx context.Context, closeAll func() error) error {
	if ctx == nil {
		return r.wrap("close", 0, r.size, errNoContext)
	}
	detached := ctx.Done() != nil
	if detached {
		select {
		case r.closeSlot <- struct{}{}:
		default: // another close is running
			select {
			case r.closeSlot <- struct{}{}:
			case <-ctx.Done():
				return r.wrap("close", 0, r.size, ctx.Err())
			}
		}
	}
	r.closesRunning.Add(1)
	return r.wrap("close", 0, r.size, r.dev.runDetached(ctx, func() error {
		err := closeAll()
		r.closesRunning.Add(-1)
		if detached {
			<-r.closeSlot
		}
		return err
	}))
}

var errNoContext = fmt.Errorf("%w: no context", ErrInvalid)

// close closes a user's reservation, or the one inside a range, whose lenMu it takes so that
// no Append is half done.
func (r *Reservation) close(lenMu sync.Locker) error {
	r.closeMu.Lock()
	defer r.closeMu.Unlock()
	r.grantMu.Lock()
	defer r.grantMu.Unlock()
	lenMu.Lock()
	t, was, err := r.beginClose()
	lenMu.Unlock()
	if err != nil || t == nil {
		return err
	}
	// The library's own copies first: they may still queue work, which is waited for next.
	r.waitForCopies(0, r.size)
	r.mu.Lock()
	used := r.table.Any(func(s *slot) bool { return s.State != slots.Mapped })
	r.mu.Unlock()
	switch {
	// No copy is under way any more, so what a capture uses is known.
	case r.dev.state.parent.captures.uses(r):
		err = fmt.Errorf("%w: its graph uses the memory", ErrCapturing)
	case used: // else there is nothing that work could be using
		err = r.waitForWork()
	}
	switch {
	// Only a capture opens it again: it ends, and the memory is as usable as before. If the
	// wait itself failed, the device may be beyond use: then nothing but Close works.
	case errors.Is(err, ErrCapturing):
		r.unretire(t)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.phase.Store(was)
	case err == nil || errors.Is(err, ErrDeviceLost):
		err = joinErr(err, "and giving it back", r.teardown())
	}
	return err
}

// beginClose lets nothing in any more and retires everything; nil if it is closed
// already. The caller then waits for copies.
func (r *Reservation) beginClose() (t *retirement, was uint32, err error) {
	r.mappingMu.Lock() // a growth that is under way ends first
	defer r.mappingMu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	was = r.phase.Load()
	if was == phaseClosed {
		return nil, was, nil
	}
	if err := r.checkAllHoldsLocked(); err != nil {
		return nil, was, err
	}
	r.phase.Store(phaseClosing)
	return r.retireLocked(0, r.table.Len()), was, nil
}

// teardown gives back whatever the driver will take. What it refuses stays
// quarantined, and the reservation closing.
func (r *Reservation) teardown() error {
	r.mappingMu.Lock()
	refused, failed := r.unmapRunsLocked(func(*slot) bool { return true })
	left := r.table.Len()
	r.mappingMu.Unlock()
	failed = joinErr(failed, "and", refused)
	if left == 0 {
		failed = joinErr(failed, "and", r.finishClose())
	}
	return failed
}

// finishClose gives the addresses back; with them the reservation is closed.
func (r *Reservation) finishClose() error {
	_ = r.unmapEarlier() // nothing is mapped any more: it only frees their events
	// Out of the look-up first: the driver may hand the addresses out again at once.
	all := r.dev.state.parent
	all.remove(r)
	if err := r.dev.drv.Free(r.ptr, r.size); err != nil {
		all.add(r)
		return err
	}
	giveAddresses(r.size)
	r.dev.counters.sub(r.size, &r.dev.counters.reserved)
	r.mu.Lock()
	r.phase.Store(phaseClosed)
	r.notify()
	grants, named, pending := r.grants[1:], r.namedStreams, r.pendingAppends
	r.namedStreams, r.pendingAppends = nil, nil
	r.mu.Unlock()
	// The devices and streams last: until here they stay open for the memory.
	for _, g := range grants {
		g.dev.untrack(grantKey{r})
	}
	for s := range named {
		s.removeWaitedForBy(r)
	}
	for s := range pending {
		s.removeWaitedForBy(r)
	}
	r.dev.untrack(r)
	return nil
}

// addWaitedForBy notes that r waits for the stream; false if it is closed.
func (s *Stream) addWaitedForBy(r *Reservation) bool {
	s.dev.mu.Lock()
	defer s.dev.mu.Unlock()
	if s.waitedForBy == nil {
		return false
	}
	s.waitedForBy[r] = struct{}{}
	return true
}

// removeWaitedForBy undoes addWaitedForBy.
func (s *Stream) removeWaitedForBy(r *Reservation) {
	s.dev.mu.Lock()
	defer s.dev.mu.Unlock()
	delete(s.waitedForBy, r)
}
