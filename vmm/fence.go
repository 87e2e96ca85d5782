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
// for one, answer ErrInvalid where they would touch the memory.
func (r *Reservation) UsedBy(streams ...*Stream) error {
	return r.fail("use streams", 0, 0, r.nameStreams(streams))
}

func (r *Reservation) nameStreams(streams []*Stream) error {
	if r == nil || len(streams) == 0 {
		return fmt.Errorf("%w: no reservation, or no stream", ErrInvalid)
	}
	var unusable error
	for _, s := range streams {
		if err := s.usable(r.dev.state.parent); err != nil && unusable == nil {
			unusable = err
		}
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
		if s.addUser(r) { // else its work has been waited for
			r.namedStreams[s] = struct{}{}
		}
	}
	return nil
}

// usesNone is UsedBy with no stream: only the library's own are waited for.
func (r *Reservation) waitForOwnStreams() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.usersNamed = true
	r.setWaitsForLocked()
}

// setWaitsFor keeps the devices that a fence waits for, so that it takes no lock
// to find them: none after UsedBy. It needs r.mu, and comes after each change of what
// it looks at.
func (r *Reservation) setWaitsForLocked() {
	if r.usersNamed {
		r.waitsFor.Store(nil)
		return
	}
	ports := r.mayAccessLocked(nil)
	r.waitsFor.Store(&ports)
}

// mayAccess appends the ports whose work may use the memory. It needs r.mu.
func (r *Reservation) mayAccessLocked(ports []*deviceState) []*deviceState {
	ports = append(ports, r.accessInDoubt...)
	for _, g := range r.grants {
		if !slices.Contains(ports, g.dev.state) {
			ports = append(ports, g.dev.state)
		}
	}
	return ports
}

// users is who may be using the memory after UsedBy: the library's own streams on
// the devices with access, and the streams that were named or on which an AppendOn
// may not have run yet, which stand for all other work.
func (r *Reservation) usersNow(ports []*deviceState, streams []*Stream) ([]*deviceState, []*Stream) {
	r.mu.Lock()
	defer r.mu.Unlock()
	ports = r.mayAccessLocked(ports)
	for s := range r.namedStreams {
		streams = append(streams, s)
	}
	for s := range r.pendingAppends {
		if _, named := r.namedStreams[s]; !named {
			streams = append(streams, s)
		}
	}
	return ports, streams
}

// fence waits for all work that may use the memory: of every device with
// access, or, after UsedBy, of the named streams and the library's own. It begins
// no wait that would destroy a capture it can see. A device that closes
// meanwhile has waited for its work itself.
func (r *Reservation) fence() error {
	if r.dev.state.parent.noFence {
		return nil
	}
	if ports := r.waitsFor.Load(); ports != nil {
		return waitDevices(r.dev.state, *ports)
	}
	var portBuf [8]*deviceState
	var streamBuf [16]*Stream
	ports, streams := r.usersNow(portBuf[:0], streamBuf[:0])
	return waitStreams(r.dev.state, ports, streams)
}

// behind records an event behind all work that may use the memory. It answers
// ok only where events are enough to know when that has ended: after UsedBy, and
// not for streams that take none of ours, as those of other contexts, nor for
// copies of our own that could not be waited for.
func (r *Reservation) fenceEvents() (marks []fenceEvent, ok bool, failed error) {
	if promised := r.waitsFor.Load() == nil; !promised || r.dev.state.parent.noFence {
		return nil, promised, nil
	}
	var portBuf [8]*deviceState
	var streamBuf [16]*Stream
	ports, streams := r.usersNow(portBuf[:0], streamBuf[:0])
	for _, s := range streams {
		if err := s.notCapturing(); err != nil {
			return nil, false, err
		}
	}
	ok = true
	note := func(p *deviceState, m fenceEvent, err error) {
		switch {
		case err == nil && m.on != nil:
			marks = append(marks, m)
		case err != nil && !(lost(err) && p != r.dev.state):
			ok = false
		}
	}
	for _, s := range streams {
		m, err := s.recordFence()
		note(s.dev.state, m, err)
	}
	for _, p := range ports {
		if o := p.open.Load(); o != nil {
			m, err := o.recordFence(o.CopyStream())
			note(p, m, err)
			ok = ok && o.stage.orphaned.Load() == 0
		}
	}
	if !ok {
		freeFences(marks)
		return nil, false, nil
	}
	return marks, true, nil
}

// waitDevices waits for the whole context of each port, ours or anyone's.
func waitDevices(owner *deviceState, ports []*deviceState) error {
	for _, p := range ports {
		if err := p.notCapturing(); err != nil {
			return err
		}
	}
	var w waitResult
	for _, p := range ports {
		w.add(owner, p, p.parent.drv.SyncIfActive(p.n))
	}
	return w.err
}

// waitStreams waits for the streams and for each port's own.
func waitStreams(owner *deviceState, ports []*deviceState, streams []*Stream) error {
	for _, s := range streams {
		if err := s.notCapturing(); err != nil {
			return err
		}
	}
	var w waitResult
	for _, s := range streams {
		w.add(owner, s.dev.state, s.sync())
	}
	for _, p := range ports {
		if o := p.open.Load(); o != nil {
			w.add(owner, p, o.syncOwn())
		}
	}
	return w.err
}

// awaitOwn waits for the library's own streams on the device.
func (o *openDevice) syncOwn() error {
	m, err := o.recordFence(o.CopyStream())
	if err == nil {
		err = m.wait()
	}
	if err != nil && !lost(err) && o.retain() { // nor can an event tell
		err = o.SyncStream(o.CopyStream())
		o.release()
	}
	if err == nil && o.retain() {
		err = o.stage.syncOrphaned()
		o.release()
	}
	return err
}

// waited is what came of several waits. All of them are begun, whatever the
// others answer: a device that is not waited for would be lost by the unmap.
// A peer that is lost runs nothing any more, so it counts as waited for. The
// owner's ErrDeviceLost is reported only if nothing else failed.
type waitResult struct{ err error }

func (w *waitResult) add(owner, p *deviceState, err error) {
	switch {
	case err == nil, p != owner && errors.Is(err, ErrDeviceLost):
	case w.err == nil, errors.Is(w.err, ErrDeviceLost):
		w.err = fmt.Errorf("wait for device %d: %w", p.n, err)
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
