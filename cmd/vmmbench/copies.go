package main

import (
	"cmp"
	"context"
	"errors"
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
	if by == "" {
		by = strings.TrimLeft(word, "h>=?") // begins with the first that is not the host
	}
	return flow{ends: [2]device{of[word[0]], of[word[2]]}, by: of[by[0]], size: n * max(factor, 1), way: flowWay(word[1:2])}
}

// hasHost reports whether an end is memory of the host.
func (f flow) hasHost() bool { return f.ends[0].Device == nil || f.ends[1].Device == nil }

// peer is the other device whose memory the copying device uses, without a Device if there is none.
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

// peers are the devices that use memory of each other.
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
	_, can := gates(c.timing)
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

// setup makes the host's memory and writes all of it: memory that was never written is one page of zeros.
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

// transfer is what one copy does: dst gets the bytes of src.
type transfer struct{ src, dst *buffer }

// copier is a contender that copies.
type copier struct {
	*copyGroup
	kind      string
	layout    shape
	transfers []transfer
	copies    []copyFunc // of each flow as many as there are streams
	chase     *chase
	timer     *timer
	cost      float64      // of timing a sample, nanoseconds
	disable   func() error // of peer access that is on; nil: it is off
	undo      undo
}

// addFlow makes the memory of a flow on its devices and adds its copies. host is its memory there.
func (c *copier) addFlow(ctx context.Context, host *buffer, x flow) (err error) {
	if err := c.checkPeerAccessOff(x); err != nil {
		return err
	}
	ends := [2]*buffer{host, host}
	for i, dev := range x.ends {
		if dev.Device == nil || x.way == chasing && i == 0 { // which only follows the pointers
			continue
		}
		if ends[i], err = c.memory(ctx, dev, x); err != nil {
			return err
		}
	}
	t := transfer{ends[0], ends[1]}
	switch x.way {
	case chasing:
		if c.chase, err = newChase(x.by.kernels, t.dst); err != nil {
			return err
		}
		return c.addLaunch(x.by, c.chase.queue)
	case halves:
		n := x.size / 2
		there, back := transfer{t.src.part(0, n), t.dst.part(0, n)}, transfer{t.dst.part(n, n), t.src.part(n, n)}
		c.transfers = append(c.transfers, there, back)
		k := x.by.kernels
		return cmp.Or(k.loadBench(), c.addLaunch(x.by, func(s *vmm.Stream) error { return k.both(s, there, back, n) }))
	}
	c.transfers = append(c.transfers, t)
	eachPart(x.size, c.streams, func(off, n uint64) {
		err = cmp.Or(err, c.addTransfer(x.by, transfer{t.src.part(off, n), t.dst.part(off, n)}))
	})
	return err
}

// addTransfer adds a copy of a device, by the engine of the group.
func (c *copier) addTransfer(by device, t transfer) error {
	if c.engine == engineCE {
		return c.addCopy(by, t.src.copyTo(t.dst, by))
	}
	k, err := by.kernels.load()
	return cmp.Or(err, c.addLaunch(by, func(s *vmm.Stream) error { return k.Copy(s, t.dst, t.src) }))
}

// addLaunch adds a copy that kernels of a device make.
func (c *copier) addLaunch(by device, f func(*vmm.Stream) error) error {
	var on *vmm.Stream // of the one that the copy is always queued on
	return c.addCopy(by, func(s driver.Stream) error {
		if on == nil {
			on = by.WrapStream(uintptr(s))
			c.undo.add(on.Close)
		}
		return f(on)
	})
}

// memory makes one end of a flow: memory of owner. All of it is written: memory of the host gets
// its pages so.
func (c *copier) memory(ctx context.Context, owner device, x flow) (*buffer, error) {
	kind, layout := c.kind, c.layout
	layout.size = x.size
	if kind == noPeer || kind == legacyPeer {
		kind = memPlain
	}
	if owner != x.by {
		layout.peer = x.by.Device
	}
	b, err := newBuffer(owner, kind, layout)
	if err != nil {
		return nil, err
	}
	c.undo.add(b.free)
	return b, b.poison(ctx)
}

// addCopy adds a copy of a device.
func (c *copier) addCopy(by device, f copyFunc) (err error) {
	if by != c.timing {
		f, err = c.onOther(by.raw, f)
	}
	if queue := f; c.call == callSync {
		f = func(s driver.Stream) error { return cmp.Or(queue(s), c.timing.raw.SyncStream(s)) }
	}
	c.copies = append(c.copies, f)
	return err
}

// onOther has another device make a copy, between two events of a stream of this
// device, whose timer takes the time.
func (c *copier) onOther(to driver.Device, f copyFunc) (copyFunc, error) {
	from := c.timing.raw
	begun, errBegun := c.undo.event(from, 0)
	ended, errEnded := c.undo.event(to, 0)
	s, err := c.undo.stream(to)
	return func(timed driver.Stream) error {
		// The other device's stream begins after the timed one has come here, and the timed
		// one goes on after the other has copied.
		return cmp.Or(from.Record(begun, timed), to.Wait(s, begun), f(s), to.Record(ended, s), from.Wait(timed, ended))
	}, cmp.Or(errBegun, errEnded, err)
}

// checkPeerAccessOff makes sure that peer access is off where the memory needs none, by switching
// it on and off again. Only the device that times the copies checks it. If the devices cannot have
// peer access, there is nothing to check.
func (c *copier) checkPeerAccessOff(x flow) error {
	peer, ok := x.by.raw.(driver.LegacyPeers)
	to := x.peer()
	if !ok || to.Device == nil || x.by != c.timing || c.kind == legacyPeer {
		return nil
	}
	switch err := peer.EnablePeer(to.Info().Ordinal); {
	case errors.Is(err, driver.ErrNotSupported):
		return nil
	case errors.Is(err, driver.ErrPeerEnabled):
		return fmt.Errorf("peer access of %s to %s was switched on by other code in this process: %w", x.by, to, err)
	case err != nil:
		return err
	}
	c.disable = func() error { return peer.DisablePeer(to.Info().Ordinal) }
	return c.disablePeerAccess()
}

// disablePeerAccess switches peer access off. If it fails, the next call tries
// again.
func (c *copier) disablePeerAccess() error {
	if c.disable == nil {
		return nil
	}
	err := c.disable()
	if err == nil {
		c.disable = nil
	}
	return err
}

func (c *copier) measure(ctx context.Context, loops int) (s measure.Sample, err error) {
	peers := c.peers()
	if c.kind == legacyPeer {
		if c.disable, err = vmm.EnableLegacyPeers(peers...); err != nil {
			return s, err
		}
	}
	defer func() { err = errors.Join(err, c.disablePeerAccess()) }()
	if c.into == fresh { // such a group has one flow
		if err := c.hostEnds[0].renew(); err != nil {
			return s, err
		}
	}
	// The first copy after the switch is slower and does not count.
	if len(peers) > 0 {
		if _, err := c.timer.time(ctx, 1, c.copies...); err != nil {
			return s, err
		}
	}
	s, err = c.timer.time(ctx, loops, c.copies...)
	if c.first && err == nil {
		s.NS = s.Parts[0]
	}
	if c.chase != nil {
		s.NS /= float64(c.chase.steps)
	}
	if c.timer.flag == gateTimedOut && c.gateTimedOut != nil {
		c.gateTimedOut[c.kind] = true
	}
	return s, err
}

// verify copies once more and checks the targets. --corrupt flips a byte of the sources: the
// copies take it to where it is checked.
func (c *copier) verify(ctx context.Context, mode verify.Mode, corrupt int64) (r verify.Result, err error) {
	r.Mode = mode
	if mode == verify.Off {
		return r, nil
	}
	if c.chase != nil {
		return c.chase.verify(ctx, c, mode, corrupt)
	}
	// Bytes of earlier samples must not pass for the work of this copy. Until now no data were
	// needed on the device: memory is made anew several times, and filling it takes longer.
	for _, t := range c.transfers {
		if err := cmp.Or(t.src.fill(ctx, c.pattern), t.src.flip(corrupt), t.dst.poison(ctx)); err != nil {
			return r, err
		}
	}
	if _, err := c.measure(ctx, 1); err != nil {
		return r, err
	}
	for _, t := range c.transfers {
		chunks := t.dst.chunks
		if t.dst.host != nil {
			chunks = t.src.chunks // host memory has none, and an error is searched by the device's
		}
		of, err := t.dst.check(ctx, c.pattern, mode, chunks)
		r.Add(of)
		if err != nil {
			return r, err
		}
	}
	return r, nil
}

func (c *copier) describe(rc *report.Case, samples []measure.Sample) {
	rc.Flags = append(rc.Flags, c.timer.flag)
	if each := c.cost / float64(rc.Stats.Loops); each > 0.01*rc.Stats.Median {
		rc.Stats.Timer = &each
		rc.Flags = append(rc.Flags, timerCost)
	}
	if c.cached {
		rc.Flags = append(rc.Flags, cached)
	}
	switch c.direction {
	case d2d:
		traffic := 2 * rc.Stats.Value
		rc.Stats.Traffic = &traffic
	case both:
		// A transfer has ended when the last of its streams has.
		of := func(i int) float64 {
			var ns []float64
			for _, s := range samples {
				ns = append(ns, slices.Max(s.Parts[i*c.streams:(i+1)*c.streams]))
			}
			return bandwidth(c.flows[i].size, median(ns))
		}
		rc.Stats.Both = &report.Both{Forward: of(0), Reverse: of(1)}
	}
}

func (c *copier) close() error { return errors.Join(c.disablePeerAccess(), c.undo.close()) }
