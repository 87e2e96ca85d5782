package main

import (
	"cmp"
	"context"
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

// busyStreams are n streams that copy as long as a group is measured, each on memory of its own.
type busyStreams struct {
	dev    device
	n      int
	queued chan struct{} // has an element after each stream was given a copy
	ended  chan struct{} // closed when no more copies will be queued
}

// setup is for group.setup. It starts the streams, and undo stops them.
func (s *busyStreams) setup(ctx context.Context) (_ func() error, err error) {
	if s.n == 0 {
		return noUndo, nil
	}
	var made undo
	defer func() { onError(&err, made.close) }()
	queues := make([]func(i int) error, s.n)
	for n := range queues {
		if queues[n], err = s.stream(&made); err != nil {
			return nil, fmt.Errorf("busy stream: %w", err)
		}
	}
	s.queued, s.ended = make(chan struct{}, 1), make(chan struct{})
	going, stop := context.WithCancel(context.Background())
	var failed error // valid when ended is closed
	go func() {
		defer close(s.ended)
		failed = s.run(going, queues)
	}()
	made.add(func() error {
		stop()
		if <-s.ended; failed != nil {
			return fmt.Errorf("busy stream: %w", failed)
		}
		return nil
	})
	s.waitQueued(ctx)
	return made.close, nil
}

// waitQueued waits until every stream has been given new work, or until ctx is
// done. It is called before each sample: a contender that calls the driver
// without a pause may keep the goroutine from queueing.
func (s *busyStreams) waitQueued(ctx context.Context) {
	if s.n == 0 {
		return
	}
	select {
	case <-s.queued: // queued before the call
	default:
	}
	select {
	case <-s.queued:
	case <-s.ended:
	case <-ctx.Done():
	}
}

// stream makes a stream, and a function that queues its i-th copy as soon as there is room.
func (s *busyStreams) stream(made *undo) (queue func(i int) error, err error) {
	half := uint64(busyCopy)
	if onHost(s.dev) {
		half = busyHostCopy
	}
	half = max(min(half, s.dev.Info().Memory/64), 1)
	mem, err := newBuffer(s.dev, memVMM, shape{size: 2 * half})
	if err != nil {
		return nil, err
	}
	made.add(mem.free)
	raw := s.dev.raw
	var ends [busyQueued]driver.Event // of the queued copies, used as a ring
	for i := range ends {
		if ends[i], err = made.event(raw, driver.EventBlocking); err != nil {
			return nil, err
		}
	}
	on, err := made.stream(raw)
	return func(i int) error {
		end := ends[i%busyQueued] // one that was never recorded has ended
		if err := raw.SyncEvent(end); err != nil {
			return err
		}
		return cmp.Or(raw.Copy(mem.ptr+driver.Ptr(half), mem.ptr, half, on), raw.Record(end, on))
	}, err
}

// run queues copies as long as ctx is not done: on each stream the first ones at once, then one
// for each that has ended.
func (s *busyStreams) run(ctx context.Context, queues []func(i int) error) error {
	for i := 0; ctx.Err() == nil; i++ {
		for _, queue := range queues {
			if err := queue(i); err != nil {
				return err
			}
		}
		select {
		case s.queued <- struct{}{}:
		default:
		}
	}
	return nil
}
