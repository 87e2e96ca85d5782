package vmm

import (
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
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.live(); err != nil {
		return err
	}
	for _, s := range streams {
		if err := s.usable(r.dev.port.sys); err != nil {
			return err
		}
	}
	r.promised = true
	if r.named == nil {
		r.named = map[*Stream]struct{}{}
	}
	for _, s := range streams {
		if s.remember(r) {
			r.named[s] = struct{}{}
		}
	}
	return nil
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
	r.mu.Lock()
	ports := append(portBuf[:0], r.strays...)
	for _, g := range r.grants {
		if !slices.Contains(ports, g.dev.port) {
			ports = append(ports, g.dev.port)
		}
	}
	streams, promised := streamBuf[:0], r.promised
	for s := range r.named {
		streams = append(streams, s)
	}
	r.mu.Unlock()
	if promised {
		return waitStreams(ports, streams)
	}
	return waitDevices(ports)
}

// waitDevices waits for the whole context of each port, ours or anyone's.
func waitDevices(ports []*port) error {
	for _, p := range ports {
		if err := p.notCapturing(); err != nil {
			return err
		}
	}
	for _, p := range ports {
		if err := p.sys.drv.SyncIfActive(p.n); err != nil {
			return fmt.Errorf("wait for device %d: %w", p.n, err)
		}
	}
	return nil
}

// waitStreams waits for the streams and for each port's own.
func waitStreams(ports []*port, streams []*Stream) error {
	for _, s := range streams {
		if err := s.notCapturing(); err != nil {
			return err
		}
	}
	for _, s := range streams {
		if err := s.await(); err != nil {
			return fmt.Errorf("wait for a stream of %v: %w", s.dev, err)
		}
	}
	for _, p := range ports {
		if raw := p.raw.Load(); raw != nil {
			e, err := p.mark(raw, raw.Own())
			if err == nil {
				err = p.settle(raw, e)
			}
			if err != nil {
				return fmt.Errorf("wait for the copy stream of device %d: %w", p.n, err)
			}
		}
	}
	return nil
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
