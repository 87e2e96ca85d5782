package main

import (
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

// transfer is one copy, from a buffer that holds the pattern to one that does not.
type transfer struct{ src, dst *buffer }

// copier is a contender that copies.
type copier struct {
	*copyGroup
	kind      string
	layout    shape
	peers     [][2]device // see reached
	transfers []transfer
	copies    []copyFunc // of each flow as many as there are streams
	chase     *chase
	timer     *timer
	cost      float64      // of timing a sample, nanoseconds
	disable   func() error // of peer access that is on; nil: it is off
	undo      undo
}

// addFlow makes the memory of the i-th flow on its devices and adds its copies.
func (c *copier) addFlow(ctx context.Context, i int, x flow) (err error) {
	t := transfer{c.hostEnds[i], c.hostEnds[i]}
	if x.src.Device != nil && x.way != chasing { // which only follows the pointers
		if t.src, err = c.memory(ctx, x.src, x.by, x.size); err != nil {
			return err
		}
	}
	if x.dst.Device != nil {
		if t.dst, err = c.memory(ctx, x.dst, x.by, x.size); err != nil {
			return err
		}
	}
	parts, err := c.parts(t, x)
	if err != nil {
		return err
	}
	for k, f := range parts {
		if x.by != c.timing {
			if parts[k], err = c.onOther(x.by, f); err != nil {
				return err
			}
		}
		if c.call == callSync {
			parts[k] = parts[k].thenSync(c.timing.raw)
		}
	}
	c.copies = append(c.copies, parts...)
	return nil
}

// parts are the copies of a flow, one for each stream.
func (c *copier) parts(t transfer, x flow) ([]copyFunc, error) {
	switch {
	case x.way == chasing:
		var err error
		if c.chase, err = newChase(c, x.by, t.dst); err != nil {
			return nil, err
		}
		return []copyFunc{c.chase.queue}, nil
	case x.way == halves:
		k, err := x.by.kernels.loadBench()
		if err != nil {
			return nil, err
		}
		n := x.size / 2
		there, back := transfer{t.src.part(0, n), t.dst.part(0, n)}, transfer{t.dst.part(n, n), t.src.part(n, n)}
		c.transfers = append(c.transfers, there, back)
		on := c.wrapped(x.by)
		return []copyFunc{func(s driver.Stream) error {
			return k.both(on(s), there.dst.span(), there.src.span(), back.dst.span(), back.src.span(), n)
		}}, nil
	}
	c.transfers = append(c.transfers, t)
	if c.engine != engineSM {
		return splitCopy(x.size, c.streams, func(off, n uint64) copyFunc { return t.src.copyRange(t.dst, x.by, off, n) }), nil
	}
	k, err := x.by.kernels.load()
	if err != nil {
		return nil, err
	}
	return splitCopy(x.size, c.streams, func(off, n uint64) copyFunc {
		dst, src := t.dst.part(off, n).span(), t.src.part(off, n).span()
		src.access = vmm.AccessRead
		on := c.wrapped(x.by)
		return func(s driver.Stream) error { return k.Copy(on(s), dst, src) }
	}), nil
}

// wrapped returns a function that wraps a stream of the device, always the same one, for
// launches.
func (c *copier) wrapped(by device) func(driver.Stream) *vmm.Stream {
	var on *vmm.Stream
	return func(s driver.Stream) *vmm.Stream {
		if on == nil {
			on = by.WrapStream(uintptr(s))
			c.undo.add(on.Close)
		}
		return on
	}
}

// memory makes one end of a transfer: memory of owner that the device by copies from or to.
// All of it is written: memory of the host gets its pages so.
func (c *copier) memory(ctx context.Context, owner, by device, n uint64) (*buffer, error) {
	kind, layout := c.kind, c.layout
	layout.size = n
	if kind == noPeer || kind == legacyPeer {
		kind = memPlain
	}
	if owner != by {
		layout.peer = by.Device
	}
	b, err := deviceBuffer(owner, kind, layout)
	if err != nil {
		return nil, err
	}
	c.undo.add(b.free)
	return b, b.poison(ctx)
}

// onOther has another device make a copy, between two events of a stream of this
// device, whose timer takes the time.
func (c *copier) onOther(by device, f copyFunc) (copyFunc, error) {
	from, to := c.timing.raw, by.raw
	s, err := to.NewStream()
	if err != nil {
		return nil, err
	}
	c.undo.add(func() error { return errors.Join(to.SyncStream(s), to.FreeStream(s)) })
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
func (c *copier) event(raw driver.Device) (driver.Event, error) {
	e, err := raw.NewEvent(0)
	if err == nil {
		c.undo.add(func() error { return raw.FreeEvent(e) })
	}
	return e, err
}

// checkPeerAccessOff makes sure that peer access is off, by switching it on and
// off again. If the devices cannot have peer access, there is nothing to check.
func (c *copier) checkPeerAccessOff(from, to device) error {
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
func (c *copier) withPeerAccess(f func() error) (err error) {
	if c.kind != legacyPeer {
		return f()
	}
	var devs []*vmm.Device
	for _, pair := range c.peers {
		for _, dev := range pair {
			if !slices.Contains(devs, dev.Device) {
				devs = append(devs, dev.Device)
			}
		}
	}
	if c.disable, err = vmm.EnableLegacyPeers(devs...); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.disablePeerAccess()) }()
	return f()
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
	err = c.withPeerAccess(func() error {
		if err := c.refresh(); err != nil {
			return err
		}
		// The first copy after the switch is slower and does not count.
		if len(c.peers) > 0 {
			if _, err := c.timer.time(ctx, 1, c.copies...); err != nil {
				return err
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
		return err
	})
	return s, err
}

// refresh maps the host's memory anew, if each copy is to find it so.
func (c *copier) refresh() (err error) {
	for _, b := range c.hostEnds {
		if c.into == fresh {
			err = errors.Join(err, b.renew())
		}
	}
	return err
}

// once makes each copy once.
func (c *copier) once(ctx context.Context) error {
	return c.withPeerAccess(func() error {
		if err := c.refresh(); err != nil {
			return err
		}
		_, err := c.timer.time(ctx, 1, c.copies...)
		return err
	})
}

// verify copies once more and checks the targets. --corrupt flips a byte of the
// device buffer. That is the source where the target is host memory, and then
// the byte is flipped before the copy; else it is the target, after the copy.
func (c *copier) verify(ctx context.Context, mode verify.Mode, corrupt int64) (r verify.Result, err error) {
	r.Mode = mode
	if mode == verify.Off {
		return r, nil
	}
	if c.chase != nil {
		return c.chase.verify(ctx, c.once, mode, corrupt)
	}
	// What the samples left must not pass for the work of this copy. Until now no data were
	// needed on the device: memory is made anew several times, and filling it takes longer.
	for _, t := range c.transfers {
		if t.src.host == nil {
			err = t.src.fill(ctx, c.pattern)
		}
		if err == nil {
			err = t.dst.poison(ctx)
		}
		if err == nil && t.dst.host != nil {
			err = t.src.flip(corrupt)
		}
		if err != nil {
			return r, err
		}
	}
	if err := c.once(ctx); err != nil {
		return r, err
	}
	for _, t := range c.transfers {
		chunks := t.dst.chunks
		if t.dst.host != nil {
			chunks = t.src.chunks // host memory has none, and an error is searched by the device's
		} else if err := t.dst.flip(corrupt); err != nil {
			return r, err
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
