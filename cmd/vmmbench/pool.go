package main

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
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

// reusePolicies are the words of --reuse.
var reusePolicies = map[string]pool.Reuse{
	"all": pool.ReuseAll, "none": 0,
	"events": pool.ReuseFollowEvents, "opportunistic": pool.ReuseOpportunistic, "dependencies": pool.ReuseInternalDependencies,
}

// reuseList is a flag that takes a list of policies, or of several joined by a plus.
type reuseList []pool.Reuse

// Set implements pflag.Value. It replaces the default.
func (l *reuseList) Set(s string) error {
	var list reuseList
	for v := range strings.SplitSeq(s, ",") {
		reuse, joined := pool.Reuse(0), strings.Contains(v, "+")
		for word := range strings.SplitSeq(v, "+") {
			policy, ok := reusePolicies[word]
			if !ok || joined && !slices.Contains(joinable, word) {
				return fmt.Errorf("%q: want a list of %s, of which the last three can be joined by +", v, l.Type())
			}
			reuse |= policy
		}
		if !slices.Contains(list, reuse) {
			list = append(list, reuse)
		}
	}
	*l = list
	return nil
}

// joinable are the words of single policies.
var joinable = []string{"events", "opportunistic", "dependencies"}

// reuseName is the one name of a set of policies.
func reuseName(r pool.Reuse) string {
	switch r {
	case 0:
		return "none"
	case pool.ReuseAll:
		return "all"
	}
	words := slices.DeleteFunc(slices.Clone(joinable), func(word string) bool { return r&reusePolicies[word] == 0 })
	return strings.Join(words, "+")
}

func (l *reuseList) String() string {
	var names []string
	for _, r := range *l {
		names = append(names, reuseName(r))
	}
	return strings.Join(names, ",")
}

// Type implements pflag.Value.
func (*reuseList) Type() string { return "all,none," + strings.Join(joinable, ",") }

// thresholds is a flag that takes sizes, and "all" for what has no end.
type thresholds struct{ size.List }

// Set implements pflag.Value. It replaces the default.
func (l *thresholds) Set(s string) error {
	words := strings.Split(s, ",")
	sizes := slices.DeleteFunc(slices.Clone(words), func(w string) bool { return w == "all" })
	l.List = nil
	if len(sizes) > 0 {
		if err := l.List.Set(strings.Join(sizes, ",")); err != nil {
			return err
		}
	}
	if len(sizes) < len(words) {
		l.List = append(l.List, math.MaxUint64)
	}
	return nil
}

// poolPlan is what pool measures.
type poolPlan struct {
	traces     choices
	files      []string // to replay instead
	seeds      int
	peak       size.One // 0: 60 % of the device's memory
	thresholds thresholds
	reuse      reuseList
}

func newPoolPlan() *poolPlan {
	traces := []string{pairSmall, pairLarge, pairMixed}
	for _, g := range trace.Generators {
		traces = append(traces, g.Name)
	}
	return &poolPlan{
		traces: choices{of: traces, values: traces, what: "TRACES"}, seeds: 1,
		reuse: reuseList{pool.ReuseAll},
	}
}

func (p *poolPlan) flags(f *pflag.FlagSet) {
	f.Var(&p.traces, "trace", "what is allocated and freed")
	f.StringSliceVar(&p.files, "replay", nil, "files to replay instead, as pool.Trace or RMM writes them; .gz is decompressed")
	f.IntVar(&p.seeds, "seeds", p.seeds, "how many traces of each kind")
	f.Var(&p.peak, "peak", "the most bytes of a trace that are allocated at once (default 60 % of the device's memory)")
	f.Var(&p.thresholds, "threshold", "bytes that stay reserved when a stream or the device is synchronised: a list or a range, and all (default all)")
	f.Var(&p.reuse, "reuse", "the policies for memory that was freed in other streams: a list of those, or of several joined by +")
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
Of the last three, and of --replay, a sample is a whole trace on a new pool; the peaks of
what is allocated and of what the pool holds stand beside it. --seeds has several of each. No
work is queued and nothing is written, so nothing is verified.`,
		Example: `  vmmbench pool
  vmmbench pool --trace training,serving,adversarial --seeds 20 --samples 1
  vmmbench pool --trace training --threshold 0,8G,all --reuse none,events+opportunistic
  vmmbench pool --replay rmm_log.csv,training.trace.gz --samples 5`,
	}, p, 100, 10*time.Second)
	m.minTime = a.settings.minTime // of many pairs
	return c
}

// groups plans a group for each trace and threshold.
func (p *poolPlan) groups(devs []device, _ uint64) ([]group, error) {
	if p.seeds < 1 {
		return nil, usageError{fmt.Errorf("--seeds %d: want at least 1", p.seeds)}
	}
	dev := devs[0]
	peak := uint64(p.peak)
	if peak == 0 {
		_, total, err := dev.raw.MemInfo()
		if err != nil {
			return nil, err
		}
		peak = total / 10 * 6 &^ (1<<20 - 1)
	}
	limits := p.thresholds.List
	if len(limits) == 0 {
		limits = size.List{math.MaxUint64}
	}
	recorded := make([]*trace.Trace, len(p.files))
	for i, file := range p.files {
		var err error
		if recorded[i], err = readTrace(file); err != nil {
			return nil, usageError{fmt.Errorf("--replay: %w", err)}
		}
	}
	var list []group
	for _, threshold := range limits {
		for _, reuse := range p.reuse {
			o := poolOptions{dev: dev, threshold: threshold, reuse: reuse}
			for _, t := range recorded {
				list = append(list, o.replay(t.Name, t.Name, "-", t.Peak(), func() *trace.Trace { return t }))
			}
			if len(recorded) > 0 {
				continue
			}
			for _, name := range p.traces.values {
				list = append(list, p.groupsOf(o, name, peak)...)
			}
		}
	}
	return list, nil
}

// groupsOf has a group for each seed, or one for pairs.
func (p *poolPlan) groupsOf(o poolOptions, name string, peak uint64) []group {
	for _, g := range trace.Generators {
		if g.Name != name {
			continue
		}
		var list []group
		for seed := range uint64(p.seeds) { //nolint:gosec // not below 1
			made := sync.OnceValue(func() *trace.Trace { return g.Make(seed, peak) })
			list = append(list, o.replay(fmt.Sprintf("%s-%d", name, seed), name, seed, peak, made))
		}
		return list
	}
	which := axes("trace", name, "seed", "-", "size", "-")
	return []group{o.group("pool/"+name, unitUs, 0, which, func(kind string) (contender, error) { return o.pairs(kind, name) })}
}

// replay has a group for a trace, which is made when it is needed first.
func (o poolOptions) replay(id, name string, seed any, peak uint64, made func() *trace.Trace) group {
	g := o.group(fmt.Sprintf("pool/%s/%s", id, size.Format(peak)), unitMs, peak, axes("trace", name, "seed", seed, "size", peak), func(kind string) (contender, error) { return o.replayer(kind, made) })
	g.maxLoops = 1
	return g
}

// readTrace reads a file in RMM's form, which may be compressed.
func readTrace(file string) (*trace.Trace, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var r io.Reader = f
	if strings.HasSuffix(file, ".gz") {
		if r, err = gzip.NewReader(f); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
	}
	t, err := trace.Read(r, filepath.Base(file))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return t, nil
}

// poolOptions are how pools are made.
type poolOptions struct {
	dev       device
	threshold uint64
	reuse     pool.Reuse
}

// group has our pool and the driver's.
func (o poolOptions) group(name, unit string, bytes uint64, which report.Axes, open func(kind string) (contender, error)) group {
	threshold := any(o.threshold)
	if o.threshold == math.MaxUint64 {
		threshold = "all"
	} else {
		name += "/threshold-" + size.Format(o.threshold)
	}
	if o.reuse != pool.ReuseAll {
		name += "/reuse-" + reuseName(o.reuse)
	}
	g := group{name: name, samples: math.MaxInt}
	for _, kind := range []string{memPool, memName(o.dev, memAsync)} {
		of := slices.Concat(axes("device", o.dev.String()), which, axes("threshold", threshold, "reuse", reuseName(o.reuse), "mem", kind))
		g.add(task{
			label: kind, grows: kind == memPool, c: report.Case{Unit: unit, Bytes: bytes, Axes: of},
			open: func(context.Context) (contender, error) { return open(kind) },
		})
	}
	return g
}

// pool makes one of our pools, or one of the driver's.
func (o poolOptions) pool(kind string) (pool.Allocator, error) {
	how := pool.Options{ReleaseThreshold: o.threshold, NoReuse: pool.ReuseAll &^ o.reuse}
	if kind == memPool {
		return pool.New(o.dev.Device, how)
	}
	return pool.NewDriver(o.dev.Device, how)
}

// replayer is a contender whose sample is a trace.
type replayer struct {
	noData
	o       poolOptions
	kind    string
	made    func() *trace.Trace
	streams []*vmm.Stream
	undo    undo
	most    report.Pooled
}

func (o poolOptions) replayer(kind string, made func() *trace.Trace) (contender, error) {
	// So that what cannot be had here is found out at once.
	a, err := o.pool(kind)
	if err != nil {
		return nil, err
	}
	if err := a.Close(); err != nil {
		return nil, err
	}
	r := &replayer{o: o, kind: kind, made: made}
	for range made().Streams {
		s, err := o.dev.NewStream()
		if err != nil {
			return nil, errors.Join(err, r.close())
		}
		r.streams = append(r.streams, s)
		r.undo.add(s.Close)
	}
	return r, nil
}

func (r *replayer) measure(ctx context.Context, _ int) (s measure.Sample, err error) {
	a, err := r.o.pool(r.kind)
	if err != nil {
		return s, err
	}
	result, err := r.made().Replay(ctx, a, r.streams, nil)
	if err = errors.Join(err, r.o.dev.Sync(), a.Close()); err != nil {
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

func (r *replayer) close() error { return r.undo.close() }

// Of mixed pairs.
const (
	mixedLive = 2000
	mixedFrom = 256
	mixedTo   = 64 << 10
)

// pairDraws is after how many pairs the same sizes come again.
const pairDraws = 1 << 14

// pairs is a contender that frees a block and allocates another one in its place.
type pairs struct {
	noData
	pool   pool.Allocator
	stream *vmm.Stream
	sizes  []uint64
	slots  []uint32
	blocks []pool.Block
	at     int
}

// pairs opens a pool and fills it.
func (o poolOptions) pairs(kind, name string) (contender, error) {
	p := &pairs{sizes: make([]uint64, pairDraws), slots: make([]uint32, pairDraws), blocks: make([]pool.Block, 1)}
	if name == pairMixed {
		p.blocks = make([]pool.Block, mixedLive)
	}
	r := rand.New(rand.NewPCG(mixedLive, 0))
	for i := range p.sizes {
		switch name {
		case pairSmall:
			p.sizes[i] = 4 << 10
		case pairLarge:
			p.sizes[i] = 1 << 20
		default:
			p.sizes[i], p.slots[i] = mixedFrom+r.Uint64N(mixedTo-mixedFrom+1), r.Uint32N(mixedLive)
		}
	}
	var err error
	if p.pool, err = o.pool(kind); err != nil {
		return nil, err
	}
	if p.stream, err = o.dev.NewStream(); err != nil {
		return nil, errors.Join(err, p.pool.Close())
	}
	if err := p.run(o.dev.settings.warmPairs); err != nil {
		return nil, errors.Join(err, p.close())
	}
	return p, nil
}

func (p *pairs) run(n int) error {
	for range n {
		i := p.at % pairDraws
		p.at++
		b := &p.blocks[p.slots[i]]
		if b.Ptr() != 0 {
			if err := p.pool.Free(p.stream, *b); err != nil {
				return err
			}
			*b = pool.Block{}
		}
		var err error
		if *b, err = p.pool.Alloc(p.stream, p.sizes[i]); err != nil {
			return err
		}
	}
	return nil
}

func (p *pairs) measure(_ context.Context, loops int) (measure.Sample, error) {
	began := time.Now()
	err := p.run(loops)
	return measure.Sample{NS: float64(time.Since(began))}, err
}

func (p *pairs) close() (err error) {
	for _, b := range p.blocks {
		if b.Ptr() != 0 {
			err = errors.Join(err, p.pool.Free(p.stream, b))
		}
	}
	return errors.Join(err, p.stream.Sync(), p.pool.Close(), p.stream.Close())
}
