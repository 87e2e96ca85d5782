package vmm

import (
	"fmt"

	"github.com/cuvmm/cuvmm/vmm/internal/order"
)

// Fence is an event recorded at the end of a stream's work, as Record returns it, for
// programs that need many. Its event is one of the device's pool: it costs no allocation,
// does not record where it was made, and is not listed as open. When the Device closes, its
// work has ended. The zero Fence is done. Safe for concurrent use, up to Free.
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

// Done says whether the work has ended, by itself or with its device, without waiting.
func (f Fence) Done() (bool, error) { return f.f.Done() }

// freeFences frees events.
func freeFences(all []order.Fence) {
	for _, f := range all {
		f.Free()
	}
}

// Fence records an event after the work that the stream has now. The caller must Free the Fence.
// While the stream is being captured it returns ErrCapturing.
func (s *Stream) Fence() (Fence, error) {
	if s == nil || s.dev == nil {
		return Fence{}, s.fail("record fence", 0, 0, errNoStream)
	}
	f, err := s.fence()
	if err != nil {
		return Fence{}, s.fail("record fence", 0, 0, err)
	}
	return Fence{f, s.dev.state.parent}, nil
}

// WaitFence makes later work of the stream wait for the fence, of any device of the
// same driver. Stream.After counts it.
func (s *Stream) WaitFence(f Fence) error {
	return s.fail("wait for fence", 0, 0, s.with(func(o *openDevice) error {
		if f.parent != nil && f.parent != o.state.parent {
			return fmt.Errorf("%w: the fence is of another driver", ErrInvalid)
		}
		return o.WaitFence(&s.order, f.f)
	}))
}
