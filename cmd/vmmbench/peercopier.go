package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/measure"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/verify"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// peerPair is a device that copies, and one whose memory it reaches.
type peerPair struct {
	from, to     device
	engine       string
	direction    string
	size         uint64
	pattern      verify.Pattern
	gateable     bool
	gateTimedOut map[string]bool // kinds of memory whose copies had to wait for a gate; shared by all pairs
}

// peerCopier is a copier whose copies reach another device's memory.
type peerCopier struct {
	copier
	pair    *peerPair
	kind    string
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
		if err := c.checkPeerAccessOff(); err != nil {
			return nil, err
		}
	}
	if p.direction != fromPeer {
		if err := c.addCopy(ctx, p.from, p.to, p.from); err != nil {
			return nil, err
		}
	}
	switch p.direction {
	case fromPeer:
		err = c.addCopy(ctx, p.to, p.from, p.from)
	case both:
		err = c.addCopy(ctx, p.to, p.from, p.to)
	}
	if err != nil {
		return nil, err
	}
	// Copies that go through the host do not run behind a gate.
	gateable := p.gateable && !p.gateTimedOut[kind] && kind != noPeer
	if c.timer, err = newTimer(p.from, len(c.copies), gateable); err != nil {
		return nil, err
	}
	if c.timer.gate != nil {
		c.timer.gate.timeout = p.from.settings.peerGateTimeout
	} else {
		c.timer.flag, c.timer.byDevice = ungated, true
	}
	c.cost, err = c.timer.cost(ctx, c.copies...)
	return c, err
}

// addCopy makes memory of src and of dst and adds the copy between them, which
// the device by makes.
func (c *peerCopier) addCopy(ctx context.Context, src, dst, by device) error {
	var t transfer
	var err error
	if t.src, err = c.memory(ctx, src, by); err != nil {
		return err
	}
	if t.dst, err = c.memory(ctx, dst, by); err != nil {
		return err
	}
	f := func(s driver.Stream) error { return by.raw.Copy(t.dst.ptr, t.src.ptr, c.pair.size, s) }
	if c.engine == engineSM {
		k, err := by.kernels.load()
		if err != nil {
			return err
		}
		f = c.copyBySM(by, k, t, 0, c.pair.size)
	}
	if by != c.pair.from {
		if f, err = c.onOther(f); err != nil {
			return err
		}
	}
	c.transfers, c.copies = append(c.transfers, t), append(c.copies, f)
	return nil
}

// memory makes one end of a transfer: memory of owner that the device by copies
// from or to.
func (c *peerCopier) memory(ctx context.Context, owner, by device) (*buffer, error) {
	kind, layout := memPlain, shape{size: c.pair.size}
	if c.kind == memVMM {
		kind = memVMM
		if owner != by {
			layout.peer = by.Device
		}
	}
	return c.deviceEnd(ctx, owner, kind, layout)
}

// onOther has the other device make a copy, between two events of a stream of this
// device, whose timer takes the time.
func (c *peerCopier) onOther(f copyFunc) (copyFunc, error) {
	from, to := c.pair.from.raw, c.pair.to.raw
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
func (c *peerCopier) checkPeerAccessOff() error {
	peer, ok := c.pair.from.raw.(driver.LegacyPeers)
	if !ok {
		return nil
	}
	from, to := c.pair.from, c.pair.to
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
	if c.disable, err = vmm.EnableLegacyPeers(c.pair.from.Device, c.pair.to.Device); err != nil {
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
		if _, err := c.timer.time(ctx, 1, c.copies...); err != nil {
			return err
		}
		s, err = c.copier.measure(ctx, loops)
		if c.timer.flag == gateTimedOut {
			c.pair.gateTimedOut[c.kind] = true
		}
		return err
	})
	return s, err
}

func (c *peerCopier) verify(ctx context.Context, mode verify.Mode, corrupt int64) (r verify.Result, err error) {
	err = c.withPeerAccess(func() error {
		r, err = c.copier.verify(ctx, mode, corrupt)
		return err
	})
	return r, err
}

func (c *peerCopier) close() error {
	return errors.Join(c.disablePeerAccess(), c.copier.close())
}
