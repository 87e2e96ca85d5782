//go:build linux

package host

import "github.com/cuvmm/cuvmm/vmm/driver"

// capture is a stream capture. Captured work is checked and dropped: only what a
// capture forbids matters here.
type capture struct {
	mode      driver.CaptureMode
	destroyed bool // by a call that it forbids
	ended     bool
}

// destroy marks the capture as destroyed by a call that it forbids.
func (c *capture) destroy(verb string) error {
	c.destroyed = true
	return refuse(verb, driver.ErrCapturing, "the call destroys the capture")
}

// destroyCaptures destroys the captures of all streams, as a wait for the whole
// device does. Without relaxed it spares the relaxed ones, as allocating and freeing
// plain memory do.
func (c *context) destroyCaptures(verb string, relaxed bool) error {
	var err error
	for s := range c.allStreams() {
		if s.capture != nil && (relaxed || s.capture.mode != driver.CaptureRelaxed) {
			err = s.capture.destroy(verb)
		}
	}
	return err
}

// addWork accepts captured work unless the capture is destroyed.
func (c *capture) addWork(verb string) error {
	if c.destroyed {
		return refuse(verb, driver.ErrCapturing, "the stream's capture was destroyed and not ended")
	}
	return nil
}

// BeginCapture starts a capture. Work that is queued already is not part of it.
func (v *device) BeginCapture(s driver.Stream, mode driver.CaptureMode) error {
	const verb = "BeginCapture"
	return v.onStream(verb, s, func(x *stream) error {
		switch {
		case mode > driver.CaptureRelaxed:
			return refuse(verb, driver.ErrInvalid, "capture mode %d", mode)
		case x == v.context.legacy:
			return refuse(verb, driver.ErrInvalid, "the legacy stream cannot be captured")
		case x.capture != nil:
			return refuse(verb, driver.ErrInvalid, "stream %d is being captured", s)
		}
		x.capture = &capture{mode: mode}
		v.context.keepThreadStream(x)
		return nil
	})
}

// EndCapture ends the capture, also one that was destroyed.
func (v *device) EndCapture(s driver.Stream) (driver.Graph, error) {
	const verb = "EndCapture"
	return 0, v.onStream(verb, s, func(x *stream) error {
		c := x.capture
		if c == nil {
			return refuse(verb, driver.ErrInvalid, "stream %d is not being captured", s)
		}
		c.ended = true
		x.capture = nil
		x.dropIfIdle()
		if c.destroyed {
			return refuse(verb, driver.ErrInvalid, "the capture of stream %d was destroyed", s)
		}
		return nil
	})
}

// Capturing says whether the stream is being captured.
func (v *device) Capturing(s driver.Stream) (bool, error) {
	var yes bool
	const verb = "Capturing"
	err := v.onStream(verb, s, func(x *stream) error {
		yes = x.capture != nil
		_, err := x.checkImplicitCapture(verb) // unlike checkWork this destroys no capture
		return err
	})
	return yes, err
}

// StreamDone says whether the stream has no work left. The work of all threads'
// streams counts as the legacy stream's too.
func (v *device) StreamDone(s driver.Stream) (bool, error) {
	const verb = "StreamDone"
	var done bool
	err := v.onStream(verb, s, func(x *stream) error {
		if x.capture != nil {
			return refuse(verb, driver.ErrCapturing, "stream %d is being captured", s)
		}
		if _, err := x.checkImplicitCapture(verb); err != nil {
			return err
		}
		done = len(x.lastOps()) == 0
		if x == v.context.legacy {
			for _, t := range v.context.threads {
				done = done && len(t.lastOps()) == 0
			}
		}
		return nil
	})
	return done, err
}

// onStream calls f with a stream of the device, under workMu.
func (v *device) onStream(verb string, s driver.Stream, f func(*stream) error) error {
	if err := v.checkOpen(verb); err != nil {
		return err
	}
	v.context.d.workMu.Lock()
	defer v.context.d.workMu.Unlock()
	x, err := v.context.stream(verb, s)
	if err != nil {
		return err
	}
	return f(x)
}

func (v *device) CaptureID(driver.Stream) (uint64, error)              { panic("TODO") }
func (v *device) FreeGraph(driver.Graph) error                         { return nil }
func (v *device) Instantiate(driver.Graph) (driver.GraphExec, error)   { panic("TODO") }
func (v *device) FreeGraphExec(driver.GraphExec) error                 { panic("TODO") }
func (v *device) UpdateGraphExec(driver.GraphExec, driver.Graph) error { panic("TODO") }
func (v *device) LaunchGraph(driver.GraphExec, driver.Stream) error    { panic("TODO") }
