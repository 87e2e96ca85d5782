package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/measure"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/verify"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

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
		if f, err = c.onOther(by.raw, f); err != nil {
			return err
		}
	}
	queue := f
	if c.call == callSync {
		f = func(s driver.Stream) error { return cmp.Or(queue(s), c.timing.raw.SyncStream(s)) }
	}
	c.copies = append(c.copies, f)
	return nil
}

// onOther has another device make a copy, between two events of a stream of this
// device, whose timer takes the time.
func (c *copier) onOther(to driver.Device, f copyFunc) (copyFunc, error) {
	from := c.timing.raw
	begun, err := c.undo.event(from, 0)
	if err != nil {
		return nil, err
	}
	ended, err := c.undo.event(to, 0)
	if err != nil {
		return nil, err
	}
	s, err := c.undo.stream(to)
	return func(timed driver.Stream) error {
		// The other device's stream begins after the timed one has come here, and the timed
		// one goes on after the other has copied.
		return cmp.Or(from.Record(begun, timed), to.Wait(s, begun), f(s), to.Record(ended, s), from.Wait(timed, ended))
	}, err
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
	if c.first && len(s.Parts) > 0 {
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
	// What the samples left must not pass for the work of this copy. Until now no data were
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
