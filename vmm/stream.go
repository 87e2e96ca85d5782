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
	raw     driver.Stream // where work is queued; see WrapStream
	handle  driver.Stream // as NewStream made it, or its owner
	wrapped bool
	index   int // among the port's streams

	closer sync.Mutex // Close alone takes it

	mu      sync.RWMutex // shared by calls that need raw to stay valid; held across a wait only by reach
	closing bool         // no new work
	gone    bool         // its work was waited for
	lost    error        // or lost, and this is why

	usesMu sync.Mutex // a leaf
	uses   map[*Reservation]struct{}
	unused bool // taken off every UsedBy for good
}

// NewStream makes a non-blocking stream. The caller must Close it.
func (d *Device) NewStream() (*Stream, error) {
	s := &Stream{dev: d}
	err := d.track(s, "stream") // first, so that the device does not close meanwhile
	if err == nil {
		err = s.make()
		if err != nil {
			d.untrack(s)
		}
	}
	if err != nil {
		return nil, d.fail("make stream", 0, 0, err)
	}
	d.port.learn(s)
	return s, nil
}

func (s *Stream) make() error {
	o, err := s.dev.raw()
	if err == nil {
		s.raw, err = o.NewStream()
		s.handle = s.raw
	}
	return err
}

// WrapStream makes another library's stream known here (cuBLAS, NCCL, PyTorch):
// its handle as a number. Close leaves the stream itself alone, and has to be
// called before its owner destroys it. On a closed or nil device the Stream
// answers ErrClosed to everything. The caller must Close it.
//
// The default streams are 0 and 1, the legacy one, and 2, a thread's own.
// Goroutines change threads, so all of them are treated as the legacy stream,
// which work of every thread's own waits for and is waited for by.
func (d *Device) WrapStream(raw uintptr) *Stream {
	s := &Stream{dev: d, raw: driver.Stream(raw), handle: driver.Stream(raw), wrapped: true}
	if raw <= perThread {
		s.raw = 0
	}
	if err := d.track(s, "wrapped stream"); err != nil {
		s.closing, s.gone = true, true
		return s
	}
	d.port.learn(s)
	return s
}

// perThread is CU_STREAM_PER_THREAD, the last of CUDA's special handles.
const perThread = 2

// with runs f with the stream kept from being freed.
func (s *Stream) with(f func(o *openDevice) error) error {
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
	return s.fail("copy", dst, n, s.with(func(dev *openDevice) error {
		p, err := s.dev.pin(s, span{dst, n, AccessReadWrite}, span{src, n, AccessRead})
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
	return s.fail("fill", dst, size, s.with(func(dev *openDevice) error {
		if width < 1 || size/uint64(width) != n {
			return fmt.Errorf("%w: %d elements of %d bytes", ErrInvalid, n, width)
		}
		p, err := s.dev.pin(s, span{dst, size, AccessReadWrite})
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
	err := s.with(func(o *openDevice) error {
		e = &Event{dev: s.dev, on: o, pooled: true}
		err := s.dev.track(e, "event") // first, so that the device stays open
		if err != nil {
			return err
		}
		if e.raw, err = o.event(); err == nil {
			if err = o.Record(e.raw, s.raw); err != nil {
				o.recycle(e.raw)
			}
		}
		if err != nil {
			s.dev.untrack(e)
		}
		return err
	})
	if err != nil {
		return nil, s.fail("record event", 0, 0, err)
	}
	return e, nil
}

// Wait makes later work of the stream wait for the event.
func (s *Stream) Wait(e *Event) error {
	return s.fail("wait for event", 0, 0, s.with(func(o *openDevice) error {
		return e.with(func(driver.Device) error {
			if err := e.sameDriver(o); err != nil {
				return err
			}
			return o.Wait(s.raw, e.raw)
		})
	}))
}

// Done says whether the stream has done all that it was told so far, without
// waiting. While it is being captured it answers ErrCapturing and leaves the capture
// alone.
func (s *Stream) Done() (done bool, err error) {
	err = s.with(func(o *openDevice) (err error) {
		done, err = o.StreamDone(s.raw)
		return err
	})
	return done, s.fail("query stream", 0, 0, err)
}

// Sync waits for the stream. While it is being captured it answers ErrCapturing
// and leaves the capture alone.
func (s *Stream) Sync() error {
	err := s.with(func(*openDevice) error { return nil })
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
	return s.handle
}

// Close waits for the stream's work, takes the stream off every UsedBy and frees
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
	s.dev.port.unlearn(s)
	if !s.wrapped {
		o, err := s.dev.port.device()
		if err == nil {
			err = o.FreeStream(s.raw)
		}
		if err != nil {
			s.dev.port.learn(s)
			return err
		}
	}
	s.gone, s.lost = true, lost
	return nil
}

// drain waits for the stream's work, unless that would destroy a capture.
func (s *Stream) drain() error {
	if err := s.notCapturing(); err != nil {
		return err
	}
	o, err := s.dev.port.device()
	if err != nil {
		return err
	}
	return o.SyncStream(s.raw)
}

// mark records an event at the stream's end of now; the zero mark if the stream
// is gone, its work waited for.
func (s *Stream) mark() (mark, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.gone {
		return mark{}, nil
	}
	o, err := s.dev.port.device()
	if err != nil {
		return mark{}, err
	}
	return o.mark(s.raw)
}

// end is mark, and the error if the stream's work was lost.
func (s *Stream) end() (mark, error) {
	m, err := s.mark()
	if err == nil && m.on == nil {
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

// reach waits for what was queued on the stream when mark gave m and err. Where
// no event could be recorded, as for a stream of another context, it waits for
// the stream itself. The caller has asked whether it is being captured.
func (s *Stream) reach(m mark, err error) error {
	if err == nil {
		if err = m.wait(); err == nil || lost(err) {
			return err
		}
	} else if lost(err) {
		return err
	}
	s.mu.RLock() // a wait, but one that Close would begin too
	defer s.mu.RUnlock()
	if s.gone {
		return s.lost
	}
	o, again := s.dev.port.device()
	if again == nil {
		again = o.SyncStream(s.raw)
	}
	if again != nil {
		return also(err, "and waiting for the stream itself", again)
	}
	return nil
}

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
	o, err := s.dev.port.device()
	if err != nil {
		return err
	}
	return o.notCapturing(s.raw)
}

// notCapturing is ErrCapturing while the driver's stream is being captured.
func (o *openDevice) notCapturing(s driver.Stream) error {
	capturing, err := o.Capturing(s)
	switch {
	case lost(err):
		return nil // its captures are lost with it
	case err == nil && capturing:
		return errCapturing
	}
	return err
}

var errCapturing = fmt.Errorf("%w: waiting would destroy the capture", ErrCapturing)

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
