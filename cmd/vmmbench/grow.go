package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cuvmm/cuvmm/cmd/internal/size"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/measure"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/stat"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/verify"
	"github.com/cuvmm/cuvmm/internal/freememory"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// Where the bytes come from that are appended, as --write takes it.
const (
	onDevice = "device" // they are on the device already, where a kernel would make them
	upload   = "upload" // from memory of the host
	nothing  = "none"   // nothing is written: growing alone is timed
)

// growPlan is what grow measures.
type growPlan struct {
	targets, chunks size.List
	memory          percent // the target as a share of the free memory; 0: targets
	step            growStep
	mems, writes    choices
	busy            counts
	ranges          size.List // not empty: so many ranges, in place of one container that grows
}

func newGrowPlan() *growPlan {
	var ways []string
	for _, w := range growWays {
		ways = append(ways, w.word)
	}
	return &growPlan{
		targets: size.List{256 << 20}, chunks: size.List{0}, step: 16 << 20,
		mems: choices{of: ways, values: ways[:len(ways)-1]}, busy: counts{0},
		writes: choices{of: []string{onDevice, upload, nothing}, values: []string{onDevice}},
	}
}

func (p *growPlan) flags(f *pflag.FlagSet) {
	f.Var(&p.targets, "size", "bytes to grow to: a list or a range")
	f.Var(&p.memory, "memory", "grow to this share of the free memory, on the host of half of it, instead of --size")
	f.Func("step", "bytes appended at a time: a `SIZE`, or x2, which begins with 2 MiB and doubles (default 16MiB)", p.step.set)
	f.Var(&p.mems, "mem", "ways to grow")
	f.Var(&p.chunks, "chunk", "chunk sizes of vmm memory; 0: the library chooses")
	f.Var(&p.writes, "write", "where the appended bytes come from")
	f.Var(&p.busy, "busy", "how many streams copy in the background")
	f.Var(&p.ranges, "ranges", "how many ranges make, grow, sleep and close")
}

func (a *app) grow() *cobra.Command {
	var help strings.Builder
	for _, w := range growWays {
		fmt.Fprintf(&help, "  %-8s%s\n", w.word, w.help)
	}
	c, _ := a.benchmark(&cobra.Command{
		Use:   "grow",
		Short: "Measure growing: in place against allocate and copy",
		Long: `Append step by step up to --size and write every byte. The ways to grow (--mem):
` + help.String() + `The first step includes making the container. Giving the memory back is not timed. With
--write none nothing is verified.

With --ranges many small vectors are measured instead, as those of a KV cache: make all of
them, append a first row of 128 bytes, have each grow by its second chunk (cold; from kept
chunks; where growth ahead has mapped it), sleep, wake and close. A sample is the time of
all ranges. Nothing is verified.`,
		Example: `  vmmbench grow --size 1G --step 64M --mem vmm,double --chunk 0,2M
  vmmbench grow --size 1G --step 1M --mem vmm,ahead,kept --busy 0,1
  vmmbench grow --ranges 64,4096`,
	}, newGrowPlan(), 10, 15*time.Second, (*measureFlags).addVerify)
	c.MarkFlagsMutuallyExclusive("memory", "size")
	for _, ofOne := range []string{"size", "memory", "step", "mem", "chunk", "write", "busy", "verify"} {
		c.MarkFlagsMutuallyExclusive("ranges", ofOne)
	}
	return c
}

func (p *growPlan) groups(devs []device, seed uint64) (list []group, err error) {
	for _, n := range p.ranges {
		if n == 0 || n > mostRanges {
			return nil, usageError{fmt.Errorf("--ranges %d: want 1 to %d", n, mostRanges)}
		}
		g, err := manyGroup(devs[0], int(n))
		if err != nil {
			return nil, err
		}
		list = append(list, g)
	}
	if len(list) > 0 {
		return list, nil
	}
	targets := p.targets
	if p.memory > 0 { // it replaces --size
		target, err := p.memoryTarget(devs[0])
		if err != nil {
			return nil, err
		}
		targets = size.List{target}
	}
	for _, target := range targets {
		for _, write := range p.writes.values {
			for _, streams := range p.busy {
				list = append(list, p.group(devs[0], seed, target, write, streams))
			}
		}
	}
	return list, cmp.Or(checkMost("--step", uint64(p.step)), checkMost("--chunk", p.chunks...), checkSize(targets...))
}

// memoryTarget is the target for --memory. It is a whole number of steps.
func (p *growPlan) memoryTarget(dev device) (uint64, error) {
	free, _, err := dev.MemInfo()
	if err != nil {
		return 0, err
	}
	if onHost(dev) {
		if has, ok := freememory.Bytes("/"); ok {
			free = min(free, has)
		}
		free /= 2 // what is copied is there twice, and other programs need some
	}
	most, step := uint64(float64(p.memory)*float64(free)), p.step.after(0)
	if most < step {
		return 0, usageError{fmt.Errorf("--memory %v of %d free bytes is less than one step", &p.memory, free)}
	}
	if p.step == doubling {
		return step << (bits.Len64(most/step) - 1), nil
	}
	return most / step * step, nil
}

// growStep is how many bytes are appended at a time.
type growStep uint64

// doubling begins with 2 MiB, and each further step is as much as there is.
const doubling growStep = 0

// after is the step that follows when there are n bytes.
func (s growStep) after(n uint64) uint64 {
	if s == doubling {
		return max(n, 2<<20)
	}
	return uint64(s)
}

// set is for the flag.
func (s *growStep) set(text string) error {
	if text == "x2" {
		*s = doubling
		return nil
	}
	n, err := size.Parse(text)
	if err == nil && (n == 0 || n%8 != 0) {
		err = errors.New("want x2, or a multiple of 8 bytes")
	}
	*s = growStep(n)
	return err
}

// axis is the value in the report.
func (s growStep) axis() any {
	if s == doubling {
		return "x2"
	}
	return uint64(s)
}

// options are those of a range that grows in place.
func (p *growPlan) options(way string, target, chunk uint64) vmm.RangeOptions {
	o := vmm.RangeOptions{Max: target, Chunk: chunk}
	if way == "ahead" {
		o.GrowAhead = max(64<<20, 4*uint64(p.step))
	}
	return o
}

// group plans growth to a target, one task for each way to grow and size of chunks.
func (p *growPlan) group(dev device, seed, target uint64, write string, streams int) group {
	busy := &busyStreams{dev: dev, n: streams}
	name := "grow/" + size.Format(target)
	if write != onDevice { // the name leaves out what is the default
		name += "/" + write
	}
	if p.step == doubling {
		name += "/x2"
	}
	g := group{name: busyName(name, streams), samples: math.MaxInt, minSamples: stat.MinSamples, maxLoops: 1}
	x := growth{dev: dev, ready: busy.waitQueued, target: target, step: p.step, write: write}
	x.pattern.Seed = measure.Seed(seed, g.name)
	g.setup = func(ctx context.Context) (func() error, error) {
		undo, err := busy.setup(ctx)
		if err != nil || write != onDevice {
			return undo, err
		}
		if x.source, err = newGrowSource(ctx, dev, target+uint64(len(g.tasks))*2*window, x.pattern); err != nil {
			return nil, errors.Join(err, undo())
		}
		return func() error { return errors.Join(x.source.free(), undo()) }, nil
	}
	for _, word := range p.mems.values {
		way, chunks := growWays[slices.Index(p.mems.of, word)], size.List{0}
		if way.chunks {
			chunks = p.chunks
		}
		for _, chunk := range chunks {
			g.add(p.task(dev, way, chunk, streams, uint64(len(g.tasks))*2*window, &x))
		}
	}
	g.deviceChecks = dev.checksItself()
	switch {
	case !onHost(dev):
	case write == nothing: // only what is copied takes memory
		g.memory = 2 * target
	default: // the source, an old block, one twice its size, what Go has not collected yet, kept chunks
		g.memory = 6 * target
	}
	return g
}

// task is one way to grow, as a case of a group. Its growths are copies of x, and append what the
// source has from at on.
func (p *growPlan) task(dev device, way growWay, chunk uint64, streams int, at uint64, x *growth) task {
	label := whole
	if way.chunks {
		label = chunkLabel(memVMM, chunk)
	}
	return task{
		label: taskLabel(way.name(dev), label), grows: way.chunks, data: x.write != nothing,
		c: report.Case{Unit: unitMs, Bytes: x.target, Axes: axes(
			"device", dev.String(), "size", x.target, "step", p.step.axis(), "mem", way.name(dev), "chunk", label, "write", x.write, "busy", streams)},
		open: func(context.Context) (contender, error) {
			if way.mem == "" && !addressable(dev) {
				return nil, notSupported(dev, way.label)
			}
			own, undo, err := dev, noUndo, error(nil)
			if way.prepare != nil {
				if own, undo, err = way.prepare(dev); err != nil {
					return nil, err
				}
			}
			g := *x
			g.at, g.undo = at, undo
			g.start = func() (*grower, error) { return way.start(own, p.options(way.word, x.target, chunk)) }
			return &g, nil
		},
	}
}

// newGrowSource is device memory from which growths append. It is filled once, before them. The CPU's
// view of it is for growers on the host.
func newGrowSource(ctx context.Context, dev device, size uint64, p verify.Pattern) (*buffer, error) {
	b, err := newBuffer(dev, memVMM, shape{size: size})
	if err != nil {
		return nil, err
	}
	err = b.fill(ctx, p)
	if viewer, ok := dev.Driver().(driver.HostViewer); ok && onHost(dev) && err == nil {
		b.host, err = viewer.HostBytes(b.ptr, size)
	}
	onError(&err, b.free)
	return b, err
}

// growth is a contender that grows from nothing to a target.
type growth struct {
	dev     device
	start   func() (*grower, error)
	undo    func() error
	ready   func(context.Context) // called before each sample
	target  uint64
	step    growStep
	write   string
	pattern verify.Pattern // of the source
	source  *buffer        // nil: nothing is written, or the appended bytes are uploaded
	at      uint64         // offset in the source for the samples; at+window is that for the check
	block   []byte         // what is uploaded, filled anew for each step
	last    report.Growth  // of the last growth
}

// window is the distance between the offsets of the source at which growths and checks
// begin: so each has its own data, and what another one left cannot pass for them.
const window = 256

func (g *growth) measure(ctx context.Context, _ int) (s measure.Sample, err error) {
	if !onHost(g.dev) {
		if err := wakeDriver(g.dev); err != nil {
			return s, err
		}
		// The driver clears the memory that this growth gives back, and the next growth would wait for that. Its
		// time would depend on which contender was measured before.
		defer func() { waitCleared(ctx, g.last.Peak) }()
	}
	g.ready(ctx)
	err = g.run(ctx, g.at, &s, func(*grower) error { return nil })
	return s, err
}

// wakeDriver makes a chunk and releases it. The first driver call after a pause may take
// 10 ms and more, which is no part of growing.
func wakeDriver(dev device) error {
	r, err := grownRange(dev, shape{size: 1})
	return errors.Join(err, r.Close())
}

// waitCleared waits until a GPU's driver has probably cleared bytes that were given back, or until ctx
// is done. The driver does that in the background.
func waitCleared(ctx context.Context, bytes uint64) {
	select {
	case <-time.After(20*time.Millisecond + time.Duration(float64(bytes)/clearRate)):
	case <-ctx.Done():
	}
}

// clearRate is how many bytes a nanosecond a driver clears: half of what that of an H200
// does, to be safe.
const clearRate = 300

// piece is what is appended at off, from the bytes of the source from at on. It has a device's address,
// or memory of the host that is uploaded, or neither if nothing is written.
func (g *growth) piece(at, off uint64) *buffer {
	n := min(g.step.after(off), g.target-off)
	switch {
	case g.write == nothing:
		return &buffer{size: n}
	case g.source != nil:
		return g.source.part(at+off, n)
	}
	if uint64(len(g.block)) < n {
		g.block = make([]byte, n)
	}
	g.pattern.From(at).Fill(g.block[:n], off)
	return &buffer{size: n, host: g.block[:n]}
}

// run grows once, by the bytes of the source from at on, calls then with the result, and
// frees it. If ctx is done, run stops between two steps.
func (g *growth) run(ctx context.Context, at uint64, s *measure.Sample, then func(*grower) error) (err error) {
	var x *grower
	defer func() {
		if x != nil {
			err = errors.Join(err, x.free())
		}
	}()
	g.last = report.Growth{}
	var address any
	for off := uint64(0); off < g.target; {
		if err := ctx.Err(); err != nil {
			return err
		}
		piece := g.piece(at, off) // outside of the time

		// The first step pays for the container, as a program would.
		began := time.Now()
		if x == nil {
			if x, err = g.start(); err != nil {
				return err
			}
		}
		err := x.more(piece)
		took := float64(time.Since(began))
		if err != nil {
			return fmt.Errorf("append %d bytes to %d: %w", piece.size, off, err)
		}
		off += piece.size
		x.size = off
		s.Parts = append(s.Parts, took)
		s.NS += took
		if now := x.address(); now != address {
			if address != nil {
				g.last.Moves++
			}
			address = now
		}
	}
	if g.last.Copied, g.last.Peak, x.chunks = x.copied, x.peak, []uint64{0}; x.r != nil {
		x.chunks = chunkStarts(x.r)
		g.last.Peak = max(x.r.Cap(), x.r.Stats().Committed) // growth ahead is committed, and may be no capacity yet
	}
	return then(x)
}

// verify grows with data that no sample wrote. The memory may come from an
// earlier growth, whose data must not pass for the work of this one.
func (g *growth) verify(ctx context.Context, mode verify.Mode, corrupt int64) (verify.Result, error) {
	result := verify.Result{Mode: mode}
	if mode == verify.Off || g.write == nothing {
		return verify.Result{Mode: verify.Off}, nil
	}
	err := g.run(ctx, g.at+window, &measure.Sample{}, func(x *grower) (err error) {
		if err := x.flip(corrupt); err != nil {
			return err
		}
		result, err = x.check(ctx, g.pattern.From(g.at+window), mode, x.chunks)
		return err
	})
	return result, err
}

func (g *growth) describe(c *report.Case, samples []measure.Sample) {
	var steps []float64
	d := g.last
	for _, s := range samples {
		steps = append(steps, s.Parts...)
		d.Samples = append(d.Samples, s.Parts)
		d.Steps = len(s.Parts)
	}
	d.StepP50, d.StepP99, d.StepMax = median(steps), stat.Percentile(steps, 0.99), stat.Quantile(steps, 1)
	c.Stats.Growth = &d
	c.Flags = append(c.Flags, wallClock)
}

func (g *growth) close() error { return g.undo() }

func median(x []float64) float64 { return stat.Quantile(x, 0.5) }
