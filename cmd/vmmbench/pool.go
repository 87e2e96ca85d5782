package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cuvmm/cuvmm/cmd/internal/size"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/measure"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
	"github.com/cuvmm/cuvmm/internal/trace"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/pool"
)

// Pairs of alloc and free, as --trace takes them beside the traces of package trace.
const (
	pairSmall = "4K"
	pairLarge = "1M"
	pairMixed = "mixed"
)

// memPool is the report's name of our pool.
const memPool = "pool"

// reuseNames are the sets of policies by their bits.
var reuseNames = []string{
	"none", "events", "opportunistic", "events+opportunistic", "dependencies", "events+dependencies", "opportunistic+dependencies", "all",
}

// poolPlan is what pool measures.
type poolPlan struct {
	traces     choices
	files      []string // to replay instead
	peak       size.One // 0: 60 % of the device's memory
	thresholds []string // sizes, or all for what has no end
	reuse      choices
}

func newPoolPlan() *poolPlan {
	traces := []string{pairSmall, pairLarge, pairMixed}
	for _, g := range trace.Generators {
		traces = append(traces, g.Name)
	}
	return &poolPlan{
		traces: choices{of: traces, values: traces, what: "TRACES"}, thresholds: []string{"all"},
		reuse: choices{of: reuseNames, values: []string{"all"}, what: "POLICIES"},
	}
}

func (p *poolPlan) flags(f *pflag.FlagSet) {
	f.Var(&p.traces, "trace", "what is allocated and freed")
	f.StringSliceVar(&p.files, "replay", nil, "files to replay instead, as pool.Trace or RMM writes them")
	f.Var(&p.peak, "peak", "the most bytes of a trace that are allocated at once (default 60 % of the device's memory)")
	f.StringSliceVar(&p.thresholds, "threshold", p.thresholds, "bytes that stay reserved when a stream or the device is synchronised: a list of `SIZES`, or all; measured with the first --reuse")
	f.Var(&p.reuse, "reuse", "the policies for memory that was freed in other streams: a list of all, none, events, opportunistic, dependencies, or of two joined by +; measured with the first --threshold")
}

func (a *app) pool() *cobra.Command {
	p := newPoolPlan()
	c, m := a.benchmark(&cobra.Command{
		Use:   "pool",
		Short: "Measure pools: alloc and free, and the memory they hold",
		Long: `Allocate and free on a pool of this library and on one of the driver's own:
  4K, 1M       a free and an allocation of one size, warm
  mixed        the same with 2,000 blocks of 256 B to 64 KiB, of which a random one goes
  training     steps of training, with batches of other lengths
  serving      requests whose keys and values grow
  adversarial  patterns that leave holes where the next blocks do not fit
Of the last three, and of --replay, a sample is a whole trace on a new pool, with the peaks
of what is allocated and of what the pool holds. Nothing is written, so nothing is verified.`,
		Example: `  vmmbench pool
  vmmbench pool --trace training,serving,adversarial --samples 1
  vmmbench pool --trace training --threshold 0,8G,all --reuse none,events+opportunistic
  vmmbench pool --replay rmm_log.csv --samples 5`,
	}, p, 100, 10*time.Second)
	m.minTime = a.settings.minTime // of many pairs
	return c
}

// options are the ways to make pools, in two short tables: all thresholds with the first policies, and
// all policies with the first threshold.
func (p *poolPlan) options(dev device) (list []poolOptions, err error) {
	for i, word := range p.thresholds {
		threshold := uint64(math.MaxUint64)
		if word != "all" {
			if threshold, err = size.Parse(word); err != nil {
				return nil, usageError{fmt.Errorf("--threshold: %w", err)}
			}
		}
		for k, reuse := range p.reuse.values {
			o := poolOptions{dev, threshold, reuse}
			if (i == 0 || k == 0) && !slices.Contains(list, o) {
				list = append(list, o)
			}
		}
	}
	return list, nil
}

// poolTrace is what is allocated and freed.
type poolTrace struct {
	id, name string
	seed     any
	peak     uint64              // 0: of pairs
	made     func() *trace.Trace // makes it when it is needed first; nil: of pairs
}

// all are the traces, each in a group of its own.
func (p *poolPlan) all(dev device) (list []poolTrace, err error) {
	for _, file := range p.files {
		t, err := readTrace(file)
		if err != nil {
			return nil, usageError{fmt.Errorf("--replay %s: %w", file, err)}
		}
		list = append(list, poolTrace{t.Name, t.Name, "-", t.Peak(), func() *trace.Trace { return t }})
	}
	if len(list) > 0 {
		return list, nil
	}
	peak := uint64(p.peak)
	if peak == 0 {
		_, total, err := dev.raw.MemInfo()
		if err != nil {
			return nil, err
		}
		peak = total / 10 * 6 &^ (1<<20 - 1)
	}
	for _, name := range p.traces.values {
		t := poolTrace{id: name, name: name, seed: "-"}
		if i := slices.IndexFunc(trace.Generators, func(g trace.Generator) bool { return g.Name == name }); i >= 0 {
			made := sync.OnceValue(func() *trace.Trace { return trace.Generators[i].Make(0, peak) })
			t = poolTrace{name + "-0", name, 0, peak, made}
		}
		list = append(list, t)
	}
	return list, nil
}

// groups plans a group for each trace and way to make pools.
func (p *poolPlan) groups(devs []device, _ uint64) (list []group, err error) {
	traces, err := p.all(devs[0])
	options, failed := p.options(devs[0])
	for _, o := range options {
		for _, t := range traces {
			list = append(list, o.group(t))
		}
	}
	return list, cmp.Or(err, failed)
}

// readTrace reads a file in RMM's form.
func readTrace(file string) (*trace.Trace, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return trace.Read(f, filepath.Base(file))
}

// poolOptions are how pools are made.
type poolOptions struct {
	dev       device
	threshold uint64
	reuse     string
}

// group has our pool and the driver's.
func (o poolOptions) group(t poolTrace) group {
	g := group{name: "pool/" + t.id, samples: math.MaxInt}
	unit, peak, threshold := unitUs, any("-"), any("all")
	if t.made != nil {
		g.name += "/" + size.Format(t.peak)
		unit, peak, g.maxLoops = unitMs, t.peak, 1
	}
	if o.threshold != math.MaxUint64 {
		threshold = o.threshold
		g.name += "/threshold-" + size.Format(o.threshold)
	}
	if o.reuse != "all" {
		g.name += "/reuse-" + o.reuse
	}
	for _, kind := range []string{memPool, memName(o.dev, memAsync)} {
		of := axes("device", o.dev.String(), "trace", t.name, "seed", t.seed, "size", peak, "threshold", threshold, "reuse", o.reuse, "mem", kind)
		g.add(task{
			label: kind, grows: kind == memPool, c: report.Case{Unit: unit, Bytes: t.peak, Axes: of},
			open: func(context.Context) (contender, error) {
				if t.made == nil {
					return o.pairs(kind, t.name)
				}
				return o.replayer(kind, t.made)
			},
		})
	}
	return g
}

// pool makes one of our pools, or one of the driver's.
func (o poolOptions) pool(kind string) (pool.Allocator, error) {
	how := pool.Options{ReleaseThreshold: o.threshold, NoReuse: pool.ReuseAll &^ pool.Reuse(slices.Index(reuseNames, o.reuse))}
	if kind == memPool {
		return pool.New(o.dev.Device, how)
	}
	return pool.NewDriver(o.dev.Device, how)
}

// replayer is a contender whose sample is a trace on a new pool.
type replayer struct {
	noData
	undo
	poolOptions
	kind    string
	made    func() *trace.Trace
	streams []*vmm.Stream
	most    report.Pooled
}

func (o poolOptions) replayer(kind string, made func() *trace.Trace) (contender, error) {
	r := &replayer{poolOptions: o, kind: kind, made: made}
	for range made().Streams {
		s, err := o.dev.NewStream()
		if err != nil {
			return nil, errors.Join(err, r.close())
		}
		r.streams = append(r.streams, s)
		r.add(s.Close)
	}
	return r, nil
}

func (r *replayer) measure(ctx context.Context, _ int) (s measure.Sample, err error) {
	a, err := r.pool(r.kind)
	if err != nil {
		return s, err
	}
	result, err := r.made().Replay(ctx, a, r.streams, nil)
	if err = errors.Join(err, r.dev.Sync(), a.Close()); err != nil {
		return s, err
	}
	r.most.Live = max(r.most.Live, result.Live)
	r.most.Reserved = max(r.most.Reserved, result.Reserved)
	r.most.Failures += result.Failures
	return measure.Sample{NS: float64(result.Took)}, nil
}

func (r *replayer) describe(c *report.Case, samples []measure.Sample) {
	r.noData.describe(c, samples)
	c.Stats.Pooled = &r.most
}

// mixedLive is how many blocks of mixed pairs there are.
const mixedLive = 2000

// pairSizes are the sizes of pairs, and among how many blocks a pair replaces one.
var pairSizes = map[string]struct {
	from, to uint64
	live     uint32
}{pairSmall: {4 << 10, 4 << 10, 1}, pairLarge: {1 << 20, 1 << 20, 1}, pairMixed: {256, 64 << 10, mixedLive}}

// pairDraws is after how many pairs the same sizes come again.
const pairDraws = 1 << 14

// pairs is a contender that frees a block and allocates another one in its place.
type pairs struct {
	noData
	undo
	run func(n int) error
}

// pairs opens a pool and fills it.
func (o poolOptions) pairs(kind, name string) (_ contender, err error) {
	of, p := pairSizes[name], &pairs{}
	sizes, slots, blocks := make([]uint64, pairDraws), make([]uint32, pairDraws), make([]pool.Block, of.live)
	r := rand.New(rand.NewPCG(mixedLive, 0))
	for i := range sizes {
		sizes[i], slots[i] = of.from+r.Uint64N(of.to-of.from+1), r.Uint32N(of.live)
	}
	defer func() { onError(&err, p.close) }()
	stream, err := o.dev.NewStream()
	if err != nil {
		return nil, err
	}
	p.add(stream.Close)
	from, err := o.pool(kind)
	if err != nil {
		return nil, err
	}
	p.add(from.Close)
	p.add(stream.Sync)
	free := func(b *pool.Block) (err error) {
		if b.Ptr() != 0 {
			err = from.Free(stream, *b)
			*b = pool.Block{}
		}
		return err
	}
	for i := range blocks {
		p.add(func() error { return free(&blocks[i]) })
	}
	at := 0
	p.run = func(n int) (err error) {
		for range n {
			b, i := &blocks[slots[at]], at
			at = (at + 1) % pairDraws
			if err := free(b); err != nil {
				return err
			}
			if *b, err = from.Alloc(stream, sizes[i]); err != nil {
				return err
			}
		}
		return nil
	}
	return p, p.run(o.dev.settings.warmPairs)
}

func (p *pairs) measure(_ context.Context, loops int) (measure.Sample, error) {
	began := time.Now()
	err := p.run(loops)
	return measure.Sample{NS: float64(time.Since(began))}, err
}
