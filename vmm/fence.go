package vmm

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// UsedBy names the streams that work on this memory. It is a promise: from the
// first call on, unmapping waits for these streams and the library's own only,
// instead of for whole devices. Streams of other contexts and other libraries
// count too; see Device.WrapStream. Closing a stream takes it off the list.
// From then on this package's own calls on a stream that is not on it, Stream.Copy
// for one, answer ErrInvalid where they would touch the memory.
func (r *Reservation) UsedBy(streams ...*Stream) error {
	return r.fail("use streams", 0, 0, r.promise(streams))
}

func (r *Reservation) promise(streams []*Stream) error {
	if r == nil || len(streams) == 0 {
		return fmt.Errorf("%w: no reservation, or no stream", ErrInvalid)
	}
	var unusable error
	for _, s := range streams {
		if err := s.usable(r.dev.port.sys); err != nil && unusable == nil {
			unusable = err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := cmp.Or(r.live(), unusable); err != nil {
		return err
	}
	r.promised = true
	r.setWaitsFor()
	if r.named == nil {
		r.named = map[*Stream]struct{}{}
	}
	for _, s := range streams {
		if s.remember(r) { // else its work has been waited for
			r.named[s] = struct{}{}
		}
	}
	return nil
}

// usesNone is UsedBy with no stream: only the library's own are waited for.
func (r *Reservation) usesNone() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.promised = true
	r.setWaitsFor()
}

// setWaitsFor keeps the devices that a fence waits for, so that it takes no lock
// to find them: none after UsedBy. It needs r.mu, and comes after each change of what
// it looks at.
func (r *Reservation) setWaitsFor() {
	if r.promised {
		r.waitsFor.Store(nil)
		return
	}
	ports := r.mayAccess(nil)
	r.waitsFor.Store(&ports)
}

// mayAccess appends the ports whose work may use the memory. It needs r.mu.
func (r *Reservation) mayAccess(ports []*port) []*port {
	ports = append(ports, r.strays...)
	for _, g := range r.grants {
		if !slices.Contains(ports, g.dev.port) {
			ports = append(ports, g.dev.port)
		}
	}
	return ports
}

// users is who may be using the memory after UsedBy: the library's own streams on
// the devices with access, and the streams that were named or on which an AppendOn
// may not have run yet, which stand for all other work.
func (r *Reservation) users(ports []*port, streams []*Stream) ([]*port, []*Stream) {
	r.mu.Lock()
	defer r.mu.Unlock()
	ports = r.mayAccess(ports)
	for s := range r.named {
		streams = append(streams, s)
	}
	for s := range r.owed {
		if _, named := r.named[s]; !named {
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
	if r.dev.port.sys.noFence {
		return nil
	}
	if ports := r.waitsFor.Load(); ports != nil {
		return waitDevices(r.dev.port, *ports)
	}
	var portBuf [8]*port
	var streamBuf [16]*Stream
	ports, streams := r.users(portBuf[:0], streamBuf[:0])
	return waitStreams(r.dev.port, ports, streams)
}

// behind records an event behind all work that may use the memory. It answers
// ok only where events are enough to know when that has ended: after UsedBy, and
// not for streams that take none of ours, as those of other contexts, nor for
// copies of our own that could not be waited for.
func (r *Reservation) behind() (marks []mark, ok bool, failed error) {
	if promised := r.waitsFor.Load() == nil; !promised || r.dev.port.sys.noFence {
		return nil, promised, nil
	}
	var portBuf [8]*port
	var streamBuf [16]*Stream
	ports, streams := r.users(portBuf[:0], streamBuf[:0])
	for _, s := range streams {
		if err := s.notCapturing(); err != nil {
			return nil, false, err
		}
	}
	ok = true
	note := func(p *port, m mark, err error) {
		switch {
		case err == nil && m.on != nil:
			marks = append(marks, m)
		case err != nil && !(lost(err) && p != r.dev.port):
			ok = false
		}
	}
	for _, s := range streams {
		m, err := s.mark()
		note(s.dev.port, m, err)
	}
	for _, p := range ports {
		if o := p.open.Load(); o != nil {
			m, err := o.mark(o.CopyStream())
			note(p, m, err)
			ok = ok && o.stage.adrift.Load() == 0
		}
	}
	if !ok {
		freeAll(marks)
		return nil, false, nil
	}
	return marks, true, nil
}

// waitDevices waits for the whole context of each port, ours or anyone's.
func waitDevices(owner *port, ports []*port) error {
	for _, p := range ports {
		if err := p.notCapturing(); err != nil {
			return err
		}
	}
	var w waited
	for _, p := range ports {
		w.note(owner, p, p.sys.drv.SyncIfActive(p.n))
	}
	return w.err
}

// waitStreams waits for the streams and for each port's own.
func waitStreams(owner *port, ports []*port, streams []*Stream) error {
	for _, s := range streams {
		if err := s.notCapturing(); err != nil {
			return err
		}
	}
	var w waited
	for _, s := range streams {
		w.note(owner, s.dev.port, s.await())
	}
	for _, p := range ports {
		if o := p.open.Load(); o != nil {
			w.note(owner, p, o.awaitOwn())
		}
	}
	return w.err
}

// awaitOwn waits for the library's own streams on the device.
func (o *openDevice) awaitOwn() error {
	m, err := o.mark(o.CopyStream())
	if err == nil {
		err = m.wait()
	}
	if err != nil && !lost(err) && o.hold() { // nor can an event tell
		err = o.SyncStream(o.CopyStream())
		o.letGo()
	}
	if err == nil && o.hold() {
		err = o.stage.awaitAdrift()
		o.letGo()
	}
	return err
}

// waited is what came of several waits. All of them are begun, whatever the
// others answer: a device that is not waited for would be lost by the unmap.
// A peer that is lost runs nothing any more, so it counts as waited for. The
// owner's ErrDeviceLost is reported only if nothing else failed.
type waited struct{ err error }

func (w *waited) note(owner, p *port, err error) {
	switch {
	case err == nil, p != owner && errors.Is(err, ErrDeviceLost):
	case w.err == nil, errors.Is(w.err, ErrDeviceLost):
		w.err = fmt.Errorf("wait for device %d: %w", p.n, err)
	}
}
