package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/measure"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/size"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/verify"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/spf13/cobra"
)

// Ways to reach the memory of another device, as --mem takes them; vmm is memVMM.
const (
	noPeer     = "none"   // plain memory, peer access off: the driver takes it through the host
	legacyPeer = "enable" // plain memory, peer access on
)

// Directions of a copy between devices, seen from the device that copies.
const (
	toPeer   = "write"
	fromPeer = "read"
)

// tiny is the size up to which a copy is a measure of latency, not of bandwidth.
const tiny = 4096

// peerGateTimeout is how long queueing behind a gate may take. What goes through
// the host may wait for it, and there are many pairs.
const peerGateTimeout = 250 * time.Millisecond

// p2pPlan is what p2p measures.
type p2pPlan struct {
	mems, directions choices
	sizes            size.List
	grants           []int
}

func newP2PPlan() *p2pPlan {
	mems, directions := []string{noPeer, legacyPeer, memVMM}, []string{toPeer, fromPeer, both}
	return &p2pPlan{
		mems: choices{of: mems, values: mems}, directions: choices{of: directions, values: directions},
		sizes: size.List{4, 64 << 20}, grants: []int{1, 10, 100},
	}
}

func (a *app) p2p() *cobra.Command {
	var m measureFlags
	p := newP2PPlan()
	c := command(&cobra.Command{
		Use:   "p2p",
		Short: "Measure copies between devices, and what granting access takes",
		Long: `Measure copies between every two of the devices, in both orders: the device in the
row, from, copies between memory of its own and memory of the device in the
column, to. write goes to the other's memory, read comes from it, both is either
device writing to the other's at once, and the sum. The memory is
  none    plain memory, peer access off: the driver goes through the host
  enable  plain memory, peer access on, as cudaDeviceEnablePeerAccess has it
  vmm     a range that grants access by SetAccess, peer access off
Every vmm case is compared with the other two; the ratio is of times, so above 1
vmm takes longer. Peer access is switched around each sample, outside of its
time, and a copy that does not count comes first.

Copies of 4 KiB or less are for latency: microseconds for one, each beginning
when the last has ended. grant and revoke time Range.Grant and Range.Revoke, with
the wait that revoking makes, by chunks of 2 MiB and by how many others get it.`,
		Example: `  vmmbench p2p
  vmmbench p2p --device cuda:0,cuda:1 --size 1G --samples 20 --grants 0
  vmmbench p2p --device cuda:all --size 4,64M --samples 10 --format json -o p2p.txt`,
	})
	f := c.Flags()
	m.add(f, 15, time.Second)
	m.addVerify(f)
	m.addMinTime(f)
	m.margin = 0.01
	f.Lookup("margin").DefValue = m.margin.String()
	f.Lookup("device").Usage = "the devices: auto (all of CUDA's, else two of the host), cuda:all, host, or a list such as cuda:0,cuda:2"
	f.Var(&p.mems, "mem", "ways to reach the other's memory")
	f.Var(&p.directions, "direction", "directions; both is each writing to the other's memory at once")
	f.Var(&p.sizes, "size", "bytes of one copy: a list or a range")
	f.IntSliceVar(&p.grants, "grants", p.grants, "how many chunks of 2 MiB access is granted to; 0 leaves that out")
	c.RunE = func(c *cobra.Command, _ []string) error {
		return a.measureOn(c.Context(), c.Name(), &m, func(use func([]*vmm.Device, []group) error) error {
			names, err := p2pNames(m.device)
			if err != nil {
				return err
			}
			return onDevices(names, func(devs []*vmm.Device) error {
				groups, err := p.groups(devs, m.seed)
				if err != nil {
					return err
				}
				return use(devs, groups)
			})
		})
	}
	return c
}

// p2pNames are the devices that --device of p2p stands for.
func p2pNames(which string) ([]string, error) {
	hosts := []string{"host:0", "host:1"}
	if which == "host" {
		return hosts, nil
	}
	if which != "auto" && which != "cuda:all" {
		names := strings.Split(which, ",")
		for i, name := range names {
			if slices.Contains(names[:i], name) {
				return nil, usageError{fmt.Errorf("--device %s: %s is named twice", which, name)}
			}
		}
		return names, nil
	}
	list, err := vmm.Devices()
	if err != nil {
		return nil, err
	}
	var names []string
	for _, d := range list {
		if strings.HasPrefix(d.Open, "cuda:") {
			names = append(names, d.Open)
		}
	}
	switch {
	case len(names) > 0:
		return names, nil
	case which == "auto":
		return hosts, nil
	}
	return []string{"cuda:0"}, nil // which says why there is none
}

// onDevices calls f with open devices.
func onDevices(names []string, f func([]*vmm.Device) error) (err error) {
	var devs []*vmm.Device
	defer func() {
		for _, dev := range slices.Backward(devs) {
			err = errors.Join(err, dev.Close())
		}
	}()
	for _, name := range names {
		dev, err := open(name)
		if err != nil {
			return err
		}
		devs = append(devs, dev)
	}
	return f(devs)
}

// groups plans one group for each direction, size and ordered pair, and one for
// each number of chunks and of devices that are granted access.
func (p *p2pPlan) groups(devs []*vmm.Device, seed uint64) ([]group, error) {
	for i, dev := range devs {
		for _, other := range devs[:i] {
			switch {
			case dev.Driver() != other.Driver():
				return nil, usageError{fmt.Errorf("%s and %s are of two drivers", other, dev)}
			case dev.Info().Ordinal == other.Info().Ordinal:
				return nil, usageError{fmt.Errorf("%s is named twice", dev)}
			}
		}
	}
	if len(devs) < 2 {
		return []group{noPair(devs[0])}, nil
	}
	var list []group
	blocks := map[string]bool{}
	for _, direction := range p.directions.values {
		for _, n := range p.sizes {
			if err := checkSize(n); err != nil {
				return nil, err
			}
			if n <= tiny && direction == both {
				continue // latency is of one copy
			}
			for _, from := range devs {
				for _, to := range devs {
					if from == to {
						continue
					}
					g, err := p.group(&pairOf{from: from, to: to, direction: direction, size: n, blocks: blocks}, seed)
					if err != nil {
						return nil, err
					}
					list = append(list, g)
				}
			}
		}
	}
	for _, n := range p.grants {
		if n < 0 || n > 1<<20 {
			return nil, usageError{fmt.Errorf("--grants %d: want 0 to %d", n, 1<<20)}
		}
		for k := 1; n > 0 && k < len(devs); k++ {
			list = append(list, grantGroup(devs[0], devs[1:k+1], n))
		}
	}
	if len(list) == 0 {
		return nil, usageError{fmt.Errorf("nothing to measure: copies of up to %d bytes go one way", tiny)}
	}
	return list, nil
}

// noPair is what there is to say of one device alone.
func noPair(dev *vmm.Device) group {
	return group{
		name: "p2p/pairs", samples: 1,
		tasks: []task{{
			label: "pairs", c: report.Case{ID: "p2p/pairs", Unit: unitGBs, Axes: report.Axes{{Name: "from", Value: dev.String()}, {Name: "to", Value: "-"}}},
			open: func(context.Context) (contender, error) {
				return nil, fmt.Errorf("%s is the only device, and a pair takes two: %w", dev, driver.ErrNotSupported)
			},
		}},
	}
}

// pairOf is a device that copies, and one whose memory it reaches.
type pairOf struct {
	from, to       *vmm.Device
	fromRaw, toRaw driver.Device
	direction      string
	size           uint64
	pattern        verify.Pattern
	gateable       bool
	blocks         map[string]bool // kinds whose copies waited for a gate, of all pairs
}

func (p *p2pPlan) group(pair *pairOf, seed uint64) (_ group, err error) {
	from, to, direction, n := pair.from, pair.to, pair.direction, pair.size
	if pair.fromRaw, err = from.Raw(); err != nil {
		return group{}, err
	}
	if pair.toRaw, err = to.Raw(); err != nil {
		return group{}, err
	}
	g := group{
		name:    fmt.Sprintf("p2p/%s/%s/%s-%s", direction, size.Format(n), from, to),
		samples: math.MaxInt,
	}
	pair.pattern.Seed = measure.Seed(seed, g.name)
	if _, _, pair.gateable = gateParts(from, pair.fromRaw); pair.gateable {
		g.maxLoops = gatedLoops
	}
	payload, unit := n, unitGBs
	if direction == both {
		payload *= 2
	}
	if n <= tiny {
		unit = unitUs
	}
	for _, kind := range p.mems.values {
		g.tasks = append(g.tasks, task{
			label: kind,
			grows: kind == memVMM,
			c: report.Case{
				ID: g.name + "/" + kind, Unit: unit, Bytes: payload,
				Axes: report.Axes{
					{Name: "from", Value: from.String()}, {Name: "to", Value: to.String()},
					{Name: "direction", Value: direction}, {Name: "size", Value: n}, {Name: "mem", Value: kind},
				},
			},
			open: func(ctx context.Context) (contender, error) { return pair.contender(ctx, kind) },
		})
	}
	if from.Driver().Name() == "host" {
		g.memory = 2 * payload * uint64(len(g.tasks))
	}
	return g, nil
}

func (p *pairOf) contender(ctx context.Context, kind string) (_ contender, err error) {
	c := &peerCopier{pair: p, kind: kind, copier: copier{way: way{direction: p.direction, host: noHost, call: callAsync, streams: 1}, pattern: p.pattern}}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.close())
		}
	}()
	if kind != legacyPeer {
		if err := c.prove(); err != nil {
			return nil, err
		}
	}
	// memory makes the end of a leg: memory of one device that the other reaches
	// too, or that it has for itself.
	memory := func(owner, reachedBy *vmm.Device, filled bool) (*buffer, error) {
		mem, layout := memPlain, shape{size: p.size}
		if kind == memVMM {
			mem, layout.peer = memVMM, reachedBy
		}
		raw := p.fromRaw
		if owner == p.to {
			raw = p.toRaw
		}
		b, err := deviceBuffer(owner, raw, mem, layout)
		if err != nil {
			return nil, err
		}
		c.own = append(c.own, b)
		if filled {
			return b, b.fill(ctx, p.pattern)
		}
		return b, b.poison(ctx)
	}
	// between copies from the memory of one device to that of another.
	between := func(src, dst, by *vmm.Device) (l leg, err error) {
		reach := func(owner *vmm.Device) *vmm.Device {
			if owner == by {
				return nil
			}
			return by
		}
		if l.src, err = memory(src, reach(src), true); err != nil {
			return l, err
		}
		l.dst, err = memory(dst, reach(dst), false)
		return l, err
	}
	here := func(l leg) queue {
		return func(s driver.Stream) error { return p.fromRaw.Copy(l.dst.ptr, l.src.ptr, p.size, s) }
	}
	if p.direction == toPeer || p.direction == both {
		l, err := between(p.from, p.to, p.from)
		if err != nil {
			return nil, err
		}
		c.legs, c.queues = append(c.legs, l), append(c.queues, here(l))
	}
	if p.direction == fromPeer {
		l, err := between(p.to, p.from, p.from)
		if err != nil {
			return nil, err
		}
		c.legs, c.queues = append(c.legs, l), append(c.queues, here(l))
	}
	if p.direction == both {
		l, err := between(p.to, p.from, p.to)
		if err != nil {
			return nil, err
		}
		there, err := c.elsewhere(l)
		if err != nil {
			return nil, err
		}
		c.legs, c.queues = append(c.legs, l), append(c.queues, there)
	}
	// What goes by way of the host does not run behind a gate.
	gateable := p.gateable && !p.blocks[kind] && kind != noPeer
	c.timer, err = newTimer(p.from, p.fromRaw, len(c.queues), gateable)
	if c.timer.gate != nil {
		c.timer.gate.timeout = peerGateTimeout
	} else {
		c.timer.flag, c.timer.byDevice = ungated, true
	}
	return c, err
}

// elsewhere has the other device copy, between two points of a stream of this
// one's, which keeps the time.
func (c *peerCopier) elsewhere(l leg) (queue, error) {
	from, to := c.pair.fromRaw, c.pair.toRaw
	s, err := to.NewStream()
	if err != nil {
		return nil, err
	}
	c.undo = append(c.undo, func() error { return errors.Join(to.SyncStream(s), to.FreeStream(s)) })
	var begun, ended driver.Event
	for _, e := range []struct {
		raw driver.Device
		at  *driver.Event
	}{{from, &begun}, {to, &ended}} {
		if *e.at, err = e.raw.NewEvent(0); err != nil {
			return nil, err
		}
		c.undo = append(c.undo, func() error { return e.raw.FreeEvent(*e.at) })
	}
	return func(clock driver.Stream) error {
		if err := from.Record(begun, clock); err != nil {
			return err
		}
		if err := to.Wait(s, begun); err != nil {
			return err
		}
		if err := to.Copy(l.dst.ptr, l.src.ptr, c.pair.size, s); err != nil {
			return err
		}
		if err := to.Record(ended, s); err != nil {
			return err
		}
		return from.Wait(clock, ended)
	}, nil
}

// peerCopier is a copier whose copies reach another device's memory.
type peerCopier struct {
	copier
	pair    *pairOf
	kind    string
	disable func() error // peer access that is on; nil: none
	undo    []func() error
}

// prove makes sure that peer access is off, by switching it on and off again.
// Where it cannot be on there is nothing to do.
func (c *peerCopier) prove() error {
	peer, ok := c.pair.fromRaw.(driver.LegacyPeers)
	if !ok {
		return nil
	}
	from, to := c.pair.from, c.pair.to
	switch err := peer.EnablePeer(to.Info().Ordinal); {
	case errors.Is(err, driver.ErrNotSupported):
		return nil
	case errors.Is(err, driver.ErrPeerEnabled):
		return fmt.Errorf("peer access of %s to %s was switched on by somebody else: %w", from, to, err)
	case err != nil:
		return err
	}
	c.disable = func() error { return peer.DisablePeer(to.Info().Ordinal) }
	return c.off()
}

// reaching calls f while peer access is on, if this kind of memory wants it.
func (c *peerCopier) reaching(f func() error) (err error) {
	if c.kind != legacyPeer {
		return f()
	}
	if c.disable, err = vmm.EnableLegacyPeers(c.pair.from, c.pair.to); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.off()) }()
	return f()
}

// off switches peer access off. After an error it is to be called again.
func (c *peerCopier) off() error {
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
	err = c.reaching(func() error {
		if _, err := c.timer.time(ctx, 1, c.queues...); err != nil {
			return err
		}
		s, err = c.copier.measure(ctx, loops)
		if c.timer.flag == gateTimedOut {
			c.pair.blocks[c.kind] = true
		}
		return err
	})
	return s, err
}

func (c *peerCopier) verify(ctx context.Context, mode verify.Mode, corrupt int64) (r verify.Result, err error) {
	err = c.reaching(func() error {
		r, err = c.copier.verify(ctx, mode, corrupt)
		return err
	})
	return r, err
}

func (c *peerCopier) close() error {
	err := c.off()
	for i := len(c.undo) - 1; i >= 0; i-- {
		err = errors.Join(err, c.undo[i]())
	}
	c.undo = nil
	return errors.Join(err, c.copier.close())
}

// Operations on the access of others.
const (
	opGrant  = "grant"
	opRevoke = "revoke"
)

// grantChunk is the size of a chunk that access is granted to: the smallest
// there is on most devices, so that there are many.
const grantChunk = 2 << 20

// grantGroup times granting access to n chunks of the owner, and revoking it.
func grantGroup(owner *vmm.Device, peers []*vmm.Device, n int) group {
	all := uint64(n) * grantChunk
	g := group{name: fmt.Sprintf("grant/%dx%s/peers-%d", n, size.Format(grantChunk), len(peers)), samples: math.MaxInt, maxLoops: 1}
	for _, op := range []string{opGrant, opRevoke} {
		g.tasks = append(g.tasks, task{
			label: op,
			c: report.Case{
				ID: g.name + "/" + op, Unit: unitUs, Bytes: all,
				Axes: report.Axes{
					{Name: "owner", Value: owner.String()}, {Name: "chunks", Value: n},
					{Name: "peers", Value: len(peers)}, {Name: "op", Value: op},
				},
			},
			open: func(context.Context) (contender, error) {
				r, err := grownRange(owner, shape{size: all, chunk: grantChunk})
				if err != nil {
					return nil, err
				}
				return &operation{name: op, ready: func(context.Context) {}, undo: r.Close, do: func(w *stopwatch) error {
					if err := w.call(opGrant, func() error { return r.Grant(vmm.AccessReadWrite, peers...) }); err != nil {
						return err
					}
					return w.call(opRevoke, func() error { return r.Revoke(peers...) })
				}}, nil
			},
		})
	}
	if owner.Driver().Name() == "host" {
		g.memory = all * uint64(len(g.tasks))
	}
	return g
}
