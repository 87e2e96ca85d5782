//go:build linux

package host

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/cuvmm/cuvmm/internal/invariants"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// On a card the process dies where the begin or the end of a capture, or a wait by which a stream
// joins one, meets another thread's record, query or end of one of its streams, or a record of, or
// a wait for, its context (docs/contributing/driver-notes.md). Here workMu keeps calls apart. So in builds with
// -tags invariants these calls are held open for a while, and two that meet end the process here,
// too.

// meetings counts the calls that are under way with a stream, or a context.
type meetings struct {
	changing atomic.Int32 // what is being captured
	looking  atomic.Int32 // at where the work ends
}

// changes is called when a call begins that changes whether streams are being captured; what it
// returns is called when it ends. A wait is given its event, and joins the capture that has it.
func (v *device) changes(verb string, s driver.Stream, e driver.Event) (end func()) {
	if !invariants.Enabled || v.closed.Load() {
		return func() {}
	}
	c := v.context
	c.d.workMu.Lock()
	x, err := c.stream(verb, s)
	ev := c.d.events[e]
	joins := ev != nil && ev.capture != nil && !ev.capture.ended
	if err != nil || e != 0 && !joins {
		c.d.workMu.Unlock()
		return func() {}
	}
	all := []*meetings{&c.meetings, &x.meetings}
	of := x.capture
	if joins {
		of = ev.capture
	}
	if of != nil {
		for _, o := range of.streams {
			all = append(all, &o.meetings)
		}
	}
	c.d.workMu.Unlock()
	c.captured.Store(true)
	for _, m := range all {
		m.changing.Add(1)
		m.check(verb, m.looking.Load())
	}
	time.Sleep(rand.N(time.Millisecond)) //nolint:forbidigo // only in builds of our own tests: the call takes that long
	return func() {
		for _, m := range all {
			m.changing.Add(-1)
		}
	}
}

// looks is called when a call begins that looks at the end of the stream's work; what it returns
// is called when it ends.
func (v *device) looks(verb string, s driver.Stream) (end func()) {
	if !invariants.Enabled || v.closed.Load() {
		return func() {}
	}
	c := v.context
	c.d.workMu.Lock()
	x, err := c.stream(verb, s)
	c.d.workMu.Unlock()
	if err != nil {
		return func() {}
	}
	return c.looksAt(verb, &x.meetings)
}

// looksAt is looks for a stream, or for all of the context.
func (c *context) looksAt(verb string, m *meetings) (end func()) {
	if !invariants.Enabled {
		return func() {}
	}
	m.looking.Add(1)
	m.check(verb, m.changing.Load())
	if c.captured.Load() {
		time.Sleep(rand.N(100 * time.Microsecond)) //nolint:forbidigo // as above
	}
	return func() { m.looking.Add(-1) }
}

// check ends the process if calls of the other kind are under way.
func (*meetings) check(verb string, others int32) {
	if others > 0 {
		panic(fmt.Sprintf("host: %s meets a call that must not run beside it: on a card the process dies", verb)) //nolint:forbidigo // only in builds of our own tests
	}
}
