package vmm

import (
	"errors"

	"github.com/cuvmm/cuvmm/internal/door"
	"github.com/cuvmm/cuvmm/internal/errtext"
	"github.com/cuvmm/cuvmm/vmm/internal/order"
)

// freeFences frees events.
func freeFences(all []order.Fence) {
	for _, f := range all {
		f.Free()
	}
}

// forPool is what package pool may ask for: see order.Fences.
type forPool struct{}

var _ = door.Open[order.Fences[*Stream]](forPool{})

func (forPool) Fence(s *Stream) (order.Fence, error) {
	if s == nil || s.dev == nil {
		return order.Fence{}, s.wrap("record fence", 0, 0, errNoStream)
	}
	f, err := s.fence()
	return f, s.wrap("record fence", 0, 0, err)
}

func (forPool) SyncFence(s *Stream, f order.Fence) error {
	err := f.Sync()
	if err == nil {
		s.dev.state.parent.runSyncHooks()
	}
	return err
}

func (forPool) WaitFence(s *Stream, f order.Fence) error {
	return s.wrap("wait for fence", 0, 0, s.with(func(o *openDevice) error { return o.WaitFence(&s.order, f) }))
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
		return errtext.Join(err, "and waiting for the stream itself", second)
	}
	at.Finish()
	return nil
}
