package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/measure"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/verify"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// flow is one copy after the other, on streams of its own. Several run at once.
type flow struct {
	src, dst device // without a Device: memory of the host
	by       device // copies
	size     uint64
	way      flowWay
}

// flowWay is how a flow copies.
type flowWay string

// Ways. The text is that of a flow in the table of nvbandwidth's cases.
const (
	oneWay  flowWay = ">"
	halves  flowWay = "=" // one kernel copies the first half there and the second half back
	chasing flowWay = "?" // no copy: src follows pointers in the memory of dst
)

// ends are the memory of a flow.
func (f flow) ends() []device { return []device{f.src, f.dst} }

// hasHost reports whether an end is memory of the host.
func (f flow) hasHost() bool { return f.src.Device == nil || f.dst.Device == nil }

// copyKind says how bytes are copied.
type copyKind struct {
	engine, direction, host, into, call string
	streams                             int
}

// synchronous reports whether copies are done when they return, whatever call says.
func (w copyKind) synchronous() bool { return w.host == pageable || w.host == staging }

// gateable reports whether the copies can be queued behind a gate.
func (w copyKind) gateable() bool { return !w.synchronous() && w.call == callAsync }

// copyGroup is the flows of a group of cases, which differ by the memory of the devices. They
// copy from and to the same memory of the host, so its address makes no difference.
type copyGroup struct {
	copyKind
	timing       device // has the timer
	flows        []flow
	gated        bool            // a gate holds the copies back
	byDevice     bool            // the device takes the time, also without a gate
	first        bool            // the time is the first flow's; the others are its load
	cached       bool            // the data fit into a cache
	gateTimedOut map[string]bool // kinds of memory whose copies had to wait for a gate; may be shared, or nil
	refused      error           // why this machine cannot do it
	pattern      verify.Pattern
	hostEnds     []*buffer // of each flow the host's memory, if it has any
}

// moved are the bytes of all flows.
func (c *copyGroup) moved() (all uint64) {
	for _, f := range c.flows {
		all += f.size
	}
	return all
}

// reached are the devices whose memory another device reaches, with that one before each.
func (c *copyGroup) reached() (pairs [][2]device) {
	for _, f := range c.flows {
		for _, end := range f.ends() {
			if pair := [2]device{f.by, end}; end.Device != nil && end != f.by && !slices.Contains(pairs, pair) {
				pairs = append(pairs, pair)
			}
		}
	}
	return pairs
}

// group returns the group, still without cases. streams is how many streams share what may be
// queued behind a gate.
func (c *copyGroup) group(name string, seed uint64, streams int) group {
	g := group{name: name, samples: math.MaxInt, keepsMemory: true, setup: c.setup}
	// Each group has its own data: what another one left cannot pass for them.
	c.pattern.Seed = measure.Seed(seed, name)
	_, _, can := gateSupport(c.timing)
	if c.gated = c.gated && can; c.gated {
		g.maxLoops = max(gatedLoops/max(streams, 1), 1)
	}
	g.deviceChecks = c.timing.checksItself() && !slices.ContainsFunc(c.flows, flow.hasHost)
	return g
}

// add adds a case with memory of a kind.
func (c *copyGroup) add(g *group, label, kind string, s shape, of report.Case) {
	g.add(task{
		label: label, grows: kind == memVMM, data: true, c: of,
		open: func(ctx context.Context) (contender, error) { return c.contender(ctx, kind, s) },
	})
	for _, f := range c.flows {
		for _, end := range f.ends() {
			switch {
			case end.Device != nil && onHost(end):
				g.memory += f.size
			case end.Device == nil && len(g.tasks) == 1:
				g.shared += f.size
			}
		}
	}
}

// setup makes the host's memory, which is filled where it is copied from.
func (c *copyGroup) setup(ctx context.Context) (func() error, error) {
	if c.refused != nil { // before any memory is made, so that all cases have the same reason
		return nil, c.refused
	}
	var made undo
	c.hostEnds = make([]*buffer, len(c.flows))
	for i, f := range c.flows {
		if !f.hasHost() {
			continue
		}
		b, err := hostBuffer(f.by, c.host, f.size)
		if err != nil {
			return nil, errors.Join(err, made.close())
		}
		made.add(func() error { return b.free() }) // of the memory that it has then
		c.hostEnds[i] = b
		switch n := f.size / 2; {
		case f.way == halves:
			err = errors.Join(b.part(0, n).fill(ctx, c.pattern), b.part(n, n).fill(ctx, c.pattern))
		case f.way == oneWay && f.src.Device == nil:
			err = b.fill(ctx, c.pattern)
		}
		if err != nil {
			return nil, errors.Join(err, made.close())
		}
	}
	return made.close, nil
}

// contender makes a copier whose devices have memory of this kind and layout.
func (c *copyGroup) contender(ctx context.Context, kind string, layout shape) (_ contender, err error) {
	x := &copier{copyGroup: c, kind: kind, layout: layout, peers: c.reached()}
	defer func() { onError(&err, x.close) }()
	if kind != legacyPeer {
		for _, pair := range x.peers {
			if pair[0] != c.timing {
				continue // found when that one has the timer
			}
			if err := x.checkPeerAccessOff(pair[0], pair[1]); err != nil {
				return nil, err
			}
		}
	}
	for i, f := range c.flows {
		if err := x.addFlow(ctx, i, f); err != nil {
			return nil, err
		}
	}
	// Copies that go through the host do not run behind a gate.
	if x.timer, err = newTimer(c.timing, len(x.copies), c.gated && !c.gateTimedOut[kind] && kind != noPeer); err != nil {
		return nil, err
	}
	x.undo.add(x.timer.close)
	switch gate := x.timer.gate; {
	case gate == nil && c.byDevice:
		x.timer.flag, x.timer.byDevice = ungated, true
	case gate != nil && len(x.peers) > 0:
		gate.timeout = c.timing.settings.peerGateTimeout
	}
	x.cost, err = x.timer.cost(ctx, x.copies...)
	return x, err
}

// onlyDevice is the error of a case that takes two devices.
func onlyDevice(dev device, what string) error {
	return fmt.Errorf("%s is the only device, and %s takes two: %w", dev, what, driver.ErrNotSupported)
}
