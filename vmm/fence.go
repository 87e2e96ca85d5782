package vmm

import (
	"errors"
	"fmt"

	"github.com/cuvmm/cuvmm/vmm/internal/order"
)

// Fence is a point of a stream's work to wait for, made by Stream.Fence. It is for programs that
// need many: its event comes from the device's pool and costs no allocation. It does not record
// where it was made, and is not listed as open. When the Device closes, its work has ended. The
// zero Fence is done. Safe for concurrent use, up to Free.
type Fence struct {
	f      order.Fence
	parent *driverState
}

// Free gives the Fence up. It must be called once.
func (f Fence) Free() { f.f.Free() }

// Sync waits until the work has ended.
func (f Fence) Sync() error {
	err := f.f.Sync()
	if err == nil && f.parent != nil {
		f.parent.runSyncHooks()
	}
	return err
}

// Done reports whether the work has ended, by itself or with its device, without waiting.
func (f Fence) Done() (bool, error) { return f.f.Done() }

// freeFences frees events.
func freeFences(all []order.Fence) {
	for _, f := range all {
		f.Free()
	}
}

// Fence records an event at the end of the work that the stream has now.
//
// For example, another stream's WaitFence of it makes that stream's later work wait for this work.
// Sync waits for it here.
//
// While the stream is being captured, Fence returns ErrCapturing. The caller must Free the Fence.
func (s *Stream) Fence() (Fence, error) {
	if s == nil || s.dev == nil {
		return Fence{}, s.wrap("record fence", 0, 0, errNoStream)
	}
	f, err := s.fence()
	if err != nil {
		return Fence{}, s.wrap("record fence", 0, 0, err)
	}
	return Fence{f, s.dev.state.parent}, nil
}

// WaitFence makes later work of the stream wait for the fence, of any device of the
// same driver. Stream.After counts it.
func (s *Stream) WaitFence(f Fence) error {
	return s.wrap("wait for fence", 0, 0, s.with(func(o *openDevice) error {
		if f.parent != nil && f.parent != o.state.parent {
			return fmt.Errorf("%w: the fence is of another driver", ErrInvalid)
		}
		return o.WaitFence(&s.order, f.f)
	}))
}

// onEnd calls f, which records an event at the stream's end; not if the stream is freed, its
// work waited for: then the fence is the zero one.
func (s *Stream) onEnd(f func(*openDevice, *order.Stream) (order.Fence, error)) (order.Fence, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.freed {
		return order.Fence{}, nil
	}
	o, err := s.dev.state.ensureOpen()
	if err != nil {
		return order.Fence{}, err
	}
	return f(o, &s.order)
}

// fence is at the end of the work that the stream has now; ErrCapturing while it is being
// captured.
func (s *Stream) fence() (order.Fence, error) {
	return s.onEnd(func(o *openDevice, st *order.Stream) (order.Fence, error) { return o.Fence(st) })
}

// lateFence is fence, or the event that is recorded when the capture ends.
func (s *Stream) lateFence() (order.Fence, error) {
	return s.onEnd(func(o *openDevice, st *order.Stream) (order.Fence, error) { return o.LateFence(st) })
}

// recordEnd is fence, and the error if the stream's work was lost.
func (s *Stream) recordEnd() (order.Fence, error) {
	f, err := s.fence()
	if err == nil && f.IsZero() {
		s.mu.RLock()
		defer s.mu.RUnlock()
		err = s.lost
	}
	return f, err
}

// sync waits for what is queued on the stream now.
func (s *Stream) sync() error {
	f, err := s.fence()
	return s.syncFence(f, err)
}

// syncFence waits for what was queued on the stream when fence returned f and err. If no event
// could be recorded, as for a stream of another context, it waits for the stream itself.
func (s *Stream) syncFence(f order.Fence, err error) error {
	if err == nil {
		err = f.SyncAndFree()
	}
	if err == nil || lost(err) || errors.Is(err, ErrCapturing) {
		return err
	}
	s.mu.RLock() // a wait, but one that Close would begin too; it keeps BeginCapture off
	defer s.mu.RUnlock()
	if s.freed {
		return s.lost
	}
	at := s.order.NextPoint()
	o, second := s.dev.state.ensureOpen()
	if second == nil {
		second = o.NotCapturing(&s.order)
	}
	if second == nil {
		second = o.SyncStream(s.order.Queue)
	}
	if second != nil {
		return joinErr(err, "and waiting for the stream itself", second)
	}
	at.Finish()
	return nil
}
