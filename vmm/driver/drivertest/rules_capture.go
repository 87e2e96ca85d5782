package drivertest

import (
	"errors"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

func captureRules() []Rule {
	return []Rule{
		{Name: "capture-grow", Says: "create, map, set access and unmap work during a capture, in every mode", Source: measured, run: onDevice(captureGrow)},
		{Name: "capture-sync", Says: "a wait for the context or for a capturing stream is ErrCapturing and destroys the capture, in every mode", Source: measured, run: onDevice(captureSync)},
		{Name: "capture-spared", Says: "waiting for an event or another stream, and a synchronous copy, destroy no capture", Source: contract(9), run: onChunks(1, captureSpared)},
		{Name: "capture-beside", Says: "making and freeing streams, events and pinned memory, and opening and closing a device, destroy no capture of another goroutine", Source: measured, run: onDevice(captureBeside)},
		{Name: "capture-apart", Says: "records and queries of a stream, and waits for it and its events, destroy no capture of another stream that another goroutine begins and ends", Source: measured, run: onInterface(captureApart)},
		{Name: "capture-legacy", Says: "while a thread's stream is captured, Capturing of the legacy stream returns ErrCapturing and the capture goes on", Source: measured, run: onDevice(captureLegacy)},
		{Name: "capture-done", Says: "StreamDone of a capturing stream returns ErrCapturing and the capture goes on, as it does after StreamDone of another stream", Source: seam, run: onDevice(captureDone)},
		{Name: "capture-only", Says: "captured work does not run", Source: guide, run: onChunks(1, captureOnly)},
		{Name: "capture-pairs", Says: "beginning twice, ending what was not begun, and unknown streams and modes are ErrInvalid", Source: manual, run: onInterface(capturePairs)},
	}
}

// capture begins a capture on a new stream. CUDA wants a capture to end on the
// thread that began it, so the case stays on one thread.
func (c *check) capture(d driver.Device, m driver.CaptureMode) driver.Stream {
	c.Helper()
	runtime.LockOSThread()
	c.Cleanup(runtime.UnlockOSThread)
	s := c.stream(d)
	c.optional(as[driver.Grapher](c, d).BeginCapture(s, m), "Grapher")
	c.capturing(d, s, true)
	return s
}

func (c *check) capturing(d driver.Device, s driver.Stream, want bool) {
	c.Helper()
	got := valueOf(d.Capturing(s)).must(c, "ask whether the stream is captured")
	equal(c, got, want, "the stream is captured")
}

// survives ends a capture and checks that it was not destroyed.
func (c *check) survives(d driver.Device, s driver.Stream) {
	c.Helper()
	c.must(endCapture(as[driver.Grapher](c, d), s), "end the capture")
	c.capturing(d, s, false)
}

// endCapture ends a capture and drops the graph.
func endCapture(d driver.Grapher, s driver.Stream) error {
	return valueOf(d.EndCapture(s)).then(d.FreeGraph)
}

func modes() []driver.CaptureMode {
	return []driver.CaptureMode{driver.CaptureGlobal, driver.CaptureThreadLocal, driver.CaptureRelaxed}
}

func captureGrow(c *check, d driver.Device) {
	p := c.reserve(2 * c.gran)
	for _, m := range modes() {
		s := c.capture(d, m)
		for i := range 2 {
			h := c.create(c.gran)
			c.mapHandle(c.chunk(p, i), c.gran, h)
			c.access(c.chunk(p, i), c.gran, grant(0, driver.AccessReadWrite))
			c.release(h)
		}
		c.unmap(p, 2*c.gran)
		c.survives(d, s)
	}
}

func captureSync(c *check, d driver.Device) {
	for _, m := range modes() {
		for _, wait := range []struct {
			doing string
			f     func(driver.Stream) error
		}{
			{"sync the device", func(driver.Stream) error { return d.Sync() }},
			{"sync by ordinal", func(driver.Stream) error { return c.d.SyncIfActive(0) }},
			{"sync the capturing stream", d.SyncStream},
		} {
			s := c.capture(d, m)
			c.want(wait.f(s), wait.doing, driver.ErrCapturing)
			c.capturing(d, s, true)
			c.want(endCapture(as[driver.Grapher](c, d), s), "end the destroyed capture", driver.ErrInvalid)
			c.capturing(d, s, false)
			c.must(d.SyncStream(s), "sync the stream afterwards")
			c.must(d.Sync(), "sync the device afterwards")
		}
	}
}

func captureSpared(c *check, d driver.Device, p driver.Ptr) {
	other := c.stream(d)
	e := c.event(d, driver.EventBlocking)
	for i, m := range modes() {
		s := c.capture(d, m)
		c.fillAll(d, p, byte(i+1), other)
		c.record(d, e, other)
		c.must(d.SyncEvent(e), "sync an event of another stream")
		c.must(d.SyncStream(other), "sync another stream")
		c.done(d, e, true)
		c.reads(d, p, c.gran, byte(i+1))
		c.write(d, p, c.gran, 0)
		c.capturing(d, other, false)
		c.survives(d, s)
	}
}

// captureBeside captures on this goroutine's thread and makes the other calls on
// other threads. The last device to close may end its context.
func captureBeside(c *check, d driver.Device) {
	far := len(c.info) - 1 // with several devices, one whose context is made anew
	for _, m := range modes() {
		s := c.capture(d, m)
		for _, beside := range []struct {
			doing string
			f     func() error
		}{
			{"make and free a stream", func() error { return valueOf(d.NewStream()).then(d.FreeStream) }},
			{"make and free an event", func() error { return valueOf(d.NewEvent(driver.EventTiming)).then(d.FreeEvent) }},
			{"make and free pinned memory", func() error {
				pinner := as[driver.HostAllocator](c, d)
				p, _, err := pinner.AllocHost(4096)
				if errors.Is(err, driver.ErrNotSupported) {
					return nil
				} else if err != nil {
					return err
				}
				return pinner.FreeHost(p)
			}},
			{"open and close a device", func() error { return valueOf(c.d.Open(0)).then(driver.Device.Close) }},
			{"open and close a device of its own", func() error { return valueOf(c.d.Open(far)).then(driver.Device.Close) }},
		} {
			c.must(c.returns(beside.doing, beside.f), "%s beside a capture", beside.doing)
			c.capturing(d, s, true)
		}
		c.survives(d, s)
	}
}

func captureApart(c *check, d driver.Device, i driver.Grapher) {
	s, other := c.stream(d), c.stream(d)
	e := c.event(d, 0)
	var rounds atomic.Int64
	stop, ended := make(chan struct{}), make(chan error, 1)
	end := sync.OnceFunc(func() { close(stop) })
	defer end()
	look := func() error {
		return errors.Join(d.Record(e, other), errOf(d.Done(e)), errOf(d.StreamDone(other)), d.SyncEvent(e), d.SyncStream(other))
	}
	go func() {
		for {
			select {
			case <-stop:
				ended <- nil
				return
			default:
			}
			if err := look(); err != nil {
				ended <- err
				return
			}
			rounds.Add(1)
		}
	}()
	for range 50 {
		c.optional(i.BeginCapture(s, driver.CaptureRelaxed), "Grapher")
		for from := rounds.Load(); rounds.Load() < from+2 && len(ended) == 0; {
			runtime.Gosched()
		}
		c.survives(d, s)
	}
	end()
	c.must(<-ended, "look at another stream beside captures")
}

func captureLegacy(c *check, d driver.Device) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	i := as[driver.Grapher](c, d)
	for _, m := range modes() {
		c.optional(i.BeginCapture(perThread, m), "Grapher")
		for _, s := range []driver.Stream{0, legacy} {
			c.want(errOf(d.Capturing(s)), "ask whether the legacy stream is captured", driver.ErrCapturing)
		}
		c.capturing(d, perThread, true)
		c.survives(d, perThread)
		c.capturing(d, legacy, false)
	}
}

func captureDone(c *check, d driver.Device) {
	other := c.stream(d)
	for _, m := range modes() {
		s := c.capture(d, m)
		c.want(errOf(d.StreamDone(s)), "ask whether the capturing stream is done", driver.ErrCapturing)
		equal(c, valueOf(d.StreamDone(other)).must(c, "ask for another stream"), true, "a stream without work is done")
		c.capturing(d, s, true)
		c.survives(d, s)
	}
}

func captureOnly(c *check, d driver.Device, p driver.Ptr) {
	s := c.capture(d, driver.CaptureRelaxed)
	c.fillAll(d, p, 1, s)
	c.survives(d, s)
	c.sync(d, s)
	c.reads(d, p, c.gran, 0)
	c.fillAll(d, p, 2, s)
	c.sync(d, s)
	c.reads(d, p, c.gran, 2)
}

func capturePairs(c *check, d driver.Device, i driver.Grapher) {
	s := c.capture(d, driver.CaptureRelaxed)
	c.want(i.BeginCapture(s, driver.CaptureRelaxed), "begin again", driver.ErrInvalid)
	c.survives(d, s)
	c.want(endCapture(i, s), "end again", driver.ErrInvalid)
	c.want(i.BeginCapture(s, 99), "begin in an unknown mode", driver.ErrInvalid)
	c.sync(d, s)
}
