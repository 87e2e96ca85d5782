package vmm

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/cuvmm/cuvmm/internal/nonnil"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/internal/lock"
	"github.com/cuvmm/cuvmm/vmm/internal/order"
)

// Stream is a queue of work on one device. Safe for concurrent use. The caller
// must Close it.
type Stream struct {
	// Immutable.
	dev    *Device
	handle driver.Stream // as NewStream made it, or its owner

	order order.Stream // the driver's stream, and what is known of it

	holds sync.WaitGroup // Holds that have not been released

	mu      lock.RWMutex // shared by calls that need queue and handle to stay valid
	closes  int          // calls of Close that have begun, but for those that failed
	closing atomic.Bool  // there are some: no new work; changes with mu held
	freed   bool         // its work has ended: it was waited for
	lost    error        // or lost with the device, and this is the error

	// Changes with order.World's lock held, while a capture that BeginCapture began here is open.
	uses captured // of its work

	// Guarded by dev.mu.
	waitedForBy map[*Reservation]struct{} // whose work includes the stream's: waitForWork waits for it; nil once it is freed
}

// newStream is a Stream without a handle yet.
func newStream(d *Device) *Stream {
	s := &Stream{dev: d, waitedForBy: map[*Reservation]struct{}{}}
	s.mu.At(lock.Stream, 0)
	return s
}

// NewStream makes a non-blocking stream. The caller must Close it.
func (d *Device) NewStream() (*Stream, error) {
	return d.makeStream(func(o *openDevice) (driver.Stream, error) { return o.NewStream() })
}

// NewStreamPriority makes a non-blocking stream whose waiting work goes before that of streams with a
// greater number, as far as the device can; see StreamPriorities. A priority outside that range is
// clamped to it. The caller must Close the Stream.
func (d *Device) NewStreamPriority(priority int) (*Stream, error) {
	return d.makeStream(func(o *openDevice) (driver.Stream, error) {
		p, ok := order.As[driver.StreamPriorities](o.Device)
		if !ok {
			return 0, fmt.Errorf("%w: streams with priorities", ErrNotSupported)
		}
		return p.NewStreamPriority(priority)
	})
}

// StreamPriorities returns the least and the most urgent priority for NewStreamPriority. The more urgent
// one is the smaller number. Both are 0 where the device has no priorities. A plain stream has 0.
func (d *Device) StreamPriorities() (least, greatest int, err error) {
	o, err := d.ensureOpen()
	if err == nil {
		if p, ok := order.As[driver.StreamPriorities](o.Device); ok {
			least, greatest, err = p.Priorities()
		}
		if errors.Is(err, ErrNotSupported) {
			err = nil
		}
	}
	return least, greatest, d.wrap("read stream priorities", 0, 0, err)
}

func (d *Device) makeStream(open func(*openDevice) (driver.Stream, error)) (*Stream, error) {
	s := newStream(d)
	err := d.track(s, "stream") // first, so that the device does not close meanwhile
	if err != nil {
		return nil, d.wrap("make stream", 0, 0, err)
	}
	o, err := d.ensureOpen()
	if err == nil {
		s.handle, err = open(o)
	}
	if err != nil {
		d.untrack(s)
		return nil, d.wrap("make stream", 0, 0, err)
	}
	s.order.Queue = s.handle
	s.order.Init(d.state.gate, s)
	return s, nil
}

// WrapStream makes a Stream of another library's (cuBLAS, NCCL, PyTorch), given its handle as a number.
// Close does not destroy that library's stream; call it before the library does. Calls on the Stream
// return ErrClosed if the device is closed, and ErrInvalid if it is nil. The caller must Close it.
//
// The default streams are 0 and 1, the legacy stream, and 2, the per-thread stream. All three are treated
// as the legacy stream, because goroutines change threads. The legacy stream and per-thread streams wait
// for each other.
func (d *Device) WrapStream(handle uintptr) *Stream {
	s := newStream(d)
	s.handle, s.order.Wrapped = driver.Stream(handle), true
	if handle > perThread { // else work is queued on the legacy stream
		s.order.Queue = s.handle
	}
	if err := d.track(s, "wrapped stream"); err != nil {
		s.freed = true
		s.closing.Store(true)
		s.order.End()
		return s
	}
	s.order.Show()
	s.order.Init(d.state.gate, s)
	return s
}

// perThread is CU_STREAM_PER_THREAD, the last of CUDA's special handles.
const perThread = 2

// with runs f with the stream kept from being freed.
func (s *Stream) with(f func(o *openDevice) error) error {
	o, err := s.use()
	if err != nil {
		return err
	}
	defer s.mu.RUnlock()
	return f(o)
}

// use keeps the stream from being freed until s.mu.RUnlock, unless there is an error.
func (s *Stream) use() (o *openDevice, err error) {
	if s == nil || s.dev == nil {
		return nil, errNoStream
	}
	s.mu.RLock()
	if s.closing.Load() {
		err = errStreamClosed
	} else { // the stream is open, and so is its device
		o, err = s.dev.state.ensureOpen()
	}
	if err != nil {
		s.mu.RUnlock()
	}
	return o, err
}

// withAlone is with, while no other call queues work on the stream: whether that is captured
// may change.
func (s *Stream) withAlone(f func(o *openDevice) error) error {
	if s == nil || s.dev == nil {
		return errNoStream
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing.Load() {
		return errStreamClosed
	}
	o, err := s.dev.state.ensureOpen()
	if err != nil {
		return err
	}
	return f(o)
}

var errStreamClosed = fmt.Errorf("%w: stream", ErrClosed)

// Hold keeps the stream from being closed until release, while the program itself queues work on it.
// handle is the driver's, a CUstream on CUDA. capturing reports whether the stream is being captured into
// a graph, which records the work and does not run it. That does not change until release, because
// BeginCapture and EndCapture return ErrBusy. So do EndCapture of the stream whose capture this one has
// joined, and a Wait that might make it join one. A Close waits for release. Call release once, and soon.
func (s *Stream) Hold() (handle driver.Stream, capturing bool, release func(), err error) {
	err = s.with(func(o *openDevice) (err error) {
		s.hold()
		if capturing, err = o.Capturing(s.order.Queue); err != nil {
			s.unhold()
		}
		return err
	})
	if err != nil {
		return 0, false, nil, s.wrap("hold stream", 0, 0, err)
	}
	return s.Queue(), capturing, sync.OnceFunc(s.unhold), nil
}

// hold keeps the stream from being closed, and captures of it from beginning and ending, until
// unhold. It needs s.mu, shared.
func (s *Stream) hold() {
	s.order.Hold()
	s.holds.Add(1)
}

func (s *Stream) unhold() {
	s.order.Unhold()
	s.holds.Done()
}

func (s *Stream) wrap(op string, p Ptr, n uint64, err error) error {
	if s == nil || s.dev == nil {
		return (*Device)(nil).wrap(op, p, n, err)
	}
	return s.dev.wrap(op, p, n, err)
}

// Copy queues a copy of n bytes. Either side is device memory, a peer's, or
// pinned host memory. An address that is not mapped, or that the device may not
// use, is refused at once.
func (s *Stream) Copy(dst, src Ptr, n uint64) error {
	return s.wrap("copy", dst, n, s.with(func(o *openDevice) error {
		write, read := Span{Addr: dst, Size: n, Access: AccessReadWrite}, Span{Addr: src, Size: n, Access: AccessRead}
		p, err := s.dev.lockSpans(s, write, read)
		if err != nil {
			return err
		}
		defer p.unlock()
		if err := s.remember(o, nil, write, read); err != nil {
			return err
		}
		return o.Copy(dst, src, n, s.queued())
	}))
}

// queued is the driver's stream, for one more piece of work.
func (s *Stream) queued() driver.Stream {
	s.order.Queued()
	return s.order.Queue
}

// Fill queues n elements of width bytes (1, 2 or 4), each set to pattern.
func (s *Stream) Fill(dst Ptr, pattern uint32, width int, n uint64) error {
	size := n * uint64(width)
	return s.wrap("fill", dst, size, s.with(func(o *openDevice) error {
		if width < 1 || size/uint64(width) != n {
			return fmt.Errorf("%w: %d elements of %d bytes", ErrInvalid, n, width)
		}
		write := Span{Addr: dst, Size: size, Access: AccessReadWrite}
		p, err := s.dev.lockSpans(s, write)
		if err != nil {
			return err
		}
		defer p.unlock()
		if err := s.remember(o, nil, write); err != nil {
			return err
		}
		return o.Fill(dst, pattern, width, n, s.queued())
	}))
}

// Record records an event after the work queued so far. The caller must Close the Event.
func (s *Stream) Record() (*Event, error) {
	var e *Event
	err := s.with(func(o *openDevice) (err error) {
		e, err = s.dev.makeEvent(func(e *Event) (err error) {
			e.f, err = o.NewEventAt(&s.order)
			e.on, e.e, e.at = o, e.f.Event(), e.f.Point()
			return err
		})
		return err
	})
	return e, s.wrap("record event", 0, 0, err)
}

// Wait makes later work of the stream wait for the event. Stream.After counts it. A stream that waits for
// an event of a capture joins that capture. So Wait returns ErrBusy if the stream is held (Hold), a
// capture is open, and the event may be of one.
func (s *Stream) Wait(e *Event) error {
	return s.wrap("wait for event", 0, 0, e.with(func() error {
		var again bool
		wait := func(alone bool) func(*openDevice) error {
			return func(o *openDevice) (err error) {
				if err = e.sameDriver(o); err != nil {
					return err
				}
				again, err = o.Wait(&s.order, e.e, e.on.state.gate, e.point, alone)
				return busyIfHeld(err)
			}
		}
		err := s.with(wait(false))
		if again && err == nil { // the stream may become part of a capture
			err = s.withAlone(wait(true))
		}
		return err
	}))
}

// Done reports, without waiting, whether all work queued so far has ended. It returns ErrCapturing while
// the stream is being captured; the capture continues.
func (s *Stream) Done() (done bool, err error) {
	err = s.with(func(o *openDevice) (err error) {
		stops := s.dev.state.parent.stops.ended.Load()
		if done, err = o.StreamDone(&s.order); done {
			err = s.stopped(stops)
		}
		return err
	})
	return done, s.wrap("query stream", 0, 0, err)
}

// Sync waits for the stream's work. It returns ErrCapturing while the stream is being captured; the
// capture continues.
func (s *Stream) Sync() error {
	err := s.with(func(*openDevice) error { return nil })
	if err != nil {
		return s.wrap("synchronise stream", 0, 0, err)
	}
	stops := s.dev.state.parent.stops.ended.Load()
	if err = s.sync(); err == nil {
		s.dev.state.parent.runSyncHooks()
		err = s.stopped(stops)
	}
	return s.wrap("synchronise stream", 0, 0, err)
}

// Device is the device that made or wrapped the stream.
func (s *Stream) Device() *Device { return nonnil.Of(s).dev }

// Usable returns nil if work that is queued on the stream now would run. Otherwise it returns ErrClosed,
// ErrInvalid for no stream, ErrCapturing while the stream is being captured, or the error of a lost
// device. It calls the driver only if the stream may be in a capture that this package knows of. That may
// be so during a capture by BeginCapture, for a stream of WrapStream, and for one that waited for an
// event of a capture.
func (s *Stream) Usable() error {
	if s != nil && s.dev != nil && !s.closing.Load() && !s.order.MayBeCaptured() {
		return nil
	}
	return s.wrap("use stream", 0, 0, s.with(s.runsWork))
}

// runsWork is nil if what is queued on the stream now runs, as far as the driver has to be
// asked: for ErrCapturing.
func (s *Stream) runsWork(o *openDevice) error {
	if !s.order.MayBeCaptured() {
		return nil
	}
	capturing, err := o.Capturing(s.order.Queue)
	if err == nil && capturing {
		err = fmt.Errorf("%w: what is queued on the stream becomes part of a graph", ErrCapturing)
	}
	return err
}

// Queue is the handle, as Hold returns it, of the driver's stream on which this package queues work. The
// program can use it for its own calls. It equals Raw, except that all default streams are treated as the
// legacy one; see Device.WrapStream.
func (s *Stream) Queue() driver.Stream {
	s = nonnil.Of(s)
	s.order.Show()
	return s.order.Queue
}

// Raw is the driver's handle, a CUstream on CUDA, as NewStream made it or WrapStream got it.
func (s *Stream) Raw() driver.Stream {
	s = nonnil.Of(s)
	s.order.Show()
	return s.handle
}

// Close waits for the stream's work, removes the stream from every UsedBy and, unless it was wrapped,
// frees it. While the stream is being captured, Close returns ErrCapturing and changes nothing. Twice is
// fine, and so is a nil Stream.
func (s *Stream) Close() (err error) {
	if s == nil || s.dev == nil {
		return nil
	}
	defer func() { err = s.wrap("close stream", 0, 0, err) }()
	if err := s.beginClose(); err != nil {
		return err
	}
	s.holds.Wait() // what they queue is waited for next
	return s.endClose(s.sync())
}

// beginClose lets no new work in, unless the stream is being captured.
func (s *Stream) beginClose() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.freed {
		return nil
	}
	o, err := s.dev.state.ensureOpen()
	if err == nil {
		err = o.EndLeft(&s.order)
	}
	if err == nil {
		err = o.NotCapturing(&s.order)
	}
	if err != nil && !lost(err) {
		return err
	}
	s.closes++
	s.closing.Store(true)
	return nil
}

// endClose gives the stream back, one of another library's excepted, if its work was waited for
// or is lost. After an error it undoes beginClose.
func (s *Stream) endClose(waited error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.freed {
		return nil // by another Close
	}
	err := waited
	if err == nil || lost(err) {
		var o *openDevice
		if o, err = s.dev.state.ensureOpen(); err == nil {
			err = o.Free(&s.order)
		}
	}
	if err != nil {
		s.closes--
		s.closing.Store(s.closes > 0)
		return err
	}
	s.freed, s.lost = true, waited
	s.forget()
	return waited
}

// forget takes a stream that is freed off all lists. Until it has run, reservations wait for its work.
// It needs s.mu.
func (s *Stream) forget() {
	s.dev.mu.Lock()
	users := s.waitedForBy
	s.waitedForBy = nil
	s.dev.mu.Unlock()
	for r := range users {
		r.mu.Lock()
		// AppendOns of lost work have not run: they stay, so that WaitWritten returns the
		// stream's error.
		r.users.Ended(s, s.lost == nil)
		r.mu.Unlock()
	}
	s.dev.untrack(s)
}

// notCapturing is ErrCapturing while the stream is being captured.
func (s *Stream) notCapturing() error {
	if s == nil || s.dev == nil {
		return errNoStream
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.freed {
		return nil
	}
	o, err := s.dev.state.ensureOpen()
	if err != nil {
		return err
	}
	return o.NotCapturing(&s.order)
}

var errNoStream = fmt.Errorf("%w: no stream", ErrInvalid)

// Point is the number of the last event that this package has begun to record on the stream. Work that
// was queued before Point returned p is covered by every event with a number above p. Numbers only rise.
// Some belong to no event, because checking whether work has ended uses one, too.
//
// Point, After and Finished say which work is known to come before which. They cost no driver call and
// take no lock. Only calls of this package count: Record, Wait, Fence and WaitFence of a Stream, Record
// of an Event, and the calls that wait for those or query them. Events that other libraries record do not
// count, nor do waits that the program makes on Raw handles. Events made with EventInterprocess do not
// count, because other processes may record them. Two Streams that wrap one handle are two.
//
// Events recorded and waits made while the stream is captured do not count. A capture begun without
// BeginCapture is noticed on streams of WrapStream, and on those that join it by waiting for an event of
// this package.
func (s *Stream) Point() uint64 {
	if s == nil {
		return 0
	}
	return s.order.Point()
}

// After is the number of the last event of other that this stream has waited for. Work that is queued
// here from now on comes after it. It is 0 if there is none, or if other is closed. Waits that the
// event's stream made before the event count, too. After may leave out events that other.Finished covers,
// so call After before Finished. For the stream itself, it is Point. See Point for what counts.
func (s *Stream) After(other *Stream) uint64 {
	if s == nil || other == nil {
		return 0
	}
	return s.order.After(&other.order)
}

// Finished is a number n such that work queued before Point returned a number below n is known to have
// ended. It is math.MaxUint64 once the stream is closed.
//
// It rises when Stream.Sync, Event.Sync or Fence.Sync succeeds, or Done of one of them returns true. It
// then also rises on streams whose work comes before that work. It rises when Device.Sync succeeds, but
// for a stream of WrapStream only once an event was recorded on it, which shows that the stream is of the
// device's context. ErrDeviceLost raises nothing; the work of a lost device counts as ended when its
// streams are closed.
func (s *Stream) Finished() uint64 {
	if s == nil {
		return 0
	}
	return s.order.Finished()
}

// checkUsable is nil if the stream is open and of this driver.
func (s *Stream) checkUsable(parent *driverState) error {
	if s == nil || s.dev == nil {
		return errNoStream
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closing.Load() {
		return errStreamClosed
	}
	if s.dev.state.parent != parent {
		return fmt.Errorf("%w: the stream is of another driver", ErrInvalid)
	}
	return nil
}
