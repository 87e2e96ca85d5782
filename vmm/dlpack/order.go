package dlpack

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cuvmm/cuvmm/cgo/dlpack"
	"github.com/cuvmm/cuvmm/internal/inside"
	"github.com/cuvmm/cuvmm/vmm"
)

// consumer says how the consumer waits for earlier work: one of the three.
type consumer struct {
	nothing bool
	host    bool
	stream  uintptr // a handle
}

// Numbers of Options.Stream that are not handles. The others are the array API standard's.
const (
	none   = 0
	noWait = -1
	legacy = 1
)

// consumerOf reads Options.Stream.
func consumerOf(stream int64, on dlpack.DeviceType) (consumer, error) {
	switch {
	case stream == noWait:
		return consumer{nothing: true}, nil
	case on != dlpack.CUDA && stream == none:
		return consumer{host: true}, nil
	case on != dlpack.CUDA:
		return consumer{}, fmt.Errorf("%w: stream %d for memory of the host, which takes none and -1", vmm.ErrInvalid, stream)
	case stream == none:
		return consumer{stream: legacy}, nil
	case stream < 0:
		return consumer{}, fmt.Errorf("%w: stream %d", vmm.ErrInvalid, stream)
	}
	return consumer{stream: uintptr(stream)}, nil
}

// after makes the consumer wait for the work that is queued on the streams.
func (c consumer) after(d *vmm.Device, streams []*vmm.Stream) (err error) {
	if c.nothing {
		return nil
	}
	streams = slices.DeleteFunc(streams, func(s *vmm.Stream) bool {
		return !c.host && s != nil && inside.VMM.StreamNumber(s) == uint64(c.stream)
	})
	if len(streams) == 0 {
		return nil
	}
	wait := (*vmm.Stream).Sync
	if !c.host {
		to := d.WrapStream(c.stream)
		defer func() {
			if forget := in.ForgetStream(to); err == nil {
				err = forget
			}
		}()
		wait = func(s *vmm.Stream) error { return waitOn(to, s) }
	}
	for _, s := range streams {
		if err := wait(s); err != nil && !errors.Is(err, vmm.ErrClosed) { // a stream that is closed has no work
			return fmt.Errorf("wait for a stream: %w", err)
		}
	}
	return nil
}

// waitOn makes one stream wait for the work that is queued on the other.
func waitOn(to, from *vmm.Stream) error {
	e, err := from.Record()
	if err != nil {
		return err
	}
	if err = to.Wait(e); err != nil {
		e.Close() //nolint:errcheck // the other error says more
		return err
	}
	return e.Close()
}
