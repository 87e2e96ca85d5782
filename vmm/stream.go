package vmm

import (
	"errors"
	"fmt"
	"sync"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// Stream is a queue of work on one device. Safe for concurrent use. The caller
// must Close it.
type Stream struct {
	dev     *Device
	raw     driver.Stream
	wrapped bool

	closer sync.Mutex // Close alone takes it

	mu      sync.RWMutex // shared by calls that need raw to stay valid; never across a wait
	closing bool         // no new work
	gone    bool         // its work was waited for
	lost    error        // or lost, and this is why

	usesMu sync.Mutex // a leaf
	uses   map[*Reservation]struct{}
	unused bool // taken off every Use for good
}

// NewStream makes a non-blocking stream. The caller must Close it.
func (d *Device) NewStream() (*Stream, error) {
	dev, err := d.raw()
	if err != nil {
		return nil, d.fail("make stream", 0, 0, err)
	}
	raw, err := dev.NewStream()
	if err != nil {
		return nil, d.fail("make stream", 0, 0, err)
	}
	s := &Stream{dev: d, raw: raw}
	if err := d.track(s, "stream"); err != nil {
		return nil, d.fail("make stream", 0, 0, also(err, "and freeing it", dev.FreeStream(raw)))
	}
	d.port.learn(s)
	return s, nil
}

// WrapStream makes another library's stream known here (cuBLAS, NCCL, PyTorch):
// its handle as a number. Close leaves the stream itself alone, and has to be
// called before its owner destroys it. On a closed or nil device the Stream
// answers ErrClosed to everything. The caller must Close it.
func (d *Device) WrapStream(raw uintptr) *Stream {
	s := &Stream{dev: d, raw: driver.Stream(raw), wrapped: true}
	if err := d.track(s, "wrapped stream"); err != nil {
		s.closing, s.gone = true, true
		return s
	}
	d.port.learn(s)
	return s
}

// learn makes s one of the streams that are asked before a wait.
func (p *port) learn(s *Stream) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.streams[s] = struct{}{}
}

// unlearn undoes learn.
func (p *port) unlearn(s *Stream) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.streams, s)
}

// with runs f with the stream kept from being freed.
func (s *Stream) with(f func(dev driver.Device) error) error {
	if s == nil {
		return fmt.Errorf("%w: no stream", ErrInvalid)
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closing {
		return errStreamClosed
	}
	dev, err := s.dev.raw()
	if err != nil {
		return err
	}
	return f(dev)
}

var errStreamClosed = fmt.Errorf("%w: stream", ErrClosed)

func (s *Stream) fail(op string, p Ptr, n uint64, err error) error {
	if s == nil {
		return (*Device)(nil).fail(op, p, n, err)
	}
	return s.dev.fail(op, p, n, err)
}

// Copy queues a copy of n bytes. Either side is device memory, a peer's, or
// pinned host memory. An address that is not mapped, or that the device may not
// use, is refused at once.
func (s *Stream) Copy(dst, src Ptr, n uint64) error {
	return s.fail("copy", dst, n, s.with(func(dev driver.Device) error {
		p, err := s.dev.pin(span{dst, n, ReadWrite}, span{src, n, Read})
		if err != nil {
			return err
		}
		defer p.unpin()
		return dev.Copy(dst, src, n, s.raw)
	}))
}

// Fill queues n elements of width bytes (1, 2 or 4), each set to pattern.
func (s *Stream) Fill(dst Ptr, pattern uint32, width int, n uint64) error {
	size := n * uint64(width)
	return s.fail("fill", dst, size, s.with(func(dev driver.Device) error {
		if width < 1 || size/uint64(width) != n {
			return fmt.Errorf("%w: %d elements of %d bytes", ErrInvalid, n, width)
		}
		p, err := s.dev.pin(span{dst, size, ReadWrite}, span{})
		if err != nil {
			return err
		}
		defer p.unpin()
		return dev.Fill(dst, pattern, width, n, s.raw)
	}))
}

// Record marks the stream's end of now. The caller must Close the Event.
func (s *Stream) Record() (*Event, error) {
	var e *Event
	err := s.with(func(dev driver.Device) error {
		raw, err := s.dev.port.mark(dev, s.raw)
		if err != nil {
			return err
		}
		made := &Event{dev: s.dev, raw: raw}
		if err := s.dev.track(made, "event"); err != nil {
			s.dev.port.recycle(raw)
			return err
		}
		e = made
		return nil
	})
	return e, s.fail("record event", 0, 0, err)
}

// Wait makes later work of the stream wait for the event.
func (s *Stream) Wait(e *Event) error {
	return s.fail("wait for event", 0, 0, s.with(func(dev driver.Device) error {
		return e.with(func(driver.Device) error { return dev.Wait(s.raw, e.raw) })
	}))
}

// Sync waits for the stream. While it is being captured it answers ErrCapturing
// and leaves the capture alone.
func (s *Stream) Sync() error {
	err := s.with(func(driver.Device) error { return nil })
	if err == nil {
		err = s.notCapturing()
	}
	if err == nil {
		err = s.await()
	}
	return s.fail("synchronise stream", 0, 0, err)
}

// Raw is the driver's handle, a CUstream on CUDA.
func (s *Stream) Raw() driver.Stream {
	if s == nil {
		return 0
	}
	return s.raw
}

// Close waits for the stream's work, takes the stream off every Use and frees
// it, a wrapped one excepted. While the stream is being captured it answers
// ErrCapturing and changes nothing. Twice is fine, and so is a nil Stream.
func (s *Stream) Close() error {
	if s == nil {
		return nil
	}
	return s.fail("close stream", 0, 0, s.close())
}

func (s *Stream) close() error {
	s.closer.Lock()
	defer s.closer.Unlock()
	if !s.setClosing(true) {
		return nil
	}
	lost := s.drain()
	if lost != nil && !errors.Is(lost, ErrDeviceLost) {
		s.setClosing(false)
		return lost
	}
	if err := s.free(lost); err != nil {
		s.setClosing(false)
		return err
	}
	s.usesMu.Lock()
	users := s.uses
	s.uses, s.unused = nil, true
	s.usesMu.Unlock()
	for r := range users {
		r.mu.Lock()
		delete(r.named, s)
		if lost == nil {
			delete(r.owed, s)
		}
		r.mu.Unlock()
	}
	s.dev.port.unlearn(s)
	s.dev.untrack(s)
	return lost
}

// setClosing lets no new work in, or lets it in again; false if it was so.
func (s *Stream) setClosing(to bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing == to {
		return false
	}
	s.closing = to
	return true
}

// free gives the stream back, one of another library's excepted.
func (s *Stream) free(lost error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.wrapped {
		dev, err := s.dev.raw()
		if err == nil {
			err = dev.FreeStream(s.raw)
		}
		if err != nil {
			return err
		}
	}
	s.gone, s.lost = true, lost
	return nil
}

// drain waits for the stream's work, unless that would destroy a capture.
func (s *Stream) drain() error {
	dev, err := s.dev.raw()
	if err != nil {
		return err
	}
	if err := s.notCapturing(); err != nil {
		return err
	}
	return dev.SyncStream(s.raw)
}

// mark records an event at the stream's end of now; none if the stream is gone.
func (s *Stream) mark() (mark, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.gone {
		return mark{}, nil
	}
	dev, err := s.dev.port.device()
	if err != nil {
		return mark{}, err
	}
	e, err := s.dev.port.mark(dev, s.raw)
	return mark{s.dev.port, dev, e}, err
}

// end is mark, and the error if the stream's work was lost.
func (s *Stream) end() (mark, error) {
	m, err := s.mark()
	if err == nil && m.e == 0 {
		s.mu.RLock()
		defer s.mu.RUnlock()
		err = s.lost
	}
	return m, err
}

// await waits for what is queued on the stream now.
func (s *Stream) await() error {
	m, err := s.mark()
	return s.reach(m, err)
}

// reach waits for what was queued on the stream when mark gave m and err.
func (s *Stream) reach(m mark, err error) error {
	switch {
	case err == nil && m.e == 0:
		return nil
	case err == nil:
		return m.p.settle(m.dev, m.e)
	case s.foreign(err):
		return m.dev.SyncStream(s.raw)
	}
	return err
}

// foreign says whether err is what a stream of another context answers to an
// event of this one.
func (s *Stream) foreign(err error) bool { return s.wrapped && errors.Is(err, ErrInvalid) }

// notCapturing is ErrCapturing while the stream is being captured.
func (s *Stream) notCapturing() error {
	if s == nil {
		return fmt.Errorf("%w: no stream", ErrInvalid)
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.gone {
		return nil
	}
	dev, err := s.dev.raw()
	if err != nil {
		return err
	}
	capturing, err := dev.Capturing(s.raw)
	if errors.Is(err, ErrDeviceLost) {
		return nil // its captures are lost with it
	}
	if err == nil && capturing {
		err = fmt.Errorf("%w: waiting would destroy the capture", ErrCapturing)
	}
	return err
}

// usable is nil if r may name the stream.
func (s *Stream) usable(sys *system) error {
	if s == nil {
		return fmt.Errorf("%w: no stream", ErrInvalid)
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closing {
		return errStreamClosed
	}
	if s.dev.port.sys != sys {
		return fmt.Errorf("%w: the stream is of another driver", ErrInvalid)
	}
	return nil
}

// remember notes that r names the stream; false if it is closed.
func (s *Stream) remember(r *Reservation) bool {
	s.usesMu.Lock()
	defer s.usesMu.Unlock()
	if s.unused {
		return false
	}
	if s.uses == nil {
		s.uses = map[*Reservation]struct{}{}
	}
	s.uses[r] = struct{}{}
	return true
}

// forget undoes remember.
func (s *Stream) forget(r *Reservation) {
	s.usesMu.Lock()
	defer s.usesMu.Unlock()
	delete(s.uses, r)
}
