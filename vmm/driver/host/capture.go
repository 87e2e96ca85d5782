//go:build linux

package host

import (
	"slices"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// capture is a stream capture: the work of its streams, which becomes a graph.
type capture struct {
	id        uint64
	mode      driver.CaptureMode
	origin    *stream   // it began on
	streams   []*stream // origin, and those that waited for an event of the capture
	nodes     []node    // in the order in which they were captured
	destroyed bool      // by a call that it forbids
	ended     bool
}

// destroy marks the capture as destroyed by a call that it forbids.
func (c *capture) destroy(verb string) error {
	c.destroyed = true
	return refuse(verb, driver.ErrCapturing, "the call destroys the capture")
}

// destroyCaptures destroys the captures of all streams, as a wait for the whole device does.
func (c *context) destroyCaptures(verb string) error { return c.destroyThose(verb, true) }

// destroyUnrelaxed spares the relaxed captures, as allocating and freeing plain memory do.
func (c *context) destroyUnrelaxed(verb string) error { return c.destroyThose(verb, false) }

func (c *context) destroyThose(verb string, relaxed bool) error {
	var err error
	for s := range c.allStreams() {
		if s.capture != nil && (relaxed || s.capture.mode != driver.CaptureRelaxed) {
			err = s.capture.destroy(verb)
		}
	}
	return err
}

// checkWork accepts captured work unless the capture is destroyed.
func (c *capture) checkWork(verb string) error {
	if c.destroyed {
		return refuse(verb, driver.ErrCapturing, "the stream's capture was destroyed and not ended")
	}
	return nil
}

// captureWork adds work to the stream's capture, after what the stream has captured and
// waited for.
func (s *stream) captureWork(verb string, w work) error {
	c := s.capture
	if err := c.checkWork(verb); err != nil {
		return err
	}
	c.nodes = append(c.nodes, node{work: w, after: s.after})
	s.after = []int{len(c.nodes) - 1}
	return nil
}

// captureWait makes later captured work of the stream come after what was captured
// before the event. A stream that is not being captured becomes part of the capture.
func (s *stream) captureWait(verb string, ev *event) error {
	c := ev.capture
	switch {
	case c.ended:
		return refuse(verb, driver.ErrInvalid, "the event was recorded in a capture and never since")
	case s.capture == nil && s == s.context.legacy:
		return refuse(verb, driver.ErrInvalid, "the legacy stream cannot be captured")
	case s.capture == nil:
		if err := c.checkWork(verb); err != nil {
			return err
		}
		s.capture = c
		c.streams = append(c.streams, s)
		s.context.keepThreadStream(s)
	case s.capture != c:
		return refuse(verb, driver.ErrInvalid, "the event was recorded in another capture")
	}
	// Events and nodes share the old slices, so this makes a new one.
	s.after = slices.Concat(s.after, ev.after)
	slices.Sort(s.after)
	s.after = slices.Compact(s.after)
	return nil
}

// joined reports whether the origin's next work would come after all other work.
func (c *capture) joined() bool {
	before := make([]bool, len(c.nodes))
	for _, i := range c.origin.after {
		before[i] = true
	}
	for i, n := range slices.Backward(c.nodes) { // what a node comes after is before it here
		if !before[i] {
			return false
		}
		for _, j := range n.after {
			before[j] = true
		}
	}
	return true
}

// end ends the capture for all its streams.
func (c *capture) end() {
	c.ended = true
	for _, s := range c.streams {
		s.capture, s.after = nil, nil
		s.dropIfIdle()
	}
	c.streams = nil
}

// removeStream removes a stream that goes away. The capture ends with its origin, and
// without another of its streams it cannot become a graph.
func (c *capture) removeStream(s *stream) {
	if s == c.origin {
		c.end()
		return
	}
	c.destroyed = true
	c.streams = slices.DeleteFunc(c.streams, func(x *stream) bool { return x == s })
	s.capture, s.after = nil, nil
}

// BeginCapture starts a capture. Work that is queued already is not part of it.
func (v *device) BeginCapture(s driver.Stream, mode driver.CaptureMode) error {
	const verb = "BeginCapture"
	end := v.changes(verb, s, 0)
	defer end()
	return v.onStream(verb, s, func(x *stream) error {
		switch {
		case mode > driver.CaptureRelaxed:
			return refuse(verb, driver.ErrInvalid, "capture mode %d", mode)
		case x == v.context.legacy:
			return refuse(verb, driver.ErrInvalid, "the legacy stream cannot be captured")
		case x.capture != nil:
			return refuse(verb, driver.ErrInvalid, "stream %d is being captured", s)
		}
		v.context.d.lastID++
		x.capture = &capture{id: v.context.d.lastID, mode: mode, origin: x, streams: []*stream{x}}
		v.context.keepThreadStream(x)
		return nil
	})
}

// EndCapture ends the capture, also one that was destroyed, and returns its graph.
func (v *device) EndCapture(s driver.Stream) (g driver.Graph, err error) {
	const verb = "EndCapture"
	end := v.changes(verb, s, 0)
	defer end()
	err = v.onStream(verb, s, func(x *stream) error {
		c := x.capture
		if c == nil {
			return refuse(verb, driver.ErrInvalid, "stream %d is not being captured", s)
		}
		if x != c.origin {
			c.destroyed = true
			return refuse(verb, driver.ErrInvalid, "the capture did not begin on stream %d", s)
		}
		// Before the end, which forgets what the streams have captured.
		unjoined := !c.joined()
		c.end()
		switch {
		case c.destroyed:
			return refuse(verb, driver.ErrInvalid, "the capture of stream %d was destroyed", s)
		case unjoined:
			return refuse(verb, driver.ErrInvalid, "another stream has captured work that stream %d does not wait for", s)
		}
		v.context.d.lastID++
		g = driver.Graph(v.context.d.lastID)
		v.context.graphs[g] = c.nodes
		return nil
	})
	return g, err
}

// CaptureID is the number of the stream's capture.
func (v *device) CaptureID(s driver.Stream) (id uint64, err error) {
	const verb = "CaptureID"
	err = v.onStream(verb, s, func(x *stream) error {
		if x.capture != nil {
			id = x.capture.id
		}
		_, err := x.checkImplicitCapture(verb)
		return err
	})
	return id, err
}

// Capturing reports whether the stream is being captured.
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

// StreamDone reports whether the stream has no work left. The work of all threads'
// streams counts as the legacy stream's too.
func (v *device) StreamDone(s driver.Stream) (bool, error) {
	const verb = "StreamDone"
	end := v.looks(verb, s)
	defer end()
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
