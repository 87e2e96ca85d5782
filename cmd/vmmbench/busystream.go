package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

const (
	// busyQueued is how many copies of a busy stream are queued at most.
	busyQueued = 4
	// The bytes of one copy: about 0.1 ms of a GPU, 1 ms of the host. With less,
	// the stream would run out of work while its goroutine waits to be scheduled.
	// With more, a call that waits for the whole device would wait too long.
	busyCopy     = 256 << 20
	busyHostCopy = 8 << 20
)

// busyName adds the number of busy streams to a group's name, if there are any.
func busyName(name string, n int) string {
	if n == 0 {
		return name
	}
	return fmt.Sprintf("%s/busy-%d", name, n)
}

// busyStreams are n streams that copy as long as a group is measured.
type busyStreams struct {
	dev     device
	n       int
	streams []*busyStream
}

// setup is for group.setup. It starts the streams, and undo stops them.
func (s *busyStreams) setup(ctx context.Context) (undo func() error, err error) {
	quit := make(chan struct{})
	undo = func() (err error) {
		close(quit) // for all before the first wait, else each wait is as long as the others' copies
		for _, b := range s.streams {
			<-b.ended
			if b.err != nil {
				err = errors.Join(err, fmt.Errorf("busy stream: %w", b.err))
			}
			err = errors.Join(err, b.undo.close())
		}
		s.streams = nil
		return err
	}
	for range s.n {
		b := &busyStream{raw: s.dev.raw, queued: make(chan struct{}, 1), ended: make(chan struct{})}
		if err := b.prepare(s.dev); err != nil {
			return nil, errors.Join(fmt.Errorf("busy stream: %w", err), b.undo.close(), undo())
		}
		s.streams = append(s.streams, b)
		go func() {
			defer close(b.ended)
			b.err = b.run(quit)
		}()
	}
	s.waitQueued(ctx)
	return undo, nil
}

// waitQueued waits until every stream has been given new work, or until ctx is
// done. It is called before each sample: a contender that calls the driver
// without a pause may keep the streams' goroutines from queueing.
func (s *busyStreams) waitQueued(ctx context.Context) {
	for _, b := range s.streams {
		select {
		case <-b.queued: // queued before the call
		default:
		}
	}
	for _, b := range s.streams {
		select {
		case <-b.queued:
		case <-b.ended:
		case <-ctx.Done():
		}
	}
}

// busyStream copies all the time, on memory of its own.
type busyStream struct {
	raw    driver.Device
	mem    *buffer
	stream driver.Stream
	ends   [busyQueued]driver.Event // of the queued copies, used as a ring
	queued chan struct{}            // has an element after a copy was queued
	ended  chan struct{}            // closed when no more copies will be queued
	err    error                    // the reason, valid when ended is closed
	undo   undo
}

// prepare makes the memory, the events and the stream. The caller must close undo.
func (b *busyStream) prepare(dev device) (err error) {
	half := uint64(busyCopy)
	if onHost(dev) {
		half = busyHostCopy
	}
	half = max(min(half, dev.Info().Memory/64), 1)
	if b.mem, err = deviceBuffer(dev, memVMM, shape{size: 2 * half}); err != nil {
		return err
	}
	b.undo.add(b.mem.free)
	for i := range b.ends {
		if b.ends[i], err = b.undo.event(b.raw, driver.EventBlocking); err != nil {
			return err
		}
	}
	b.stream, err = b.undo.stream(b.raw)
	return err
}

// run queues copies until quit: the first ones at once, then one for each that has ended.
func (b *busyStream) run(quit <-chan struct{}) error {
	half := b.mem.size / 2
	for i := 0; ; i++ {
		select {
		case <-quit:
			return nil
		default:
		}
		end := b.ends[i%busyQueued] // an event that was not recorded has ended
		err := b.raw.SyncEvent(end)
		if err == nil {
			err = cmp.Or(b.raw.Copy(b.mem.ptr+driver.Ptr(half), b.mem.ptr, half, b.stream), b.raw.Record(end, b.stream))
		}
		if err != nil {
			return err
		}
		select {
		case b.queued <- struct{}{}:
		default:
		}
	}
}
