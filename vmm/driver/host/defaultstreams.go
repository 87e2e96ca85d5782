//go:build linux

package host

import (
	"iter"

	"github.com/cuvmm/cuvmm/vmm/driver"
	"golang.org/x/sys/unix"
)

// The default streams, as CUDA numbers them. 0 and 1 are one stream of the
// context; 2 is a stream of the calling thread.
const (
	legacyStream    driver.Stream = 1
	perThreadStream driver.Stream = 2
	lastDefault                   = uint64(perThreadStream)
)

// defaultStream finds the default stream of a number, or returns nil. The caller holds workMu.
func (c *context) defaultStream(s driver.Stream) *stream {
	switch s {
	case 0, legacyStream:
		return c.legacy
	case perThreadStream:
		tid := unix.Gettid()
		if x := c.threads[tid]; x != nil {
			return x
		}
		return &stream{context: c, thread: tid} // keepThreadStream keeps it once it has work
	}
	return nil
}

// orderDefaults queues a wait before the next work of a default stream: the legacy
// stream waits for the work that all threads' streams have now, and each of those
// for the work that the legacy stream has now. Streams of NewStream are
// non-blocking and take no part. The caller holds workMu.
func (s *stream) orderDefaults() {
	c := s.context
	var before []<-chan struct{}
	add := func(x *stream) {
		s.follow(x.frees())
		for _, o := range x.lastOps() {
			if reached := o.pending(); reached != nil {
				before = append(before, reached)
			}
		}
	}
	// Channels, and no streams: work that is queued later does not count.
	switch {
	case s == c.legacy:
		for _, t := range c.threads {
			add(t)
		}
	case s.thread != 0:
		add(c.legacy)
	}
	if before == nil {
		return
	}
	s.push(waitFor(before...))
}

// checkImplicitCapture refuses a use of the legacy stream while a thread's stream is
// captured: the legacy stream waits for that one, and so would join its capture.
func (s *stream) checkImplicitCapture(verb string) (captured *capture, err error) {
	if s != s.context.legacy {
		return nil, nil //nolint:nilnil // no capture is no error
	}
	for _, t := range s.context.threads {
		if t.capture != nil {
			return t.capture, refuse(verb, driver.ErrCapturing, "the legacy stream waits for a thread's stream, which is being captured")
		}
	}
	return nil, nil //nolint:nilnil // as above
}

// checkWork is checkImplicitCapture for queueing work and for waits. Those destroy
// the capture.
func (s *stream) checkWork(verb string) error {
	captured, err := s.checkImplicitCapture(verb)
	if err != nil {
		captured.destroyed = true
	}
	return err
}

// keepThreadStream lists a thread's stream that gets work or a capture.
func (c *context) keepThreadStream(s *stream) {
	if s.thread != 0 {
		c.threads[s.thread] = s
	}
}

// dropThreadStream removes a thread's stream that has neither work nor a capture.
// The thread's next use of stream 2 makes another.
func (c *context) dropThreadStream(s *stream) {
	if s.thread != 0 && s.capture == nil && len(s.queue) == 0 {
		s.forgetFrees()
		delete(c.threads, s.thread)
	}
}

// allStreams is every stream of the context. The caller holds workMu.
func (c *context) allStreams() iter.Seq[*stream] {
	return func(yield func(*stream) bool) {
		for _, s := range c.streams {
			if !yield(s) {
				return
			}
		}
		for _, s := range c.threads {
			if !yield(s) {
				return
			}
		}
		yield(c.legacy)
	}
}
