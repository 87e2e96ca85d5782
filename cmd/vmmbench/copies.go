package main

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/measure"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/verify"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// flow is one copy after the other, on streams of its own. Several run at once.
type flow struct {
	ends [2]device // from, to; without a Device: memory of the host
	by   device    // copies
	size uint64
	way  flowWay
}

// flowWay is how a flow copies: the sign in its word.
type flowWay string

const (
	oneWay  flowWay = ">"
	halves  flowWay = "=" // one kernel copies the first half there and the second half back
	chasing flowWay = "?" // no copy: src follows pointers in the memory of dst
)

// flowsOf reads the flows that run at once, each a word: FROM>TO/BY*N is copied by the device BY,
// with N times n bytes. h is the host, a and b are these devices, o is each of all but a.
// Without BY, the device that has the data copies, or the one that gets them from the host.
// FROM=TO is a kernel that copies the first half there and the second half back. FROM?TO follows
// pointers in the memory of TO. The list is empty if a word needs a device that is not there.
func flowsOf(words string, n uint64, a, b device, all []device) (list []flow) {
	for word := range strings.FieldsSeq(words) {
		if strings.Contains(word, "b") && b.Device == nil {
			return nil
		}
		for _, o := range all {
			if strings.Contains(word, "o") != (o == a) { // for each other device, or once
				list = append(list, flowOf(word, n, map[byte]device{'a': a, 'b': b, 'o': o}))
			}
		}
	}
	return list
}

func flowOf(word string, n uint64, of map[byte]device) flow {
	word, times, _ := strings.Cut(word, "*")
	factor, _ := strconv.ParseUint(times, 10, 64) // 0 if it says nothing
	word, by, _ := strings.Cut(word, "/")
	f := flow{ends: [2]device{of[word[0]], of[word[2]]}, size: n * max(factor, 1), way: flowWay(word[1:2])}
	switch {
	case by != "":
		f.by = of[by[0]]
	case f.ends[0].Device != nil:
		f.by = f.ends[0]
	default:
		f.by = f.ends[1]
	}
	return f
}

// hasHost reports whether an end is memory of the host.
func (f flow) hasHost() bool { return f.ends[0].Device == nil || f.ends[1].Device == nil }

// peer is the device whose memory the one that copies reaches, without a Device if there is none.
func (f flow) peer() device {
	for _, end := range f.ends {
		if end.Device != nil && end != f.by {
			return end
		}
	}
	return device{}
}

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

// peerKind is how devices copy with each other.
var peerKind = copyKind{engine: engineCE, into: touched, call: callAsync, streams: 1}

// peerCopies are copies that run at once, of device a and others. The devices take the time.
func peerCopies(w copyKind, words string, n uint64, a, b device, all []device, timedOut map[string]bool) *copyGroup {
	c := &copyGroup{copyKind: w, timing: a, flows: flowsOf(words, n, a, b, all), gated: true, byDevice: true, gateTimedOut: timedOut}
	if len(c.flows) == 0 {
		c.refused = onlyDevice(a, "the case")
	} else {
		c.timing = c.flows[0].by
	}
	return c
}

// onlyDevice is the error of a case that takes two devices.
func onlyDevice(dev device, what string) error {
	return fmt.Errorf("%s is the only device, and %s takes two: %w", dev, what, driver.ErrNotSupported)
}

// moved are the bytes of all flows.
func (c *copyGroup) moved() (all uint64) {
	for _, f := range c.flows {
		all += f.size
	}
	return all
}

// peers are the devices that reach memory of each other.
func (c *copyGroup) peers() (devs []*vmm.Device) {
	for _, f := range c.flows {
		to := f.peer().Device
		for _, dev := range []*vmm.Device{f.by.Device, to} {
			if to != nil && !slices.Contains(devs, dev) {
				devs = append(devs, dev)
			}
		}
	}
	return devs
}

// group returns the group, still without cases. streams is how many streams share what may be
// queued behind a gate.
func (c *copyGroup) group(name string, seed uint64, streams int) group {
	g := group{name: name, samples: math.MaxInt, keepsMemory: true, setup: c.setup}
	// Each group has its own data: what another one left cannot pass for them.
	c.pattern.Seed = measure.Seed(seed, name)
	if c.gated = c.gated && hasGates(c.timing); c.gated {
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
		for _, end := range f.ends {
			switch {
			case end.Device != nil && onHost(end):
				g.memory += f.size
			case end.Device == nil && len(g.tasks) == 1:
				g.shared += f.size
			}
		}
	}
}

// addMems adds a case for each kind of memory, which is its last axis.
func (c *copyGroup) addMems(g *group, mems []string, n uint64, of report.Case) {
	start := of.Axes
	for _, kind := range mems {
		label := kind
		if kind == memPlain {
			label = memName(c.timing, kind)
		}
		of.Axes = append(slices.Clip(start), axes("engine", c.engine, "size", n, "mem", label)...)
		c.add(g, label, kind, shape{}, of)
	}
}

// setup makes the host's memory and writes all of it: what was never written is one page of zeros.
func (c *copyGroup) setup(ctx context.Context) (_ func() error, err error) {
	if c.refused != nil { // before any memory is made, so that all cases have the same reason
		return nil, c.refused
	}
	var made undo
	defer func() { onError(&err, made.close) }()
	c.hostEnds = make([]*buffer, len(c.flows))
	for i, f := range c.flows {
		if !f.hasHost() {
			continue
		}
		b, err := newBuffer(f.by, c.host, shape{size: f.size})
		if err != nil {
			return nil, err
		}
		made.add(func() error { return b.free() }) // of the memory that it has then
		c.hostEnds[i] = b
		if err := b.fill(ctx, c.pattern); err != nil {
			return nil, err
		}
	}
	return made.close, nil
}

// contender makes a copier whose devices have memory of this kind and layout.
func (c *copyGroup) contender(ctx context.Context, kind string, layout shape) (_ contender, err error) {
	x := &copier{copyGroup: c, kind: kind, layout: layout}
	defer func() { onError(&err, x.close) }()
	for i, f := range c.flows {
		if err := x.addFlow(ctx, c.hostEnds[i], f); err != nil {
			return nil, err
		}
	}
	// Copies that go through the host do not run behind a gate.
	gateable := c.gated && !c.gateTimedOut[kind] && kind != noPeer
	if x.timer, err = newTimer(c.timing, len(x.copies), gateable, c.byDevice); err != nil {
		return nil, err
	}
	x.undo.add(x.timer.close)
	if gate := x.timer.gate; gate != nil && len(c.peers()) > 0 {
		gate.timeout = c.timing.settings.peerGateTimeout
	}
	x.cost, err = x.timer.cost(ctx, x.copies...)
	return x, err
}
