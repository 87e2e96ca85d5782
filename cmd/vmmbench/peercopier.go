package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/measure"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/verify"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// flow is copies on a stream of their own, one after the other. Several run at once.
type flow struct {
	src, dst device // without a Device: pinned memory of the host
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

// peerPair is copies that a device times, of which some may reach another one's memory.
type peerPair struct {
	from, to     device // from has the timer
	engine       string
	direction    string
	size         uint64
	flows        []flow // if empty, they follow from the direction
	first        bool   // the time is the first flow's; the others are its load
	pattern      verify.Pattern
	gateable     bool
	gateTimedOut map[string]bool // kinds of memory whose copies had to wait for a gate; shared by all pairs
	hostEnds     []*buffer       // of each flow the host's memory, if it has any
}

// plannedFlows are the copies that the direction means.
func (p *peerPair) plannedFlows() []flow {
	write := flow{p.from, p.to, p.from, p.size, oneWay}
	switch {
	case len(p.flows) > 0:
		return p.flows
	case p.direction == fromPeer:
		return []flow{{p.to, p.from, p.from, p.size, oneWay}}
	case p.direction == both:
		return []flow{write, {p.to, p.from, p.to, p.size, oneWay}}
	}
	return []flow{write}
}

// reached are the devices whose memory another device reaches, with that one before each.
func (p *peerPair) reached() (pairs [][2]device) {
	for _, f := range p.plannedFlows() {
		for _, end := range f.ends() {
			if pair := [2]device{f.by, end}; end.Device != nil && end != f.by && !slices.Contains(pairs, pair) {
				pairs = append(pairs, pair)
			}
		}
	}
	return pairs
}

// setup makes the host's memory. All contenders have the same.
func (p *peerPair) setup(ctx context.Context) (func() error, error) {
	undo := func() error {
		err := freeAll(p.hostEnds...)
		p.hostEnds = nil
		return err
	}
	for _, f := range p.plannedFlows() {
		var b *buffer
		if slices.ContainsFunc(f.ends(), func(d device) bool { return d.Device == nil }) {
			var err error
			b, err = hostBuffer(f.by, pinned, f.size)
			switch {
			case err != nil:
			case f.way == oneWay:
				err = b.fill(ctx, p.pattern)
			case f.way == halves:
				n := f.size / 2
				err = errors.Join(b.part(0, n).fill(ctx, p.pattern), b.part(n, n).fill(ctx, p.pattern))
			}
			if err != nil {
				return nil, errors.Join(err, freeAll(b), undo())
			}
		}
		p.hostEnds = append(p.hostEnds, b)
	}
	return undo, nil
}

// peerCopier is a copier whose copies may reach another device's memory.
type peerCopier struct {
	copier
	pair    *peerPair
	kind    string
	chase   *chase
	disable func() error // of peer access that is on; nil: it is off
}

// contender makes a copier for memory of this kind.
func (p *peerPair) contender(ctx context.Context, kind string) (_ contender, err error) {
	c := &peerCopier{pair: p, kind: kind, copier: copier{
		copyKind: copyKind{engine: p.engine, direction: p.direction, host: noHost, call: callAsync, streams: 1}, pattern: p.pattern,
	}}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.close())
		}
	}()
	if kind != legacyPeer {
		for _, pair := range p.reached() {
			if pair[0] != p.from {
				continue // found when that one has the timer
			}
			if err := c.checkPeerAccessOff(pair[0], pair[1]); err != nil {
				return nil, err
			}
		}
	}
	for i, f := range p.plannedFlows() {
		if err := c.addFlow(ctx, i, f); err != nil {
			return nil, err
		}
	}
	// Copies that go through the host do not run behind a gate.
	gateable := p.gateable && !p.gateTimedOut[kind] && kind != noPeer
	if c.timer, err = newTimer(p.from, len(c.copies), gateable); err != nil {
		return nil, err
	}
	if c.timer.gate != nil {
		if len(p.reached()) > 0 {
			c.timer.gate.timeout = p.from.settings.peerGateTimeout
		}
	} else {
		c.timer.flag, c.timer.byDevice = ungated, true
	}
	c.cost, err = c.timer.cost(ctx, c.copies...)
	return c, err
}

// addFlow makes the memory of the i-th flow on its devices and adds its copies.
func (c *peerCopier) addFlow(ctx context.Context, i int, x flow) error {
	var ends [2]*buffer
	for k, owner := range x.ends() {
		var err error
		switch {
		case owner.Device == nil:
			ends[k] = c.pair.hostEnds[i]
		case x.way == chasing && k == 0: // it only follows the pointers
		default:
			ends[k], err = c.memory(ctx, owner, x.by, x.size)
		}
		if err != nil {
			return err
		}
	}
	t := transfer{ends[0], ends[1]}
	f := func(s driver.Stream) error { return x.by.raw.Copy(t.dst.ptr, t.src.ptr, x.size, s) }
	switch {
	case x.way == chasing:
		var err error
		if c.chase, err = newChase(c, x.by, t.dst); err != nil {
			return err
		}
		f = c.chase.queue
	case x.way == halves:
		k, err := x.by.kernels.loadBench()
		if err != nil {
			return err
		}
		n := x.size / 2
		there, back := transfer{t.src.part(0, n), t.dst.part(0, n)}, transfer{t.dst.part(n, n), t.src.part(n, n)}
		c.transfers = append(c.transfers, there, back)
		on := c.wrapped(x.by)
		f = func(s driver.Stream) error {
			return k.both(on(s), there.dst.span(), there.src.span(), back.dst.span(), back.src.span(), n)
		}
	case c.engine == engineSM:
		k, err := x.by.kernels.load()
		if err != nil {
			return err
		}
		f = c.copyBySM(x.by, k, t, 0, x.size)
	}
	if x.way == oneWay {
		c.transfers = append(c.transfers, t)
	}
	if x.by != c.pair.from {
		var err error
		if f, err = c.onOther(x.by, f); err != nil {
			return err
		}
	}
	c.copies = append(c.copies, f)
	return nil
}

// memory makes one end of a transfer: memory of owner that the device by copies
// from or to.
func (c *peerCopier) memory(ctx context.Context, owner, by device, n uint64) (*buffer, error) {
	kind, layout := memPlain, shape{size: n}
	if c.kind == memVMM {
		kind = memVMM
		if owner != by {
			layout.peer = by.Device
		}
	}
	return c.deviceEnd(ctx, owner, kind, layout)
}

// onOther has another device make a copy, between two events of a stream of this
// device, whose timer takes the time.
func (c *peerCopier) onOther(by device, f copyFunc) (copyFunc, error) {
	from, to := c.pair.from.raw, by.raw
	s, err := to.NewStream()
	if err != nil {
		return nil, err
	}
	c.undo = append(c.undo, func() error { return errors.Join(to.SyncStream(s), to.FreeStream(s)) })
	begun, err := c.event(from)
	if err != nil {
		return nil, err
	}
	ended, err := c.event(to)
	if err != nil {
		return nil, err
	}
	return func(timed driver.Stream) error {
		// The other device's stream begins after the timed one has come here.
		if err := from.Record(begun, timed); err != nil {
			return err
		}
		if err := to.Wait(s, begun); err != nil {
			return err
		}
		if err := f(s); err != nil {
			return err
		}
		// The timed stream goes on after the other one has copied.
		if err := to.Record(ended, s); err != nil {
			return err
		}
		return from.Wait(timed, ended)
	}, nil
}

// event makes an event of a device. c frees it.
func (c *peerCopier) event(raw driver.Device) (driver.Event, error) {
	e, err := raw.NewEvent(0)
	if err == nil {
		c.undo = append(c.undo, func() error { return raw.FreeEvent(e) })
	}
	return e, err
}

// checkPeerAccessOff makes sure that peer access is off, by switching it on and
// off again. If the devices cannot have peer access, there is nothing to check.
func (c *peerCopier) checkPeerAccessOff(from, to device) error {
	peer, ok := from.raw.(driver.LegacyPeers)
	if !ok {
		return nil
	}
	switch err := peer.EnablePeer(to.Info().Ordinal); {
	case errors.Is(err, driver.ErrNotSupported):
		return nil
	case errors.Is(err, driver.ErrPeerEnabled):
		return fmt.Errorf("peer access of %s to %s was switched on by other code in this process: %w", from, to, err)
	case err != nil:
		return err
	}
	c.disable = func() error { return peer.DisablePeer(to.Info().Ordinal) }
	return c.disablePeerAccess()
}

// withPeerAccess calls f. If this kind of memory needs peer access, it is on
// during the call.
func (c *peerCopier) withPeerAccess(f func() error) (err error) {
	if c.kind != legacyPeer {
		return f()
	}
	var devs []device
	for _, pair := range c.pair.reached() {
		for _, dev := range pair {
			if !slices.Contains(devs, dev) {
				devs = append(devs, dev)
			}
		}
	}
	if c.disable, err = vmm.EnableLegacyPeers(withoutRaw(devs)...); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.disablePeerAccess()) }()
	return f()
}

// disablePeerAccess switches peer access off. If it fails, the next call tries
// again.
func (c *peerCopier) disablePeerAccess() error {
	if c.disable == nil {
		return nil
	}
	err := c.disable()
	if err == nil {
		c.disable = nil
	}
	return err
}

func (c *peerCopier) measure(ctx context.Context, loops int) (s measure.Sample, err error) {
	err = c.withPeerAccess(func() error {
		// The first copy after the switch is slower and does not count.
		if len(c.pair.reached()) > 0 {
			if _, err := c.timer.time(ctx, 1, c.copies...); err != nil {
				return err
			}
		}
		s, err = c.copier.measure(ctx, loops)
		if c.pair.first && len(s.Parts) > 0 {
			s.NS = s.Parts[0]
		}
		if c.chase != nil {
			s.NS /= float64(c.chase.steps)
		}
		if c.timer.flag == gateTimedOut {
			c.pair.gateTimedOut[c.kind] = true
		}
		return err
	})
	return s, err
}

func (c *peerCopier) verify(ctx context.Context, mode verify.Mode, corrupt int64) (r verify.Result, err error) {
	err = c.withPeerAccess(func() error {
		if c.chase != nil && mode != verify.Off {
			r, err = c.chase.verify(ctx, c.timer, mode, corrupt)
			return err
		}
		r, err = c.copier.verify(ctx, mode, corrupt)
		return err
	})
	return r, err
}

func (c *peerCopier) close() error {
	return errors.Join(c.disablePeerAccess(), c.copier.close())
}
