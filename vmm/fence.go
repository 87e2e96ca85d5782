package vmm

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// Use names the streams that work on this memory. It is a promise: from the
// first call on, unmapping waits for these streams and the library's own only,
// instead of for whole devices. Streams of other contexts and other libraries
// count too; see Device.WrapStream. Closing a stream takes it off the list.
func (r *Reservation) Use(streams ...*Stream) error {
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

// users is who may be using the memory: the ports with access and, after Use,
// the named streams, which then stand for all work but the library's own.
func (r *Reservation) users(ports []*port, streams []*Stream) ([]*port, []*Stream, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	ports = append(ports, r.strays...)
	for _, g := range r.grants {
		if !slices.Contains(ports, g.dev.port) {
			ports = append(ports, g.dev.port)
		}
	}
	for s := range r.named {
		streams = append(streams, s)
	}
	return ports, streams, r.promised
}

// fence waits for all work that may use the memory: of every device with
// access, or, after Use, of the named streams and the library's own. It begins
// no wait that would destroy a capture it can see.
func (r *Reservation) fence() error {
	if r.dev.port.sys.noFence {
		return nil
	}
	var portBuf [8]*port
	var streamBuf [16]*Stream
	ports, streams, promised := r.users(portBuf[:0], streamBuf[:0])
	if promised {
		return waitStreams(r.dev.port, ports, streams)
	}
	return waitDevices(r.dev.port, ports)
}

// behind records an event behind all work that may use the memory. It answers
// ok only where events are enough to know when that has ended: after Use, and
// not for streams of other contexts, which take none of ours, nor for copies of
// our own that could not be waited for.
func (r *Reservation) behind() (marks []mark, ok bool, failed error) {
	var portBuf [8]*port
	var streamBuf [16]*Stream
	ports, streams, promised := r.users(portBuf[:0], streamBuf[:0])
	if !promised || r.dev.port.sys.noFence {
		return nil, promised, nil
	}
	for _, s := range streams {
		if err := s.notCapturing(); err != nil {
			return nil, false, err
		}
	}
	note := func(p *port, m mark, err error) {
		switch {
		case err == nil && m.e != 0:
			marks = append(marks, m)
		case err != nil && !(lost(err) && p != r.dev.port):
			failed = cmp.Or(failed, fmt.Errorf("wait for device %d: %w", p.n, err))
		}
	}
	ok = true
	for _, s := range streams {
		m, err := s.mark()
		if s.foreign(err) {
			ok = false
			continue
		}
		note(s.dev.port, m, err)
	}
	for _, p := range ports {
		if raw := p.raw.Load(); raw != nil {
			e, err := p.mark(raw, raw.Own())
			note(p, mark{p, raw, e}, err)
			ok = ok && p.stage.adrift.Load() == 0
		}
	}
	if failed != nil || !ok {
		t := retirement{marks: marks}
		t.recycle()
		return nil, false, failed
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
		if raw := p.raw.Load(); raw != nil {
			e, err := p.mark(raw, raw.Own())
			if err == nil {
				err = p.settle(raw, e)
			}
			w.note(owner, p, err)
			w.note(owner, p, p.stage.awaitAdrift(raw))
		}
	}
	return w.err
}

// waited is what came of several waits. All of them are begun, whatever the
// others answer: a device that is not waited for would be lost by the unmap.
// A peer that is lost runs nothing any more, so it counts as waited for; that
// the owner is lost is told last.
type waited struct{ err error }

func (w *waited) note(owner, p *port, err error) {
	switch {
	case err == nil, p != owner && errors.Is(err, ErrDeviceLost):
	case w.err == nil, errors.Is(w.err, ErrDeviceLost):
		w.err = fmt.Errorf("wait for device %d: %w", p.n, err)
	}
}

// notCapturing is ErrCapturing if a stream that is known here is being captured.
func (p *port) notCapturing() error {
	var buf [16]*Stream
	for _, s := range p.known(buf[:0]) {
		if err := s.notCapturing(); err != nil {
			return err
		}
	}
	return nil
}
