package order

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/internal/lock"
)

// ungated are the calls of a driver's device that may meet any other.
type ungated interface {
	MemInfo() (free, total uint64, err error)
	CopyIn(dst driver.Ptr, src []byte) error
	CopyOut(dst []byte, src driver.Ptr) error
	Copy(dst, src driver.Ptr, n uint64, s driver.Stream) error
	Fill(dst driver.Ptr, pattern uint32, width int, n uint64, s driver.Stream) error
	NewStream() (driver.Stream, error)
	CopyStream() driver.Stream
	Capturing(driver.Stream) (bool, error)
	NewEvent(driver.EventFlags) (driver.Event, error)
	FreeEvent(driver.Event) error
	SyncEvent(driver.Event) error
	Done(driver.Event) (bool, error)
	Elapsed(from, to driver.Event) (time.Duration, error)
	Do(f func() error) error
}

// Device is a driver's device while it is open, with a pool of events. Each use that may
// outlast the call that closes it, a Fence for instance, retains it; the last one to release it
// closes the driver's device then.
type Device struct {
	ungated
	raw  driver.Device
	gate *Gate

	beforeClose func() error       // frees what else ends with the device; can be called again
	refused     func(func() error) // takes a call that is to be tried again

	uses atomic.Int64 // a count, and the two bits below

	mu     lock.Mutex
	events []driver.Event // made, and free to use
}

// The bits of Device.uses.
const (
	// The last user closes: it cannot be retained any more.
	closingBit = 1 << 62
	// finish has begun. A retain that comes too late is released at once, and must not begin
	// it again.
	finishingBit = closingBit >> 1
)

// NewDevice is a device that the driver has opened. Before it is closed, beforeClose frees what
// ends with it. A close that begins with the last Release and fails goes to refused.
func NewDevice(raw driver.Device, gate *Gate, beforeClose func() error, refused func(func() error)) *Device {
	d := &Device{ungated: raw, raw: raw, gate: gate, beforeClose: beforeClose, refused: refused}
	d.mu.At(lock.Events, 0)
	return d
}

// Raw is the driver's device, for packages beside vmm. Within vmm, As.
func (d *Device) Raw() driver.Device { return d.raw }

// As is the driver's device as one of its optional interfaces: not driver.Device, nor the parts
// of driver.Grapher that this package has.
func As[I any](d *Device) (i I, ok bool) {
	i, ok = d.raw.(I)
	return i, ok
}

// lost reports whether the device's work cannot run any more.
func lost(err error) bool { return errors.Is(err, driver.ErrDeviceLost) }

// Retain keeps the driver's device open until Release; false if it is closing. Then all that
// was queued on it has ended.
func (d *Device) Retain() bool {
	if d.uses.Add(1)&closingBit == 0 {
		return true
	}
	d.Release()
	return false
}

// Release undoes Retain. The last Release after Close has begun leaves closingBit alone in
// uses: it then calls finish.
func (d *Device) Release() {
	if d.uses.Add(-1) != closingBit || !d.uses.CompareAndSwap(closingBit, closingBit|finishingBit) {
		return
	}
	if d.finish() != nil {
		d.refused(d.finish)
	}
}

// Close closes the driver's device, or leaves that to the last use. After an error the device
// cannot be used any more, and Close can be called again.
func (d *Device) Close() error {
	// It retains the device itself, so that no Release finishes before it knows whether it is
	// alone.
	d.uses.Add(closingBit + 1)
	if !d.uses.CompareAndSwap(closingBit+1, closingBit|finishingBit) {
		d.Release()
		return nil
	}
	err := d.finish()
	if err != nil { // neither bit, as before: the next Close sets them again
		d.uses.Add(-closingBit - finishingBit)
	}
	return err
}

// finish frees what ends with the device and closes it. Nothing uses it any more. It can be
// called again.
func (d *Device) finish() error {
	if err := d.beforeClose(); err != nil {
		return err
	}
	for len(d.events) > 0 {
		last := len(d.events) - 1
		if err := d.FreeEvent(d.events[last]); err != nil {
			return err
		}
		d.events = d.events[:last]
	}
	return d.raw.Close()
}

// CheckAlive is an error if the device is lost or was reset. Then pinned memory may be freed already and must
// not be touched.
func (d *Device) CheckAlive() error {
	if _, err := d.Capturing(d.CopyStream()); lost(err) {
		return err
	}
	return nil
}

// Record records an event on a stream of which the caller knows that it is not being captured,
// and of which it keeps BeginCapture off; ErrCapturing if another library has begun meanwhile.
func (d *Device) Record(e driver.Event, s *Stream) error {
	d.gate.share()
	defer d.gate.unshare()
	return d.recordWork(e, s)
}

// RecordQueue records an event on a queue that is never captured.
func (d *Device) RecordQueue(e driver.Event, queue driver.Stream) error {
	d.gate.share()
	defer d.gate.unshare()
	return d.raw.Record(e, queue)
}

// SyncStream waits for a stream that is never captured, or one of which the caller keeps
// BeginCapture off, and which is not being captured.
func (d *Device) SyncStream(queue driver.Stream) error { return d.raw.SyncStream(queue) }

// FreeQueue frees a stream that belongs to no Stream.
func (d *Device) FreeQueue(queue driver.Stream) error {
	return d.gate.Shared(func() error { return d.raw.FreeStream(queue) })
}

// Free frees the driver's stream, unless another library has it. Its work has ended, or is
// lost.
func (d *Device) Free(s *Stream) error {
	s.gate.remove(s)
	if !s.Wrapped {
		if err := d.FreeQueue(s.Queue); err != nil {
			s.gate.add(s)
			return err
		}
	}
	s.End() // first: no event is recorded on it any more
	d.forget(s)
	s.freeMarks()
	return nil
}

// errWaitDestroys is what is returned instead of a wait.
var errWaitDestroys = fmt.Errorf("%w: waiting would destroy the capture", driver.ErrCapturing)

// NotCapturing is ErrCapturing while the stream is being captured.
func (d *Device) NotCapturing(s *Stream) error { return d.notCapturing(s.Queue) }

func (d *Device) notCapturing(queue driver.Stream) error {
	capturing, err := d.raw.Capturing(queue)
	switch {
	case err == nil && capturing:
		return errWaitDestroys
	case err != nil && lost(err):
		return nil // its captures are lost with it
	}
	return err
}

// NoneCaptured is ErrCapturing if a stream of the device is being captured: in a capture that Begin
// has begun, or of which the driver says so, of those that other libraries may capture and those
// that the driver knows to wait for the legacy stream.
func (d *Device) NoneCaptured() error {
	if d.gate.open.Load() > 0 {
		return errWaitDestroys
	}
	if err := d.notCapturing(0); err != nil {
		return err
	}
	d.gate.streamsMu.RLock()
	defer d.gate.streamsMu.RUnlock()
	for _, s := range d.gate.streams {
		if !s.shown.Load() {
			continue
		}
		if err := d.notCapturing(s.Queue); err != nil {
			return err
		}
	}
	return nil
}

// StreamDone reports whether the stream has done all that it was told so far.
func (d *Device) StreamDone(s *Stream) (done bool, err error) {
	at := s.NextPoint()
	err = d.gate.Shared(func() (err error) {
		done, err = d.raw.StreamDone(s.Queue)
		return err
	})
	if done && err == nil {
		at.Finish()
	}
	return done, err
}
