package main

import (
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
func (s *busyStreams) setup(context.Context) (undo func() error, err error) {
	undo = func() error {
		for _, b := range s.streams {
			close(b.quit) // all before the first wait, else each wait is as long as the others' copies
		}
		var err error
		for _, b := range s.streams {
			err = errors.Join(err, b.close())
		}
		s.streams = nil
		return err
	}
	for range s.n {
		b, err := newBusyStream(s.dev)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("busy stream: %w", err), undo())
		}
		s.streams = append(s.streams, b)
	}
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
	ends   []driver.Event // of the queued copies, used as a ring
	quit   chan struct{}
	queued chan struct{} // has an element after a copy was queued
	ended  chan struct{} // closed when no more copies will be queued
	err    error         // the reason, valid when ended is closed
	undo   undo
}

// newBusyStream starts a stream, which has work when newBusyStream returns. The
// caller must close quit and then call close.
func newBusyStream(dev device) (_ *busyStream, err error) {
	b := &busyStream{raw: dev.raw, quit: make(chan struct{}), queued: make(chan struct{}, 1), ended: make(chan struct{})}
	defer func() { onError(&err, b.undo.close) }()
	half := uint64(busyCopy)
	if onHost(dev) {
		half = busyHostCopy
	}
	half = max(min(half, dev.Info().Memory/64), 1)
	if b.mem, err = deviceBuffer(dev, memVMM, shape{size: 2 * half}); err != nil {
		return nil, err
	}
	b.undo.add(b.mem.free)
	if b.stream, err = b.raw.NewStream(); err != nil {
		return nil, err
	}
	b.undo.add(func() error { return b.raw.FreeStream(b.stream) })
	// The events are filled before the goroutine starts, so it always has a copy
	// to wait for.
	for range busyQueued {
		e, err := b.raw.NewEvent(driver.EventBlocking)
		if err != nil {
			return nil, err
		}
		b.undo.add(func() error { return errors.Join(b.raw.SyncStream(b.stream), b.raw.FreeEvent(e)) })
		b.ends = append(b.ends, e)
		if err := b.copy(e); err != nil {
			return nil, err
		}
	}
	go func() {
		defer close(b.ended)
		b.err = b.run()
	}()
	return b, nil
}

// copy queues one copy and the event of its end.
func (b *busyStream) copy(end driver.Event) error {
	half := b.mem.size / 2
	if err := b.raw.Copy(b.mem.ptr+driver.Ptr(half), b.mem.ptr, half, b.stream); err != nil {
		return err
	}
	return b.raw.Record(end, b.stream)
}

// run queues a copy for each one that has ended.
func (b *busyStream) run() error {
	for i := 0; ; i = (i + 1) % len(b.ends) {
		select {
		case <-b.quit:
			return nil
		default:
		}
		if err := b.raw.SyncEvent(b.ends[i]); err != nil {
			return err
		}
		if err := b.copy(b.ends[i]); err != nil {
			return err
		}
		select {
		case b.queued <- struct{}{}:
		default:
		}
	}
}

// close waits for the goroutine, which quit has stopped, frees everything, and
// returns what went wrong with the copies.
func (b *busyStream) close() error {
	<-b.ended
	err := b.err
	if err != nil {
		err = fmt.Errorf("busy stream: %w", err)
	}
	return errors.Join(err, b.undo.close())
}
