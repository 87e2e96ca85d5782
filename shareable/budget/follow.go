package budget

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math"
	"time"

	"github.com/cuvmm/cuvmm/internal/inside"
	"github.com/cuvmm/cuvmm/internal/loglimit"
	"github.com/cuvmm/cuvmm/vmm"
)

// FollowOptions configures Follow; its zero value is the default.
type FollowOptions struct {
	// Every is how often the limits are read; 0: every two seconds.
	Every time.Duration
	// Logger gets a warning when limits cannot be read. nil: none.
	Logger *slog.Logger

	root string // where the system's files are; a test's
}

const (
	// defaultEvery is FollowOptions.Every.
	defaultEvery = 2 * time.Second
	// spareParts: memory is released once less than one of so many parts of a limit, or of the device, is left.
	spareParts = 16
	// relieveTime is how long functions of OnPressure are called at a time.
	relieveTime = 5 * time.Second
	// unbounded is a bound that bounds nothing, but says that limits are followed.
	unbounded = math.MaxUint64 - 1
)

// Follow has the process obey the limits that others set on its memory of dev, before the system refuses memory, or
// ends the process. It reads them at once and then again and again, so it follows limits that change or appear later.
// No broker is needed; beside a Member the least bound counts. [Limits] returns what it reads:
//
//   - for a GPU, the control groups of the process, by the controller dmem: dmem.max, dmem.min and dmem.capacity;
//   - for a GPU, CUDA_MPS_PINNED_DEVICE_MEM_LIMIT ("0=2G,1=10G", also by UUID), of MPS;
//   - for a GPU, CUDA_DEVICE_MEMORY_LIMIT_0 ("4096m"), or else CUDA_DEVICE_MEMORY_LIMIT, of HAMi;
//   - for host memory, memory.max of the control groups.
//
// The process creates no more than the least limit leaves: growth beyond it returns vmm.ErrOutOfMemory, whose text
// names the limit. What others in a control group use is subtracted, and so is what the driver and other libraries
// use in it. When less than a sixteenth of what it leaves is unused, or the limit falls below what is created,
// functions of vmm.Device.OnPressure are called until that is released. The vmm.OpError has the size. dmem.min bounds
// nothing: memory beyond it is released once less than a sixteenth of the device is free. Host memory that was never
// written to is not in use, so until it is, others in the group may take it.
//
// While a limit cannot be read, the bound does not rise. That is so also if its file has vanished while the process
// stayed in its groups. On a device that is followed already Follow returns vmm.ErrBusy. Until stop, Close of dev does.
//
// stop ends the bound, and returns when Follow calls no function of OnPressure any more. So such a function must not
// call it. Twice is fine.
//
// NVML's limits of memory are not read by NVML: with the controller dmem they are dmem.max and dmem.min. Where NVIDIA's
// driver limits without that controller, nothing is found. The controller was not tried on a GPU: the tests have
// files as the kernel documents them.
func Follow(dev *vmm.Device, o FollowOptions) (stop func(), err error) {
	if dev == nil {
		return nil, fmt.Errorf("follow limits: %w: no device", vmm.ErrInvalid)
	}
	release, err := inside.VMM.KeepOpen(dev, "follower of limits")
	if err != nil {
		return nil, fmt.Errorf("follow limits: %w", err)
	}
	if old := inside.VMM.SetAround(dev, unbounded, ""); old != math.MaxUint64 {
		inside.VMM.SetAround(dev, old, "")
		release()
		return nil, fmt.Errorf("follow limits: %w: they are followed already", vmm.ErrBusy)
	}
	ctx, cancel := context.WithCancel(context.Background())
	f := &follower{reader: newReader(dev, cmp.Or(o.root, "/")), logger: loglimit.New(o.Logger), bound: unbounded, target: unbounded}
	f.update()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer release()
		defer inside.VMM.SetAround(dev, math.MaxUint64, "")
		f.run(ctx, cmp.Or(o.Every, defaultEvery))
	}()
	return func() { cancel(); <-ended }, nil
}

// follower follows the limits of a device. Only one goroutine uses it.
type follower struct {
	*reader
	logger *slog.Logger
	failed string // the last error

	bound  uint64 // what the process may create
	source string // the limit that it is of
	target uint64 // above it memory is released
}

func (f *follower) run(ctx context.Context, every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		if created, _ := inside.VMM.Created(f.dev); created > f.target && ctx.Err() == nil {
			inside.VMM.Relieve(f.dev, f.target, time.Now().Add(relieveTime)) // if it is busy, next time
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			f.update()
		}
	}
}

// update reads the limits, and sets the bound.
func (f *follower) update() {
	all, err := f.read()
	bound, source, target := uint64(unbounded), "", uint64(unbounded)
	if err != nil { // what cannot be read may be as low as before
		bound, source, target = f.bound, f.source, f.target
	}
	for _, l := range all {
		left := l.left()
		if l.Soft {
			target = min(target, max(left, f.uncrowded()))
			continue
		}
		if left < bound {
			bound, source = left, l.Source
		}
		if !l.capacity {
			target = min(target, left-left/spareParts)
		}
	}
	f.bound, f.source, f.target = bound, source, target
	inside.VMM.SetAround(f.dev, bound, source)
	f.note(err)
}

// uncrowded is how much this process may have created if a part of the device is to be free.
func (f *follower) uncrowded() uint64 {
	free, total, err := f.dev.MemInfo()
	spare := total / spareParts
	if err != nil || free >= spare {
		return unbounded
	}
	created, _ := inside.VMM.Created(f.dev)
	return created - min(created, spare-free)
}

// note logs an error once.
func (f *follower) note(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != f.failed && err != nil {
		f.logger.Warn("limits of device memory cannot be read", "device", f.dev.Info().Open, "bound", f.bound, "err", err)
	}
	f.failed = text
}
