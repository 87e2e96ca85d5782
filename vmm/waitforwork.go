package vmm

import (
	"errors"
	"fmt"

	"github.com/cuvmm/cuvmm/vmm/internal/lock"
	"github.com/cuvmm/cuvmm/vmm/internal/order"
)

// waitForWork waits for all work that may use the memory: of every device with
// access, or, after UsedBy, of the named streams and the library's own. It begins
// no wait that would destroy a capture it can see. A device that closes
// meanwhile has waited for its work itself.
func (r *Reservation) waitForWork() error {
	if r.dev.state.parent.hooks.noWait {
		return nil
	}
	if devs := r.users.WaitsFor(); devs != nil {
		return waitDevices(r.dev.state, devs)
	}
	devs, streams := r.usersNow()
	return waitStreams(r.dev.state, devs, streams)
}

// recordFences records an event after the work that the streams, and the library's
// own streams on the devices, have now. Of a stream in a capture that BeginCapture has begun
// it is recorded at the capture's end. enough is false if events cannot tell when
// all of it has ended: for streams that take none of ours, as those of other contexts,
// and for copies of ours that could not be waited for.
func recordFences(owner *deviceState, devs []*deviceState, streams []*Stream) (fences []order.Fence, enough bool, failed error) {
	enough = true
	add := func(dev *deviceState, f order.Fence, err error) {
		switch {
		case err == nil && !f.IsZero():
			fences = append(fences, f)
		case errors.Is(err, ErrCapturing): // by another library
			failed = err
		case err != nil && !(lost(err) && dev != owner): // a peer that is lost runs nothing any more
			enough = false
		}
	}
	for i := 0; i < len(streams) && failed == nil; i++ {
		f, err := streams[i].lateFence()
		add(streams[i].dev.state, f, err)
	}
	for i := 0; i < len(devs) && failed == nil; i++ {
		dev := devs[i]
		if o := dev.openDevice.Load(); o != nil {
			f, err := o.QueueFence(o.CopyStream())
			add(dev, f, err)
			enough = enough && !o.stage.MustSync()
		}
	}
	if failed != nil || !enough {
		freeFences(fences)
		return nil, false, failed
	}
	return fences, true, nil
}

// waitDevices waits for the whole context of each device, whoever queued the work.
func waitDevices(owner *deviceState, devs []*deviceState) error {
	lock.Waits()
	var w waitResult
	var buf [8]contextWait
	waits := buf[:0]
	// All begin before the first one waits: one that a capture refuses waits for nothing.
	for _, dev := range devs {
		one, err := dev.beginWait()
		if errors.Is(err, ErrCapturing) {
			for _, begun := range waits {
				begun.f.Free()
			}
			return fmt.Errorf("wait for device %d: %w", dev.n, err)
		}
		if errors.Is(err, ErrContextReset) { // another library may have made the context anew
			one, err = contextWait{dev: dev, theirs: true}, nil
		}
		if err == nil {
			waits = append(waits, one)
		}
		w.add(owner, dev, err)
	}
	for _, one := range waits {
		w.add(owner, one.dev, one.wait())
	}
	return w.err
}

// waitStreams waits for the streams and for the library's own on each device.
func waitStreams(owner *deviceState, devs []*deviceState, streams []*Stream) error {
	lock.Waits()
	var w waitResult
	fences := make([]order.Fence, len(streams))
	errs := make([]error, len(streams))
	for i, s := range streams {
		if fences[i], errs[i] = s.fence(); errors.Is(errs[i], ErrCapturing) {
			freeFences(fences[:i])
			return errs[i]
		}
	}
	for i, s := range streams {
		w.add(owner, s.dev.state, s.syncFence(fences[i], errs[i]))
	}
	for _, dev := range devs {
		if o := dev.openDevice.Load(); o != nil {
			w.add(owner, dev, o.syncOwn())
		}
	}
	return w.err
}

// waitResult is what came of several waits. All of them are begun, whatever the
// others return: a device that is not waited for would be lost by the unmap.
// A peer that is lost runs nothing any more, so it counts as waited for. The
// owner's ErrDeviceLost is reported only if nothing else failed.
type waitResult struct{ err error }

func (w *waitResult) add(owner, dev *deviceState, err error) {
	switch {
	case err == nil, dev != owner && errors.Is(err, ErrDeviceLost):
	case w.err == nil, errors.Is(w.err, ErrDeviceLost):
		w.err = fmt.Errorf("wait for device %d: %w", dev.n, err)
	}
}

var errNoContext = fmt.Errorf("%w: no context", ErrInvalid)
