//go:build linux

package host

import "github.com/cuvmm/cuvmm/vmm/driver"

// capture is a stream capture. What is captured is checked and thrown away:
// what counts here is what a capture forbids.
type capture struct {
	mode      driver.CaptureMode
	destroyed bool // by a call that it forbids
	ended     bool
}

// destroy is what a call that a capture forbids does to it.
func (c *capture) destroy(verb string) error {
	c.destroyed = true
	return rule(verb, driver.ErrCapturing, "the call destroys the capture")
}

// destroyCaptures is what a wait for the whole device does to the captures of
// its streams. Allocating and freeing plain memory spares the relaxed ones.
func (c *context) destroyCaptures(verb string, relaxed bool) error {
	var err error
	for s := range c.all() {
		if s.capture != nil && (relaxed || s.capture.mode != driver.CaptureRelaxed) {
			err = s.capture.destroy(verb)
		}
	}
	return err
}

// add takes captured work, which is none once the capture is destroyed.
func (c *capture) add(verb string) error {
	if c.destroyed {
		return rule(verb, driver.ErrCapturing, "the stream's capture was destroyed and not ended")
	}
	return nil
}

// BeginCapture starts a capture. Work that is queued already is not part of it.
func (v *device) BeginCapture(s driver.Stream, mode driver.CaptureMode) error {
	const verb = "BeginCapture"
	return v.onStream(verb, s, func(x *stream) error {
		switch {
		case mode > driver.CaptureRelaxed:
			return rule(verb, driver.ErrInvalid, "capture mode %d", mode)
		case x == v.context.legacy:
			return rule(verb, driver.ErrInvalid, "the legacy stream cannot be captured")
		case x.capture != nil:
			return rule(verb, driver.ErrInvalid, "stream %d is being captured", s)
		}
		x.capture = &capture{mode: mode}
		v.context.keepThread(x)
		return nil
	})
}

// EndCapture ends the capture, also one that was destroyed.
func (v *device) EndCapture(s driver.Stream) error {
	const verb = "EndCapture"
	return v.onStream(verb, s, func(x *stream) error {
		c := x.capture
		if c == nil {
			return rule(verb, driver.ErrInvalid, "stream %d is not being captured", s)
		}
		c.ended = true
		x.capture = nil
		x.rest()
		if c.destroyed {
			return rule(verb, driver.ErrInvalid, "the capture of stream %d was destroyed", s)
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
		_, err := x.implicit(verb) // to ask ends no capture
		return err
	})
	return yes, err
}

// StreamDone says whether the stream has work left. The legacy stream has that of
// all threads' streams too.
func (v *device) StreamDone(s driver.Stream) (bool, error) {
	const verb = "StreamDone"
	var done bool
	err := v.onStream(verb, s, func(x *stream) error {
		if x.capture != nil {
			return rule(verb, driver.ErrCapturing, "stream %d is being captured", s)
		}
		if _, err := x.implicit(verb); err != nil {
			return err
		}
		done = len(x.last()) == 0
		if x == v.context.legacy {
			for _, t := range v.context.threads {
				done = done && len(t.last()) == 0
			}
		}
		return nil
	})
	return done, err
}

// onStream calls f with a stream of the device and work held.
func (v *device) onStream(verb string, s driver.Stream, f func(*stream) error) error {
	if err := v.enter(verb); err != nil {
		return err
	}
	v.context.d.work.Lock()
	defer v.context.d.work.Unlock()
	x, err := v.context.stream(verb, s)
	if err != nil {
		return err
	}
	return f(x)
}
