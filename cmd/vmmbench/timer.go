package main

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"sync"
	"time"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/measure"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// Flags of a case, which say how it was timed and what else its time depends on.
const (
	gated        = "gated"        // by the device, everything queued behind a gate
	gateTimedOut = "gate-timeout" // the gate opened by itself, before all was queued
	ungated      = "ungated"      // by the device, without a gate
	wallClock    = "wall-clock"   // by the host's clock
	cached       = "cached"       // the data fit into a cache
	timerCost    = "timer-cost"   // timing itself took more than a hundredth
)

// copyFunc queues one copy on a stream, or has done it when it returns.
type copyFunc func(driver.Stream) error

// thenSync is the copy and a wait for the stream.
func (q copyFunc) thenSync(raw driver.Device) copyFunc {
	return func(s driver.Stream) error {
		if err := q(s); err != nil {
			return err
		}
		return raw.SyncStream(s)
	}
}

// timer times copies, each on a stream of its own. Where a gate is possible it
// shuts the gate, queues everything behind it, opens it, and takes the device's
// time between two events: so queueing is not timed. Without a gate a single
// copy is timed by the host's clock, from queueing to the end of the
// synchronise. Several copies need the events all the same, to have a time for
// each.
type timer struct {
	raw     driver.Device
	streams []driver.Stream
	start   driver.Event
	ends    []driver.Event
	gate    *gate // nil: none, or given up after it timed out

	byDevice bool // time by events without a gate, too
	flag     string
	undo     undo
}

// newTimer makes a timer for n copies at once. Copies of ordinary Go memory are
// not gateable: they block the host, which has to open the gate. The caller must
// close the timer.
func newTimer(dev device, n int, gateable bool) (t *timer, err error) {
	t = &timer{raw: dev.raw, flag: wallClock}
	defer func() { onError(&err, t.close) }()
	for range n {
		s, err := dev.raw.NewStream()
		if err != nil {
			return t, err
		}
		t.streams = append(t.streams, s)
		t.undo.add(func() error { return dev.raw.FreeStream(s) })
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
	ops, alloc, ok := gateSupport(dev)
	if !gateable || !ok {
		return t, nil
	}
	g := &gate{memOps: ops, timeout: dev.settings.gateTimeout}
	if g.ptr, g.word, err = alloc.AllocHost(8); err != nil {
		return t, err
	}
	t.undo.add(func() error { return alloc.FreeHost(g.ptr) })
	clear(g.word) // a gate that was never shut has the number 0
	t.gate, t.flag = g, gated
	return t, nil
}

func (t *timer) event() (driver.Event, error) {
	e, err := t.raw.NewEvent(driver.EventTiming | driver.EventBlocking)
	if err == nil {
		t.undo.add(func() error { return t.raw.FreeEvent(e) })
	}
	return e, err
}

// time does every copy loops times and returns the time until all have ended.
// If there are several copies, Parts has the time of each. If ctx is done, time
// stops between two repetitions.
func (t *timer) time(ctx context.Context, loops int, copies ...copyFunc) (measure.Sample, error) {
	if t.gate == nil && len(copies) == 1 && !t.byDevice {
		return t.timeByHost(ctx, loops, copies[0])
	}
	var open func() (inTime bool)
	if t.gate != nil {
		var err error
		if open, err = t.gate.shut(t.streams[0]); err != nil {
			return measure.Sample{}, err
		}
		defer open()
	}
	if err := t.enqueue(ctx, loops, copies); err != nil {
		return measure.Sample{}, err
	}
	// If the gate opened too early, a part of the queueing was timed. It would
	// happen again, so there is no next try.
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
	if len(copies) == 1 {
		s.Parts = nil
	}
	return s, nil
}

// cost is the least that time returns if there is nothing to do between its start and
// its end: what timing itself takes.
func (t *timer) cost(ctx context.Context, copies ...copyFunc) (float64, error) {
	least := math.Inf(1)
	for range costSamples {
		s, err := t.time(ctx, 0, copies...)
		if err != nil {
			return 0, err
		}
		least = min(least, s.NS)
	}
	return least, nil
}

const costSamples = 5

// enqueue records the start, queues everything behind it, and records the ends.
func (t *timer) enqueue(ctx context.Context, loops int, copies []copyFunc) error {
	if err := t.raw.Record(t.start, t.streams[0]); err != nil {
		return err
	}
	// No stream may begin before the start, which is an event of the first one.
	for _, s := range t.streams[1:] {
		if err := t.raw.Wait(s, t.start); err != nil {
			return err
		}
	}
	for range loops {
		if err := ctx.Err(); err != nil {
			return err
		}
		for i, copy := range copies {
			if err := copy(t.streams[i]); err != nil {
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

// timeByHost is time by the host's clock, for one copy.
func (t *timer) timeByHost(ctx context.Context, loops int, copy copyFunc) (measure.Sample, error) {
	start := time.Now()
	for range loops {
		if err := ctx.Err(); err != nil {
			return measure.Sample{}, err
		}
		if err := copy(t.streams[0]); err != nil {
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
	t.streams = nil
	return errors.Join(err, t.undo.close())
}

// gatedLoops bounds what is queued behind a gate.
const gatedLoops = 128

// gateSupport returns what a gate needs. ok is false where a stream cannot wait
// for a word of memory.
func gateSupport(dev device) (ops driver.StreamMemOps, alloc driver.HostAllocator, ok bool) {
	ops, hasOps := dev.raw.(driver.StreamMemOps)
	alloc, hasAlloc := dev.raw.(driver.HostAllocator)
	return ops, alloc, hasOps && hasAlloc && dev.Supports(driver.FeatureStreamMemOps) == nil
}

// gate makes a stream wait until the host writes a word.
type gate struct {
	memOps driver.StreamMemOps
	ptr    driver.Ptr
	word   []byte // pinned
	count  uint64 // how often it was shut

	timeout time.Duration
}

// shut makes the stream wait. open lets the stream go on and returns false if
// the gate had opened itself before, after the timeout. Calling open again does
// nothing.
func (g *gate) shut(s driver.Stream) (open func() (inTime bool), err error) {
	g.count++
	n := g.count
	if err := g.memOps.WaitValue(s, g.ptr, n, 4); err != nil {
		return nil, err
	}
	// The timer and open may both store. No Go code reads the word, so a plain
	// store will do.
	var once sync.Once
	store := func() { once.Do(func() { binary.LittleEndian.PutUint32(g.word, uint32(n)) }) }
	late := time.AfterFunc(g.timeout, store)
	return func() bool {
		inTime := late.Stop()
		store()
		return inTime
	}, nil
}
