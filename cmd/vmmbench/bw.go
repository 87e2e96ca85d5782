package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/measure"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/size"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/verify"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/spf13/cobra"
)

// Directions of a copy, seen from the host.
const (
	h2d  = "h2d"
	d2h  = "d2h"
	d2d  = "d2d"
	both = "both"
)

// Kinds of host memory.
const (
	pageable = "pageable"
	pinned   = "pinned"
	staging  = "staging" // pageable, through this project's own pinned blocks
	noHost   = "none"    // a copy within the device
)

// bwPlan is what bw measures: every combination of these.
type bwPlan struct {
	directions, hosts, mems choices
	sizes, chunks, steps    size.List
	exportable, calls       choices
	streams                 counts
}

func newBWPlan() *bwPlan {
	return &bwPlan{
		directions: choices{of: []string{h2d, d2h, d2d, both}},
		hosts:      choices{of: []string{pageable, pinned, staging}},
		mems:       choices{of: []string{memVMM, memPlain, memAsync}},
		exportable: choices{of: []string{private, exportable}, values: []string{private}},
		steps:      size.List{0},
		calls:      choices{of: []string{callAsync, callSync}, values: []string{callAsync}},
		streams:    counts{1},
	}
}

// Values of --call.
const (
	callAsync = "async" // copies are queued, and waited for together
	callSync  = "sync"  // each copy is waited for
)

// Values of --exportable.
const (
	private    = "no"
	exportable = "yes"
)

// article is the table that is asked for most: one way at a time, memory that
// grows against ordinary memory.
func (p *bwPlan) article() {
	p.directions.values = []string{h2d, d2h, d2d}
	p.hosts.values = []string{pageable, pinned}
	p.mems.values = []string{memVMM, memPlain}
	p.sizes = size.List{16 << 20, 64 << 20, 256 << 20}
	p.chunks = size.List{0}
}

// full is everything this command can do, from small copies on.
func (p *bwPlan) full() {
	p.directions.values = p.directions.of
	p.hosts.values = p.hosts.of
	p.mems.values = p.mems.of
	p.sizes = size.List{64 << 10, 1 << 20, 16 << 20, 256 << 20}
	p.chunks = size.List{0, 2 << 20, 64 << 20}
}

func (a *app) bw() *cobra.Command {
	var m measureFlags
	p := newBWPlan()
	p.article()
	preset := choice{value: "article", of: []string{"article", "full"}}
	c := command(&cobra.Command{
		Use:   "bw",
		Short: "Measure copies: host to device, device to host, within the device",
		Long: `Measure copies between host and device and within the device, with memory that
grows (vmm) against memory that does not. Every pair with the same axes is
compared; the ratio is of times, so above 1 vmm takes longer.

Bandwidth is payload in GB/s, 1e9 bytes a second. A copy within the device reads
and writes every byte: its traffic is twice that, and is printed beside it.
Pageable memory is copied by the driver, staging is the same memory copied by
this project through pinned blocks of its own. With --step, vmm memory grows to its
size by appends of that many bytes, which is what decides its chunks.`,
		Example: `  vmmbench bw
  vmmbench bw --direction h2d,both --host pinned --size 64K:256M:x4
  vmmbench bw --direction d2d --size 64M:16G:x2 --step 1M --verify edges
  vmmbench bw --preset full --format json -o full.txt`,
	})
	f := c.Flags()
	m.add(f, 15, 4*time.Second)
	m.addVerify(f)
	m.addMinTime(f)
	f.Var(&preset, "preset", "what to measure, unless the flags below say otherwise")
	f.Var(&p.directions, "direction", "directions; both is up and down at once")
	f.Var(&p.hosts, "host", "kinds of host memory")
	f.Var(&p.mems, "mem", "kinds of device memory; plain is cuMemAlloc on CUDA and mmap on the host")
	f.Var(&p.sizes, "size", "bytes of one copy: a list such as 2M,64M or a range such as 64K:1G:x2")
	f.Var(&p.chunks, "chunk", "chunk sizes of vmm memory; 0 leaves them to the range")
	f.Var(&p.steps, "step", "bytes by which vmm memory grows to its size; 0 is all at once")
	f.Var(&p.calls, "call", "whether copies are queued, or each is waited for")
	f.Var(&p.streams, "streams", "how many streams share a copy")
	f.Var(&p.exportable, "exportable", "whether vmm memory could be given to another process")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if preset.value == "full" {
			given := *p
			p.full()
			for name, restore := range map[string]func(){
				"direction": func() { p.directions = given.directions },
				"host":      func() { p.hosts = given.hosts },
				"mem":       func() { p.mems = given.mems },
				"size":      func() { p.sizes = given.sizes },
				"chunk":     func() { p.chunks = given.chunks },
			} {
				if f.Changed(name) {
					restore()
				}
			}
		}
		return a.measure(c.Context(), c.Name(), &m, p.groups)
	}
	return c
}

// way is how bytes are copied.
type way struct {
	direction, host, call string
	streams               int
}

// name is the way as a part of a group's name, which says what is out of the common.
func (w way) name() string {
	name := w.direction + "/" + w.host
	if w.call != callAsync {
		name += "/" + w.call
	}
	if w.streams != 1 {
		name += fmt.Sprintf("/streams-%d", w.streams)
	}
	return name
}

// ready says whether copies are done when they return, whatever they are asked.
func (w way) ready() bool { return w.host == pageable || w.host == staging }

// gateable says whether the copies can be queued behind a gate.
func (w way) gateable() bool { return !w.ready() && w.call == callAsync }

// refuse says what makes no sense on a device.
func (w way) refuse(dev *vmm.Device) error {
	switch {
	case w.host == staging && addressable(dev):
		return fmt.Errorf("the CPU has the addresses of %s and copies without staging: %w", dev, driver.ErrNotSupported)
	case w.direction == both && (w.ready() || w.call == callSync):
		return fmt.Errorf("%s copies are done when they return and cannot run both ways at once: %w", w.host, driver.ErrNotSupported)
	case w.streams > 1 && (w.ready() || w.call == callSync):
		return fmt.Errorf("%s copies are done when they return and cannot share streams: %w", w.host, driver.ErrNotSupported)
	case w.ready() && w.call == callSync:
		return fmt.Errorf("%s copies are done when they return, queued or not: %w", w.host, driver.ErrNotSupported)
	}
	return nil
}

// ways are all that were asked for.
func (p *bwPlan) ways() ([]way, error) {
	var list []way
	for _, direction := range p.directions.values {
		hosts := p.hosts.values
		if direction == d2d {
			hosts = []string{noHost}
		}
		for _, host := range hosts {
			for _, call := range p.calls.values {
				for _, streams := range p.streams {
					if streams == 0 {
						return nil, usageError{errors.New("--streams 0: want 1 or more")}
					}
					list = append(list, way{direction, host, call, streams})
				}
			}
		}
	}
	return list, nil
}

// groups plans one group for each way to copy and each size.
func (p *bwPlan) groups(dev *vmm.Device, raw driver.Device, seed uint64) ([]group, error) {
	ways, err := p.ways()
	if err != nil {
		return nil, err
	}
	var list []group
	for _, w := range ways {
		for _, n := range p.sizes {
			if err := checkSize(n); err != nil {
				return nil, err
			}
			list = append(list, p.group(dev, raw, seed, w, n))
		}
	}
	return list, nil
}

func (p *bwPlan) group(dev *vmm.Device, raw driver.Device, seed uint64, w way, n uint64) group {
	g := group{name: "bw/" + w.name() + "/" + size.Format(n), samples: math.MaxInt}
	shared := &bwShared{dev: dev, raw: raw, way: w, size: n}
	// Data left over from one group cannot pass in another.
	shared.pattern.Seed = measure.Seed(seed, g.name)
	g.setup = shared.setup
	if _, _, ok := gateParts(dev, raw); ok && shared.gateable() {
		g.maxLoops = max(gatedLoops/w.streams, 1)
	}
	payload := n
	if w.direction == both {
		payload *= 2
	}
	for _, kind := range p.mems.values {
		for _, s := range p.shapes(kind, n) {
			label, axes := s.describe(memName(dev, kind), kind)
			g.tasks = append(g.tasks, task{
				label: label,
				grows: kind == memVMM,
				c: report.Case{
					ID: g.name + "/" + label, Unit: unitGBs, Bytes: payload,
					Axes: append(report.Axes{
						{Name: "device", Value: dev.String()}, {Name: "direction", Value: w.direction},
						{Name: "host", Value: w.host}, {Name: "call", Value: w.call}, {Name: "streams", Value: w.streams},
						{Name: "size", Value: n},
					}, axes...),
				},
				open: func(ctx context.Context) (contender, error) { return shared.contender(ctx, kind, s) },
			})
		}
	}
	if w.direction != d2d {
		g.memory = payload
	}
	if dev.Driver().Name() == "host" {
		ends := uint64(1) // of a copy that are on the device
		if w.direction == d2d || w.direction == both {
			ends = 2
		}
		g.memory += ends * n * uint64(len(g.tasks))
	}
	return g
}

// shapes are the layouts in which memory of a kind is measured.
func (p *bwPlan) shapes(kind string, n uint64) []shape {
	if kind != memVMM {
		return []shape{{size: n}}
	}
	var list []shape
	for _, chunk := range p.chunks {
		for _, step := range p.steps {
			for _, share := range p.exportable.values {
				list = append(list, shape{size: n, chunk: chunk, step: step, share: share == exportable})
			}
		}
	}
	return list
}

// describe is the label and the axes of memory with this name and kind.
func (s shape) describe(name, kind string) (string, report.Axes) {
	chunk, step, share := chunkLabel(kind, s.chunk), whole, private
	label := taskLabel(name, chunk)
	if s.step > 0 {
		step = size.Format(s.step)
		label += "-by-" + step
	}
	if s.share {
		share = exportable
		label += "-exportable"
	}
	return label, report.Axes{
		{Name: "mem", Value: name}, {Name: "chunk", Value: chunk},
		{Name: "step", Value: step}, {Name: "exportable", Value: share},
	}
}

// Values of the chunk axis, and of the step axis, that are no size.
const (
	whole  = "whole"  // the memory is one piece, or grew by one step
	ladder = "ladder" // the range chooses
)

// chunkLabel is the value of the chunk axis.
func chunkLabel(kind string, chunk uint64) string {
	switch {
	case kind != memVMM:
		return whole
	case chunk == 0:
		return ladder
	}
	return size.Format(chunk)
}

// taskLabel is memory and chunk in one word.
func taskLabel(mem, chunk string) string {
	if chunk == whole || chunk == ladder {
		return mem
	}
	return mem + "-" + chunk
}

// bwShared is what the contenders of a group have in common. They copy from
// and to the same host memory, so that its place in memory is no difference.
type bwShared struct {
	way
	dev      *vmm.Device
	raw      driver.Device
	size     uint64
	pattern  verify.Pattern
	up, down *buffer // host memory that is read, that is written; nil if unused
}

func (s *bwShared) setup(ctx context.Context) (func() error, error) {
	if err := s.refuse(s.dev); err != nil {
		return nil, err
	}
	undo := func() error {
		err := freeAll(s.up, s.down)
		s.up, s.down = nil, nil
		return err
	}
	var err error
	if s.direction == h2d || s.direction == both {
		if s.up, err = hostBuffer(s.dev, s.raw, s.host, s.size); err != nil {
			return nil, err
		}
		if err := s.up.fill(ctx, s.pattern); err != nil {
			return nil, errors.Join(err, undo())
		}
	}
	if s.direction == d2h || s.direction == both {
		if s.down, err = hostBuffer(s.dev, s.raw, s.host, s.size); err != nil {
			return nil, errors.Join(err, undo())
		}
	}
	return undo, nil
}

func (s *bwShared) contender(ctx context.Context, kind string, layout shape) (_ contender, err error) {
	c := &copier{way: s.way, pattern: s.pattern}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.close())
		}
	}()
	// device makes the device's end of a leg.
	device := func(filled bool) (*buffer, error) {
		b, err := deviceBuffer(s.dev, s.raw, kind, layout)
		if err != nil {
			return nil, err
		}
		c.own = append(c.own, b)
		if filled {
			return b, b.fill(ctx, c.pattern)
		}
		return b, b.poison(ctx)
	}
	if s.direction == d2d {
		src, err := device(true)
		if err != nil {
			return nil, err
		}
		dst, err := device(false)
		if err != nil {
			return nil, err
		}
		c.legs = append(c.legs, leg{src, dst})
	}
	if s.up != nil {
		dst, err := device(false)
		if err != nil {
			return nil, err
		}
		c.legs = append(c.legs, leg{s.up, dst})
	}
	if s.down != nil {
		src, err := device(true)
		if err != nil {
			return nil, err
		}
		c.legs = append(c.legs, leg{src, s.down})
	}
	for _, l := range c.legs {
		c.queues = append(c.queues, l.src.parts(l.dst, s.streams)...)
	}
	if s.call == callSync {
		for i, q := range c.queues {
			c.queues[i] = q.waited(s.raw)
		}
	}
	c.timer, err = newTimer(s.dev, s.raw, len(c.queues), s.gateable())
	return c, err
}

// leg is one copy, of a buffer that holds the pattern to one that does not.
type leg struct{ src, dst *buffer }

// copier is a contender that copies.
type copier struct {
	way
	pattern verify.Pattern
	legs    []leg
	queues  []queue // for each leg as many as there are streams
	timer   *timer
	own     []*buffer
}

func (c *copier) measure(ctx context.Context, loops int) (measure.Sample, error) {
	return c.timer.time(ctx, loops, c.queues...)
}

func (c *copier) verify(ctx context.Context, mode verify.Mode, corrupt int64) (verify.Result, error) {
	result := verify.Result{Mode: mode}
	if mode == verify.Off {
		return result, nil
	}
	for _, l := range c.legs {
		if err := l.dst.poison(ctx); err != nil {
			return result, err
		}
		if l.dst.host != nil { // the device buffer is the one that is read
			if err := l.src.flip(corrupt); err != nil {
				return result, err
			}
		}
	}
	if _, err := c.timer.time(ctx, 1, c.queues...); err != nil {
		return result, err
	}
	for _, l := range c.legs {
		chunks := l.dst.chunks
		if l.dst.host == nil {
			if err := l.dst.flip(corrupt); err != nil {
				return result, err
			}
		} else {
			chunks = l.src.chunks
		}
		r, err := c.pattern.Check(mode, l.dst.size, chunks, l.dst.view(ctx))
		result.Add(r)
		if err != nil {
			return result, err
		}
	}
	return result, nil
}

func (c *copier) describe(rc *report.Case, samples []measure.Sample) {
	rc.Flags = append(rc.Flags, c.timer.flag)
	switch c.direction {
	case d2d:
		traffic := 2 * rc.Stats.Value
		rc.Stats.Traffic = &traffic
	case both:
		var ways [2][]float64
		for _, s := range samples {
			for i := range ways {
				ways[i] = append(ways[i], slices.Max(s.Parts[i*c.streams:(i+1)*c.streams]))
			}
		}
		rc.Stats.Both = &report.Both{
			Forward: bandwidth(c.legs[0].src.size, median(ways[0])),
			Reverse: bandwidth(c.legs[1].src.size, median(ways[1])),
		}
	}
}

func (c *copier) close() error {
	var err error
	if c.timer != nil {
		err = c.timer.close()
	}
	return errors.Join(err, freeAll(c.own...))
}
