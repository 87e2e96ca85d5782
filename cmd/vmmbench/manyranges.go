package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// What grow measures of many ranges, in this order.
const (
	opMake  = "make"
	opRow   = "first-row"
	opCold  = "next-cold"
	opReuse = "next-kept"
	opAhead = "next-ahead"
	opSleep = "sleep"
	opClose = "close"
)

const (
	manyMax    = 64 << 20 // bytes of addresses of a range
	manyRow    = 128      // bytes of a row
	mostRanges = 1 << 16
)

// manyRanges is a contender's work: ranges that all do the same, one after the other.
type manyRanges struct {
	dev        device
	n          int
	chunk      uint64 // the least that a range can have
	all, ahead []*vmm.Range
}

// manyGroup plans that n ranges are made, grow, sleep and are closed. A sample is the time of all of them.
func manyGroup(dev device, n int) (group, error) {
	chunk, err := dev.Driver().Granularity(driver.Prop{Location: location(dev)})
	if err != nil {
		return group{}, err
	}
	g := group{name: fmt.Sprintf("grow/%d-ranges", n), samples: math.MaxInt, maxLoops: 1}
	if onHost(dev) {
		g.memory = 4 * chunk * uint64(n) // two chunks of each, twice when it sleeps
	}
	m := &manyRanges{dev: dev, n: n, chunk: chunk}
	calls := &pass{do: m.pass}
	for _, op := range []string{opMake, opRow, opCold, opReuse, opAhead, opSleep, opWake, opClose} {
		g.add(task{
			label: op,
			c:     report.Case{Unit: unitMs, Bytes: 2 * chunk * uint64(n), Axes: axes("device", dev.String(), "ranges", n, "op", op)},
			open: func(context.Context) (contender, error) {
				return &operation{name: op, ready: func(context.Context) {}, pass: calls}, nil
			},
		})
	}
	return g, nil
}

// each calls f for all ranges.
func each(all []*vmm.Range, f func(*vmm.Range) error) func() error {
	return func() error {
		for _, g := range all {
			if err := f(g); err != nil {
				return err
			}
		}
		return nil
	}
}

func (m *manyRanges) make(o vmm.RangeOptions) (all []*vmm.Range, err error) {
	o.Max = manyMax
	for range m.n {
		g, err := m.dev.NewRange(o)
		if err != nil {
			return all, err
		}
		all = append(all, g)
	}
	return all, nil
}

// pass does all that is measured, and leaves nothing.
func (m *manyRanges) pass(w stopwatch) (err error) {
	defer func() {
		for _, g := range append(m.all, m.ahead...) {
			err = errors.Join(err, g.Close())
		}
		m.all, m.ahead = nil, nil
		_, trimmed := m.dev.Trim(0)
		err = errors.Join(err, trimmed)
	}()
	row := make([]byte, manyRow)
	firstRow := func(g *vmm.Range) error { return g.Append(row) }
	next := func(g *vmm.Range) error { return g.Grow(2*m.chunk - g.Len()) }
	if err := w.call(opMake, func() (err error) { m.all, err = m.make(vmm.RangeOptions{}); return err }); err != nil {
		return err
	}
	if err := w.call(opRow, each(m.all, firstRow)); err != nil {
		return err
	}
	if err := w.call(opCold, each(m.all, next)); err != nil {
		return err
	}
	defer m.dev.SetReleaseThreshold(m.dev.SetReleaseThreshold(2 * m.chunk * uint64(m.n)))
	if err := each(m.all, (*vmm.Range).Clip)(); err != nil {
		return err
	}
	if err := w.call(opReuse, each(m.all, next)); err != nil {
		return err
	}
	m.dev.SetReleaseThreshold(0)
	if err := each(m.all, m.fill)(); err != nil {
		return err
	}
	if err := w.call(opSleep, func() error { return vmm.Sleep(vmm.SleepKeep, m.all...) }); err != nil {
		return err
	}
	if err := w.call(opWake, func() error { return vmm.Wake(m.all...) }); err != nil {
		return err
	}
	if err := w.call(opClose, each(m.all, (*vmm.Range).Close)); err != nil {
		return err
	}
	m.all = nil
	// It begins when less than half of it is left, which is so after the first row.
	if m.ahead, err = m.make(vmm.RangeOptions{GrowAhead: 2 * m.chunk}); err != nil {
		return err
	}
	if err := each(m.ahead, firstRow)(); err != nil {
		return err
	}
	if err := each(m.ahead, m.waitAhead)(); err != nil {
		return err
	}
	return w.call(opAhead, each(m.ahead, next))
}

// fill writes all of a range: a host takes no time for pages that were never written.
func (m *manyRanges) fill(g *vmm.Range) error {
	b := buffer{dev: m.dev, ptr: g.Ptr(), size: 2 * m.chunk}
	return errors.Join(b.poison(context.Background()), g.SetLen(b.size))
}

// waitAhead waits until the device's goroutine has mapped the range's second chunk.
func (m *manyRanges) waitAhead(g *vmm.Range) error {
	for range 10_000 {
		if g.Cap() >= 2*m.chunk {
			return nil
		}
		time.Sleep(time.Millisecond)
		if err := g.Grow(0); err != nil { // asks for it again
			return err
		}
		if g.Stats().GrowAheadFailures > 0 {
			break
		}
	}
	return errors.New("growth ahead has mapped nothing")
}
