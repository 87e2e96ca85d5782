package main

import (
	"cmp"
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

// timer times copies, each on a stream of its own. Where a gate is possible it
// shuts the gate, queues everything behind it, opens it, and takes the device's
// time between two events: so queueing is not timed. Without a gate a single
// copy is timed by the host's clock, from queueing to the end of the
// synchronise, unless byEvents asks for the device's time. Several copies need
// the events all the same, to have a time for each.
type timer struct {
	raw      driver.Device
	streams  []driver.Stream
	start    driver.Event
	ends     []driver.Event
	gate     *gate // nil: none, or given up after it timed out
	byEvents bool
	flag     string
	undo     undo
}

// newTimer makes a timer for n copies at once. Copies of ordinary Go memory are
// not gateable: they block the host, which has to open the gate. The caller must
// close the timer.
func newTimer(dev device, n int, gateable, byEvents bool) (t *timer, err error) {
	t = &timer{raw: dev.raw, flag: wallClock, streams: make([]driver.Stream, n), ends: make([]driver.Event, n)}
	defer func() { onError(&err, t.close) }()
	if t.byEvents = byEvents || n > 1; t.byEvents {
		t.flag = ungated
	}
	if raw, ok := gates(dev); gateable && ok {
		t.byEvents, t.flag = true, gated
		if t.gate, err = newGate(dev, raw, &t.undo); err != nil {
			return t, err
		}
	}
	const timing = driver.EventTiming | driver.EventBlocking
	t.start, err = t.undo.event(t.raw, timing)
	for i := 0; i < n && err == nil; i++ {
		if t.ends[i], err = t.undo.event(t.raw, timing); err == nil {
			t.streams[i], err = t.undo.stream(t.raw)
		}
	}
	return t, err
}

// stream makes a stream. u waits for its work and frees it.
func (u *undo) stream(raw driver.Device) (driver.Stream, error) {
	s, err := raw.NewStream()
	if err == nil {
		u.add(func() error { return errors.Join(raw.SyncStream(s), raw.FreeStream(s)) })
	}
	return s, err
}

// event makes an event, before the streams that it is recorded on: u frees it after them.
func (u *undo) event(raw driver.Device, flags driver.EventFlags) (driver.Event, error) {
	e, err := raw.NewEvent(flags)
	if err == nil {
		u.add(func() error { return raw.FreeEvent(e) })
	}
	return e, err
}

// time does every copy loops times and returns the time until all have ended.
// By events, Parts has the time of each. If ctx is done, time stops between two
// repetitions.
func (t *timer) time(ctx context.Context, loops int, copies ...copyFunc) (s measure.Sample, err error) {
	open, err := t.gate.shut(t.streams[0])
	if err != nil {
		return s, err
	}
	defer open()
	began := time.Now()
	if err := t.enqueue(ctx, loops, copies); err != nil {
		return s, err
	}
	if !t.byEvents {
		err := t.raw.SyncStream(t.streams[0])
		return measure.Sample{NS: float64(time.Since(began))}, err
	}
	// If the gate opened too early, a part of the queueing was timed. It would
	// happen again, so there is no next try.
	if !open() {
		t.gate, t.flag = nil, gateTimedOut
	}
	for _, end := range t.ends {
		if err := t.raw.SyncEvent(end); err != nil {
			return s, err
		}
		took, err := t.raw.Elapsed(t.start, end)
		if err != nil {
			return s, err
		}
		s.NS, s.Parts = max(s.NS, float64(took)), append(s.Parts, float64(took))
	}
	return s, nil
}

// enqueue does every copy loops times, as far as ctx allows. By events it records the start before
// and the ends behind them.
func (t *timer) enqueue(ctx context.Context, loops int, copies []copyFunc) (err error) {
	if t.byEvents {
		err = t.raw.Record(t.start, t.streams[0])
	}
	// No stream may begin before the start, which is an event of the first one.
	for _, s := range t.streams[1:] {
		err = cmp.Or(err, t.raw.Wait(s, t.start))
	}
	for n := 0; n < loops && err == nil; n++ {
		err = ctx.Err()
		for i := 0; i < len(copies) && err == nil; i++ {
			err = copies[i](t.streams[i])
		}
	}
	for i := 0; i < len(t.ends) && t.byEvents && err == nil; i++ {
		err = t.raw.Record(t.ends[i], t.streams[i])
	}
	return err
}

// cost is the least that time returns if there is nothing to do between its start and
// its end: the overhead of timing.
func (t *timer) cost(ctx context.Context, copies ...copyFunc) (least float64, err error) {
	const samples = 5
	least = math.Inf(1)
	for i := 0; i < samples && err == nil; i++ {
		var s measure.Sample
		s, err = t.time(ctx, 0, copies...)
		least = min(least, s.NS)
	}
	return least, err
}

func (t *timer) close() error { return t.undo.close() }

// gatedLoops bounds what is queued behind a gate.
const gatedLoops = 128

// gate makes a stream wait until the host writes a word. A nil gate is always open.
type gate struct {
	memOps  driver.StreamMemOps
	ptr     driver.Ptr
	word    []byte // pinned
	count   uint64 // how often it was shut
	timeout time.Duration
}

// gateDevice has the calls that a gate needs.
type gateDevice interface {
	driver.StreamMemOps
	driver.HostAllocator
}

// gates are the calls of a device whose streams can wait for a word of memory.
func gates(dev device) (raw gateDevice, ok bool) {
	raw, ok = dev.raw.(gateDevice)
	return raw, ok && dev.Supports(driver.FeatureStreamMemOps) == nil
}

// newGate makes a gate. u frees it.
func newGate(dev device, raw gateDevice, u *undo) (g *gate, err error) {
	g = &gate{memOps: raw, timeout: dev.settings.gateTimeout}
	if g.ptr, g.word, err = raw.AllocHost(8); err != nil {
		return nil, err
	}
	clear(g.word) // a gate that was never shut has the number 0
	u.add(func() error { return raw.FreeHost(g.ptr) })
	return g, nil
}

// shut makes the stream wait. open lets the stream go on and returns false if
// the gate had opened itself before, after the timeout.
func (g *gate) shut(s driver.Stream) (open func() (inTime bool), err error) {
	if g == nil {
		return func() bool { return true }, nil
	}
	g.count++
	n := g.count
	if err := g.memOps.WaitValue(s, g.ptr, n, 4); err != nil {
		return nil, err
	}
	// The timer and open may both store. No Go code reads the word, so a plain
	// store will do.
	store := sync.OnceFunc(func() { binary.LittleEndian.PutUint32(g.word, uint32(n)) })
	late := time.AfterFunc(g.timeout, store)
	return func() bool {
		inTime := late.Stop()
		store()
		return inTime
	}, nil
}
