package vmm

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
)

// UsedBy names the streams that work on this memory. It is a promise: from the
// first call on, unmapping waits for these streams and the library's own only,
// instead of for whole devices. Streams of other contexts and other libraries
// count too; see Device.WrapStream. Closing a stream takes it off the list.
// From then on this package's own calls on a stream that is not on it, Stream.Copy
// for one, return ErrInvalid if they would touch the memory.
func (r *Reservation) UsedBy(streams ...*Stream) error {
	return r.fail("use streams", 0, 0, r.nameStreams(streams))
}

func (r *Reservation) nameStreams(streams []*Stream) error {
	if r == nil || len(streams) == 0 {
		return fmt.Errorf("%w: no reservation, or no stream", ErrInvalid)
	}
	var unusable error
	for _, s := range streams {
		unusable = cmp.Or(unusable, s.usable(r.dev.state.parent))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := cmp.Or(r.live(), unusable); err != nil {
		return err
	}
	r.usersNamed = true
	r.setWaitsForLocked()
	if r.namedStreams == nil {
		r.namedStreams = map[*Stream]struct{}{}
	}
	for _, s := range streams {
		if s.addUser(r) { // else it has closed, and its work was waited for
			r.namedStreams[s] = struct{}{}
		}
	}
	return nil
}

// setWaitsForLocked keeps the devices that a fence waits for, so that it takes no lock
// to find them: nil after UsedBy. It needs r.mu, and comes after each change of what
// it looks at.
func (r *Reservation) setWaitsForLocked() {
	r.mu.AssertHeld()
	if r.usersNamed {
		r.waitsFor.Store(nil)
		return
	}
	states := r.mayAccessLocked(nil)
	r.waitsFor.Store(&states)
}

// mayAccessLocked appends the devices whose work may use the memory. It needs r.mu.
func (r *Reservation) mayAccessLocked(states []*deviceState) []*deviceState {
	r.mu.AssertHeld()
	states = append(states, r.accessInDoubt...)
	for _, g := range r.grants {
		if !slices.Contains(states, g.dev.state) {
			states = append(states, g.dev.state)
		}
	}
	return states
}

// usersNow is what may be using the memory after UsedBy: the library's own streams on
// the devices with access, and the streams that were named or on which an AppendOn
// may not have run yet, which stand for all other work.
func (r *Reservation) usersNow(states []*deviceState, streams []*Stream) ([]*deviceState, []*Stream) {
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
	return r.mayAccessLocked(states), streams
}

// fence waits for all work that may use the memory: of every device with
// access, or, after UsedBy, of the named streams and the library's own. It begins
// no wait that would destroy a capture it can see. A device that closes
// meanwhile has waited for its work itself.
func (r *Reservation) fence() error {
	if r.dev.state.parent.hooks.noFence {
		return nil
	}
	if states := r.waitsFor.Load(); states != nil {
		return waitDevices(r.dev.state, *states)
	}
	var stateBuf [8]*deviceState
	var streamBuf [16]*Stream
	states, streams := r.usersNow(stateBuf[:0], streamBuf[:0])
	return waitStreams(r.dev.state, states, streams)
}

// recordFences records an event behind the work that the streams, and the library's
// own streams on the devices, have now. enough is false if events cannot tell when
// all of it has ended: for streams that take none of ours, as those of other contexts,
// and for copies of ours that could not be waited for.
func recordFences(owner *deviceState, states []*deviceState, streams []*Stream) (fences []fenceEvent, enough bool, failed error) {
	// All are asked before the first event is recorded, so that a refusal changes nothing.
	for _, s := range streams {
		if err := s.notCapturing(); err != nil {
			return nil, false, err
		}
	}
	enough = true
	add := func(of *deviceState, f fenceEvent, err error) {
		switch {
		case err == nil && f.on != nil:
			fences = append(fences, f)
		case err != nil && !(lost(err) && of != owner): // a peer that is lost runs nothing any more
			enough = false
		}
	}
	for _, s := range streams {
		f, err := s.recordFence()
		add(s.dev.state, f, err)
	}
	for _, of := range states {
		if o := of.open.Load(); o != nil {
			f, err := o.recordFence(o.CopyStream())
			add(of, f, err)
			enough = enough && o.stage.orphaned.Load() == 0
		}
	}
	if !enough {
		freeFences(fences)
		return nil, false, nil
	}
	return fences, true, nil
}

// waitDevices waits for the whole context of each device, whoever queued the work.
func waitDevices(owner *deviceState, states []*deviceState) error {
	for _, of := range states {
		if err := of.notCapturing(); err != nil {
			return err
		}
	}
	var w waitResult
	for _, of := range states {
		w.add(owner, of, of.parent.drv.SyncIfActive(of.n))
	}
	return w.err
}

// waitStreams waits for the streams and for the library's own on each device.
func waitStreams(owner *deviceState, states []*deviceState, streams []*Stream) error {
	for _, s := range streams {
		if err := s.notCapturing(); err != nil {
			return err
		}
	}
	var w waitResult
	for _, s := range streams {
		w.add(owner, s.dev.state, s.sync())
	}
	for _, of := range states {
		if o := of.open.Load(); o != nil {
			w.add(owner, of, o.syncOwn())
		}
	}
	return w.err
}

// syncOwn waits for the library's own streams on the device.
func (o *openDevice) syncOwn() error {
	f, err := o.recordFence(o.CopyStream())
	if err == nil {
		err = f.wait()
	}
	if err != nil && !lost(err) && o.retain() { // an event cannot tell, so the stream has to
		err = o.SyncStream(o.CopyStream())
		o.release()
	}
	if err == nil && o.retain() {
		err = o.stage.syncOrphaned()
		o.release()
	}
	return err
}

// waitResult is what came of several waits. All of them are begun, whatever the
// others return: a device that is not waited for would be lost by the unmap.
// A peer that is lost runs nothing any more, so it counts as waited for. The
// owner's ErrDeviceLost is reported only if nothing else failed.
type waitResult struct{ err error }

func (w *waitResult) add(owner, of *deviceState, err error) {
	switch {
	case err == nil, of != owner && errors.Is(err, ErrDeviceLost):
	case w.err == nil, errors.Is(w.err, ErrDeviceLost):
		w.err = fmt.Errorf("wait for device %d: %w", of.n, err)
	}
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

// wait waits for the copies that began before it, and for no other.
func (c *inFlight) wait() {
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
