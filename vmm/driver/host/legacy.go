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

// byDefault finds the stream that a number stands for by itself, nil if it is none
// of those. The caller holds work.
func (c *context) byDefault(s driver.Stream) *stream {
	switch s {
	case 0, legacyStream:
		return c.legacy
	case perThreadStream:
		tid := unix.Gettid()
		if x := c.threads[tid]; x != nil {
			return x
		}
		return &stream{context: c, thread: tid} // keepThread enters it when there is something to keep
	}
	return nil
}

// order puts a wait in front of what comes next: the legacy stream runs after the
// work that all threads' streams have, and theirs runs after the work that it
// has. Streams that were made are non-blocking and have no part in it. The caller
// holds work.
func (s *stream) order() {
	c := s.context
	var before []<-chan struct{}
	add := func(x *stream) {
		for _, o := range x.last() {
			if reached := o.pending(); reached != nil {
				before = append(before, reached)
			}
		}
	}
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
	s.push(&op{run: func(c *context) bool {
		for _, reached := range before {
			select {
			case <-reached:
			case <-c.over:
				return false
			}
		}
		return true
	}})
}

// implicit refuses what would make the legacy stream part of the capture of a
// thread's stream, which it waits for.
func (s *stream) implicit(verb string) (captured *capture, err error) {
	if s != s.context.legacy {
		return nil, nil //nolint:nilnil // no capture is no error
	}
	for _, t := range s.context.threads {
		if t.capture != nil {
			return t.capture, rule(verb, driver.ErrCapturing, "the legacy stream waits for a thread's stream, which is being captured")
		}
	}
	return nil, nil //nolint:nilnil // as above
}

// mayWork is implicit for work of the stream and waits for it, which end the capture.
func (s *stream) mayWork(verb string) error {
	captured, err := s.implicit(verb)
	if err != nil {
		captured.destroyed = true
	}
	return err
}

// keepThread remembers a thread's stream that has work or a capture.
func (c *context) keepThread(s *stream) {
	if s.thread != 0 {
		c.threads[s.thread] = s
	}
}

// dropThread forgets a thread's stream that has neither work nor a capture: it is
// made anew when the thread comes back.
func (c *context) dropThread(s *stream) {
	if s.thread != 0 && s.capture == nil && len(s.queue) == 0 {
		delete(c.threads, s.thread)
	}
}

// all is every stream there is. The caller holds work.
func (c *context) all() iter.Seq[*stream] {
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
