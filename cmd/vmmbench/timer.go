package main

import (
	"context"
	"encoding/binary"
	"errors"
	"sync"
	"time"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/measure"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

const (
	// gateTimeout is how long queueing behind a closed gate may take. A queue
	// that is full blocks the caller, and only the gate can empty it.
	gateTimeout = 2 * time.Second
	// gatedLoops bounds what is queued behind a gate.
	gatedLoops = 128
	// gateTimedOut is the flag of a case whose gate opened by itself.
	gateTimedOut = "gate-timeout"
	// ungated is the flag of a case that the device times, without a gate.
	ungated = "ungated"
)

// queue puts one copy on a stream, or has it done when it returns.
type queue func(driver.Stream) error

// waited is q with a wait after it.
func (q queue) waited(raw driver.Device) queue {
	return func(s driver.Stream) error {
		if err := q(s); err != nil {
			return err
		}
		return raw.SyncStream(s)
	}
}

// timer times copies, each queue on a stream of its own. Where it can it shuts
// a gate, queues everything behind it, and takes the device's own time between
// two events, so that queueing is not timed. Otherwise one queue is timed by
// the host's clock around copies and synchronise; several need the events all
// the same, to have a time for each.
type timer struct {
	raw     driver.Device
	streams []driver.Stream
	start   driver.Event
	ends    []driver.Event
	gate    *gate // nil: none, or not any more

	byDevice bool // without a gate, too
	flag     string
	undo     []func() error
}

// newTimer makes a timer for n queues. Queues that copy ordinary Go memory
// cannot be gated: the copy blocks the host, which has to open the gate. The
// caller must close it.
func newTimer(dev *vmm.Device, raw driver.Device, n int, gateable bool) (t *timer, err error) {
	t = &timer{raw: raw, flag: "wall-clock"}
	defer func() {
		if err != nil {
			err = errors.Join(err, t.close())
		}
	}()
	for range n {
		s, err := raw.NewStream()
		if err != nil {
			return t, err
		}
		t.streams = append(t.streams, s)
		t.undo = append(t.undo, func() error { return raw.FreeStream(s) })
		e, err := t.event()
		if err != nil {
			return t, err
		}
		t.ends = append(t.ends, e)
	}
	if t.start, err = t.event(); err != nil {
		return t, err
	}
	if n > 1 {
		t.flag = ungated
	}
	waiter, pinner, ok := gateParts(dev, raw)
	if !gateable || !ok {
		return t, nil
	}
	g := &gate{waiter: waiter, timeout: gateTimeout}
	if g.ptr, g.word, err = pinner.AllocHost(8); err != nil {
		return t, err
	}
	t.undo = append(t.undo, func() error { return pinner.FreeHost(g.ptr) })
	clear(g.word)
	t.gate, t.flag = g, "gated"
	return t, nil
}

func (t *timer) event() (driver.Event, error) {
	e, err := t.raw.NewEvent(driver.EventTiming | driver.EventBlocking)
	if err == nil {
		t.undo = append(t.undo, func() error { return t.raw.FreeEvent(e) })
	}
	return e, err
}

// time does every queue loops times and gives the time of all together, and the
// time of each as the parts if there are several. Between two repetitions it
// breaks off when ctx is done.
func (t *timer) time(ctx context.Context, loops int, queues ...queue) (measure.Sample, error) {
	if t.gate == nil && len(queues) == 1 && !t.byDevice {
		return t.wall(ctx, loops, queues[0])
	}
	var open func() (inTime bool)
	if t.gate != nil {
		var err error
		if open, err = t.gate.shut(t.streams[0]); err != nil {
			return measure.Sample{}, err
		}
		defer open()
	}
	if err := t.queue(ctx, loops, queues); err != nil {
		return measure.Sample{}, err
	}
	if open != nil && !open() {
		t.gate, t.flag = nil, gateTimedOut
	}

	var s measure.Sample
	for _, end := range t.ends {
		if err := t.raw.SyncEvent(end); err != nil {
			return s, err
		}
		took, err := t.raw.Elapsed(t.start, end)
		if err != nil {
			return s, err
		}
		s.Parts = append(s.Parts, float64(took))
		s.NS = max(s.NS, float64(took))
	}
	if len(queues) == 1 {
		s.Parts = nil
	}
	return s, nil
}

// queue records the start, puts everything behind it, and records the ends.
func (t *timer) queue(ctx context.Context, loops int, queues []queue) error {
	if err := t.raw.Record(t.start, t.streams[0]); err != nil {
		return err
	}
	for _, s := range t.streams[1:] {
		if err := t.raw.Wait(s, t.start); err != nil {
			return err
		}
	}
	for range loops {
		if err := ctx.Err(); err != nil {
			return err
		}
		for i, q := range queues {
			if err := q(t.streams[i]); err != nil {
				return err
			}
		}
	}
	for i, s := range t.streams {
		if err := t.raw.Record(t.ends[i], s); err != nil {
			return err
		}
	}
	return nil
}

func (t *timer) wall(ctx context.Context, loops int, q queue) (measure.Sample, error) {
	start := time.Now()
	for range loops {
		if err := ctx.Err(); err != nil {
			return measure.Sample{}, err
		}
		if err := q(t.streams[0]); err != nil {
			return measure.Sample{}, err
		}
	}
	err := t.raw.SyncStream(t.streams[0])
	return measure.Sample{NS: float64(time.Since(start))}, err
}

func (t *timer) close() error {
	var err error
	for _, s := range t.streams {
		err = errors.Join(err, t.raw.SyncStream(s))
	}
	for i := len(t.undo) - 1; i >= 0; i-- {
		err = errors.Join(err, t.undo[i]())
	}
	t.undo, t.streams = nil, nil
	return err
}

// gateParts is what a gate is made of; ok is false where streams cannot be held
// back.
func gateParts(dev *vmm.Device, raw driver.Device) (waiter driver.StreamMemOps, pinner driver.HostAllocator, ok bool) {
	waiter, waits := raw.(driver.StreamMemOps)
	pinner, pins := raw.(driver.HostAllocator)
	return waiter, pinner, waits && pins && dev.Supports(driver.FeatureStreamMemOps) == nil
}

// gate holds a stream back until the host writes a word.
type gate struct {
	waiter driver.StreamMemOps
	ptr    driver.Ptr
	word   []byte // pinned
	n      uint64 // how often it was shut

	timeout time.Duration
}

// shut makes the stream wait. open lets it go on, and says whether it was still
// shut by then; calling it again does nothing.
func (g *gate) shut(s driver.Stream) (open func() (inTime bool), err error) {
	g.n++
	n := g.n
	if err := g.waiter.WaitValue(s, g.ptr, n, 4); err != nil {
		return nil, err
	}
	// No Go code reads the word, so a plain store will do.
	var once sync.Once
	store := func() { once.Do(func() { binary.LittleEndian.PutUint32(g.word, uint32(n)) }) }
	late := time.AfterFunc(g.timeout, store)
	return func() bool {
		inTime := late.Stop()
		store()
		return inTime
	}, nil
}
