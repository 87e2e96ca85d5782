package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

const (
	// busyQueued is how many copies of a busy stream are queued at most.
	busyQueued = 4
	// The bytes of one copy, about a tenth of a millisecond of a GPU and one of
	// the host: enough that the stream does not run dry while its goroutine
	// waits for its turn, and little enough that what has to wait for the whole
	// device soon goes on.
	busyCopy     = 256 << 20
	busyHostCopy = 8 << 20
)

// busyName is a group's name with its busy streams, of which most groups have none.
func busyName(name string, n int) string {
	if n == 0 {
		return name
	}
	return fmt.Sprintf("%s/busy-%d", name, n)
}

// load is n streams that copy for as long as a group is measured.
type load struct {
	dev *vmm.Device
	raw driver.Device
	n   int
	all []*busy
}

// setup is the group's.
func (l *load) setup(context.Context) (undo func() error, err error) {
	undo = func() error {
		for _, b := range l.all {
			close(b.quit) // all first, or each would wait for its turn among the others
		}
		var err error
		for _, b := range l.all {
			err = errors.Join(err, b.close())
		}
		l.all = nil
		return err
	}
	for range l.n {
		b, err := newBusy(l.dev, l.raw)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("busy stream: %w", err), undo())
		}
		l.all = append(l.all, b)
	}
	return undo, nil
}

// ready waits until every stream was given work since, before a sample, or until
// ctx is done. Whoever calls the driver without a pause may keep the goroutines
// that queue it from doing so.
func (l *load) ready(ctx context.Context) {
	for _, b := range l.all {
		select {
		case <-b.turn: // an old one
		default:
		}
	}
	for _, b := range l.all {
		select {
		case <-b.turn:
		case <-b.ended:
		case <-ctx.Done():
		}
	}
}

// busy is a stream that copies all the time, on memory of its own.
type busy struct {
	raw    driver.Device
	mem    *buffer
	stream driver.Stream
	ends   []driver.Event // of the copies that are queued, in turn
	quit   chan struct{}
	turn   chan struct{} // holds one once a copy has been queued
	ended  chan struct{} // closed when no more will be
	err    error         // why, once ended is closed
}

// newBusy starts one; its stream has work by then. The caller must close its quit
// and then it.
func newBusy(dev *vmm.Device, raw driver.Device) (_ *busy, err error) {
	b := &busy{raw: raw, quit: make(chan struct{}), turn: make(chan struct{}, 1), ended: make(chan struct{})}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.free())
		}
	}()
	half := uint64(busyCopy)
	if dev.Driver().Name() == "host" {
		half = busyHostCopy
	}
	half = max(min(half, dev.Info().Memory/64), 1)
	if b.mem, err = deviceBuffer(dev, raw, memVMM, shape{size: 2 * half}); err != nil {
		return nil, err
	}
	if b.stream, err = raw.NewStream(); err != nil {
		return nil, err
	}
	for range busyQueued {
		e, err := raw.NewEvent(driver.EventBlocking)
		if err != nil {
			return nil, err
		}
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

// copy queues one copy and what says that it has ended.
func (b *busy) copy(end driver.Event) error {
	half := b.mem.size / 2
	if err := b.raw.Copy(b.mem.ptr+driver.Ptr(half), b.mem.ptr, half, b.stream); err != nil {
		return err
	}
	return b.raw.Record(end, b.stream)
}

// run queues a copy for each one that has ended.
func (b *busy) run() error {
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
		case b.turn <- struct{}{}:
		default:
		}
	}
}

// close waits for the copies, which quit has stopped, and says what went wrong
// with them.
func (b *busy) close() error {
	<-b.ended
	err := b.err
	if err != nil {
		err = fmt.Errorf("busy stream: %w", err)
	}
	return errors.Join(err, b.free())
}

// free gives back what there is, after what is queued.
func (b *busy) free() error {
	var err error
	if b.stream != 0 {
		err = b.raw.SyncStream(b.stream)
	}
	for _, e := range b.ends {
		err = errors.Join(err, b.raw.FreeEvent(e))
	}
	if b.stream != 0 {
		err = errors.Join(err, b.raw.FreeStream(b.stream))
	}
	return errors.Join(err, freeAll(b.mem))
}
