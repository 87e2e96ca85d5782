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

const (
	manyMax    = 64 << 20 // bytes of addresses of a range
	manyRow    = 128      // bytes of a row
	mostRanges = 1 << 16
)

// manyRanges are ranges that all do the same, one after the other.
type manyRanges struct {
	dev   device
	n     int
	chunk uint64 // the least that a range can have
	all   []*vmm.Range
}

// manyGroup plans that n ranges are made, grow, sleep and are closed. A sample is the time of all.
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
	calls := m.pass()
	for _, op := range []string{"make", "first-row", "next-cold", "next-kept", "next-ahead", "sleep", "wake", "close"} {
		g.add(calls.task(op, op, report.Case{
			Unit: unitMs, Bytes: 2 * chunk * uint64(n), Axes: axes("device", dev.String(), "ranges", n, "op", op),
		}))
	}
	return g, nil
}

// pass does all that is measured, and leaves nothing.
func (m *manyRanges) pass() *pass {
	row := make([]byte, manyRow)
	firstRow := m.each(func(r *vmm.Range) error { return r.Append(row) })
	next := m.each(func(r *vmm.Range) error { return r.Grow(2*m.chunk - r.Len()) })
	keep := func(bytes uint64) func() error {
		return func() error { m.dev.SetReleaseThreshold(bytes); return nil }
	}
	return &pass{calls: []call{
		{undo: m.free},
		{name: "make", do: m.make(vmm.RangeOptions{})},
		{name: "first-row", do: firstRow},
		{name: "next-cold", do: next},
		{do: keep(2 * m.chunk * uint64(m.n)), undo: keep(0)},
		{do: m.each((*vmm.Range).Clip)},
		{name: "next-kept", do: next},
		{do: keep(0)},
		{do: m.each(m.fill)},
		{name: "sleep", do: func() error { return vmm.Sleep(vmm.SleepKeep, m.all...) }},
		{name: "wake", do: func() error { return vmm.Wake(m.all...) }},
		{name: "close", do: m.each((*vmm.Range).Close)},
		// Growth ahead begins when less than half of it is left, which is so after the first row.
		{do: m.make(vmm.RangeOptions{GrowAhead: 2 * m.chunk})},
		{do: firstRow},
		{do: m.each(m.waitAhead)},
		{name: "next-ahead", do: next},
	}}
}

// each calls f for all ranges.
func (m *manyRanges) each(f func(*vmm.Range) error) func() error {
	return func() error {
		for _, r := range m.all {
			if err := f(r); err != nil {
				return err
			}
		}
		return nil
	}
}

func (m *manyRanges) make(o vmm.RangeOptions) func() error {
	return func() error {
		o.Max, m.all = manyMax, nil
		for range m.n {
			r, err := m.dev.NewRange(o)
			if err != nil {
				return err
			}
			m.all = append(m.all, r)
		}
		return nil
	}
}

// free closes what is left.
func (m *manyRanges) free() (err error) {
	for _, r := range m.all {
		err = errors.Join(err, r.Close())
	}
	m.all = nil
	return err
}

// fill writes all of a range: a host takes no time for pages that were never written.
func (m *manyRanges) fill(r *vmm.Range) error {
	b := buffer{dev: m.dev, ptr: r.Ptr(), size: 2 * m.chunk}
	return errors.Join(b.poison(context.Background()), r.SetLen(b.size))
}

// waitAhead waits until the device's goroutine has mapped the range's second chunk.
func (m *manyRanges) waitAhead(r *vmm.Range) error {
	for range 10_000 {
		if r.Cap() >= 2*m.chunk {
			return nil
		}
		time.Sleep(time.Millisecond)
		if err := r.Grow(0); err != nil { // asks for it again
			return err
		}
	}
	return errors.New("growth ahead has mapped nothing")
}
