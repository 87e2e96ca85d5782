package pool_test

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/invariants"
	"github.com/cuvmm/cuvmm/internal/testing/nulldriver"
	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/internal/testing/versus"
	"github.com/cuvmm/cuvmm/internal/trace"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/pool"
)

// simulatedCard is the memory of a card that is nothing but numbers, of the size of an H200's.
// Builds that check invariants look at all of it again and again, so there it is smaller, and
// the bounds do not hold.
var simulatedCard = func() uint64 {
	if invariants.Enabled {
		return 4 << 30
	}
	return 139 << 30
}()

// card is the device that traces are replayed on, and its memory: the machine's GPU, or else
// the simulated one.
func card(t testing.TB) (dev *vmm.Device, total uint64) {
	t.Helper()
	var err error
	if onCUDA {
		dev, err = vmm.Open("cuda:0")
		testgate.Require(t, "cuda", err)
	} else {
		dev, err = vmm.OpenDriver(nulldriver.NewSized(simulatedCard), 0)
	}
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, dev.Close()) })
	_, total, err = dev.MemInfo()
	require.NoError(t, err)
	return dev, total
}

// contender is an allocator to compare.
type contender struct {
	name string
	open func(*vmm.Device) (pool.Allocator, error)
}

// contenders are ours, first, and the driver's. Both keep what they have: what a pool
// gives back at every wait says little about how it places blocks.
func contenders() []contender {
	keep := pool.Options{ReleaseThreshold: math.MaxUint64}
	return []contender{
		{"ours", func(d *vmm.Device) (pool.Allocator, error) { return pool.New(d, keep) }},
		{"driver's", func(d *vmm.Device) (pool.Allocator, error) { return pool.NewDriver(d, keep) }},
	}
}

// opened opens a contender and streams for it. What cannot be had here is nil.
func (c contender) opened(t testing.TB, dev *vmm.Device, streams int) (pool.Allocator, []*vmm.Stream, func()) {
	t.Helper()
	a, err := c.open(dev)
	if errors.Is(err, vmm.ErrNotSupported) && c.name != "ours" {
		return nil, nil, nil
	}
	require.NoError(t, err)
	list := make([]*vmm.Stream, streams)
	for i := range list {
		list[i], err = dev.NewStream()
		require.NoError(t, err)
	}
	return a, list, func() {
		for _, s := range list {
			require.NoError(t, s.Close())
		}
		require.NoError(t, a.Close())
	}
}

// seeds is how many traces of a kind are replayed.
func seeds() int {
	if onCUDA || testgate.Soak() {
		return 20
	}
	return 1
}

// generated is a trace; in the quick suite the first part of it.
func generated(g trace.Generator, seed, peak uint64) *trace.Trace {
	tr := g.Make(seed, peak)
	if part := len(tr.Ops) / testgate.Effort(8, 1, 1); !onCUDA && part < len(tr.Ops) {
		shorten(tr, part)
		tr.Scale(peak)
	}
	return tr
}

// atMost is what a pool may reserve for each byte that is live, at the peaks.
var atMost = map[string]float64{"training": 1.10, "serving": 1.15, "adversarial": 1.5, "recorded": 1.15}

// replayed is the replays of some traces on one allocator.
type replayed struct {
	worst    trace.Result
	at       int // index of the worst
	ratios   []float64
	failures int
	took     time.Duration
}

// replayAll replays each trace on a new pool, the first one with the check for overlaps.
func replayAll(t *testing.T, dev *vmm.Device, c contender, n int, make func(i int) *trace.Trace) (all replayed, ok bool) {
	t.Helper()
	for i := range n {
		tr := make(i)
		a, streams, end := c.opened(t, dev, tr.Streams)
		if a == nil {
			return all, false
		}
		if i == 0 {
			a = checkOverlaps(a)
		}
		r, err := tr.Replay(t.Context(), a, streams, nil)
		require.NoError(t, err, "%s %d on %s", tr.Name, i, c.name)
		end()
		if i == 0 || r.Ratio() > all.worst.Ratio() {
			all.worst, all.at = r, i
		}
		all.ratios = append(all.ratios, r.Ratio())
		all.failures += r.Failures
		all.took += r.Took
	}
	return all, true
}

// add adds the line of one allocator to a table. ours is nil for ours; the driver's is never
// to hold less than ours in the same replay.
func (all replayed) add(out *versus.Table, kind, name string, ours *replayed) {
	target := versus.Verdict(all.worst.Ratio() <= atMost[kind] && all.failures == 0)
	if ours != nil {
		worse := 0
		for i, ratio := range ours.ratios {
			if ratio > all.ratios[i] {
				worse++
			}
		}
		target = fmt.Sprintf("ours holds more in %d of %d: %s", worse, len(all.ratios), versus.Verdict(worse == 0))
	}
	out.Add("%s\t%s\t%d\t%.2f\t%.2f\t%.3f\t%d\t%.3f\t%.2f\t%s\t%d\t%v", kind, name, len(all.ratios),
		float64(all.worst.Live)/(1<<30), float64(all.worst.Reserved)/(1<<30), all.worst.Ratio(), all.at, versus.Median(all.ratios),
		atMost[kind], target, all.failures, (all.took / time.Duration(len(all.ratios))).Round(time.Millisecond))
}

const replayHead = "trace\tpool\tn\tlive GiB\treserved GiB\tworst ratio\tat\tmedian\tat most\ttarget\tfailures\ttime of one"

// TestReplay: what pools hold for traces whose peak is 60 % of the card.
func TestReplay(t *testing.T) {
	dev, total := card(t)
	for _, g := range trace.Generators {
		t.Run(g.Name, func(t *testing.T) {
			out := versus.NewTable(replayHead)
			defer out.Log(t)
			var ours *replayed
			for _, c := range contenders() {
				all, ok := replayAll(t, dev, c, seeds(), func(i int) *trace.Trace { return generated(g, uint64(i), total/10*6) })
				if !ok {
					out.Add("%s\t%s\tnot supported here", g.Name, c.name)
					continue
				}
				all.add(out, g.Name, c.name, ours)
				if ours == nil {
					ours = &all
					// Not require: the table says more.
					if !invariants.Enabled && (all.failures > 0 || all.worst.Ratio() > atMost[g.Name]) {
						t.Errorf("%d failures, reserved %.3f times what is live, at most %.2f", all.failures, all.worst.Ratio(), atMost[g.Name])
					}
				}
			}
		})
	}
}

// TestReplayRecorded: the same with what programs did, which testdata/record.py has recorded.
func TestReplayRecorded(t *testing.T) {
	if invariants.Enabled {
		t.Skip("the trace is longer than a small card")
	}
	files, err := filepath.Glob("testdata/*.trace.gz")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	dev, _ := card(t)
	out := versus.NewTable(replayHead)
	for _, file := range files {
		var ours *replayed
		for _, c := range contenders() {
			all, ok := replayAll(t, dev, c, 1, func(int) *trace.Trace { return recorded(t, file) })
			if !ok {
				continue
			}
			all.add(out, "recorded", c.name, ours)
			if ours == nil {
				ours = &all
				if all.failures > 0 || all.worst.Ratio() > atMost["recorded"] {
					t.Errorf("%s: %d failures, reserved %.3f times what is live", file, all.failures, all.worst.Ratio())
				}
			}
		}
	}
	out.Log(t)
}

// recorded reads a trace.
func recorded(t testing.TB, file string) *trace.Trace {
	t.Helper()
	f, err := os.Open(file)
	require.NoError(t, err)
	defer f.Close()
	z, err := gzip.NewReader(f)
	require.NoError(t, err)
	tr, err := trace.Read(z, filepath.Base(file))
	require.NoError(t, err)
	return tr
}

// twice returns some block a second time.
type twice struct {
	pool.Allocator
	n    int
	last pool.Block
}

func (a *twice) Alloc(s *vmm.Stream, n uint64) (b pool.Block, err error) {
	if a.n++; a.n == 1000 {
		return a.last, nil
	}
	a.last, err = a.Allocator.Alloc(s, n)
	return a.last, err
}

// The control: a pool that allocates memory twice is found out.
func TestReplayFindsOverlaps(t *testing.T) {
	dev, err := vmm.OpenDriver(nulldriver.NewSized(8<<30), 0)
	require.NoError(t, err)
	tr := trace.Generators[0].Make(1, 1<<30)
	a, streams, end := contenders()[0].opened(t, dev, tr.Streams)
	_, err = tr.Replay(t.Context(), checkOverlaps(&twice{Allocator: a}), streams, nil)
	require.ErrorContains(t, err, "overlaps block")
	end()
	require.NoError(t, dev.Close())
}

// A replay that is given up frees what it has.
func TestReplayGivenUp(t *testing.T) {
	dev, err := vmm.OpenDriver(nulldriver.NewSized(8<<30), 0)
	require.NoError(t, err)
	tr := trace.Generators[0].Make(1, 1<<30)
	a, streams, end := contenders()[0].opened(t, dev, tr.Streams)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = tr.Replay(ctx, a, streams, nil)
	require.ErrorIs(t, err, context.Canceled)
	require.Zero(t, statsOfAny(t, a).Blocks)
	end()
	require.NoError(t, dev.Close())
}

// Where memory runs out, the replay goes on and counts.
func TestReplayCountsFailures(t *testing.T) {
	dev, err := vmm.OpenDriver(nulldriver.NewSized(1<<30), 0)
	require.NoError(t, err)
	tr := generated(trace.Generators[0], 1, 3<<29)
	a, streams, end := contenders()[0].opened(t, dev, tr.Streams)
	r, err := tr.Replay(t.Context(), checkOverlaps(a), streams, nil)
	require.NoError(t, err)
	require.Positive(t, r.Failures)
	require.LessOrEqual(t, r.Reserved, uint64(1<<30))
	require.LessOrEqual(t, r.Live, r.Reserved)
	_, err = tr.Replay(t.Context(), a, streams[1:], nil)
	require.ErrorIs(t, err, vmm.ErrInvalid, "too few streams")
	end()
	require.NoError(t, dev.Close())
}

// scattered allocates blocks of 64 MiB to 1 GiB until most bytes are live, and frees at
// random until only rest is.
func scattered(t *testing.T, a pool.Allocator, s []*vmm.Stream, most, rest uint64) (blocks []pool.Block) {
	t.Helper()
	r := rand.New(rand.NewPCG(16, 0))
	var live uint64
	drop := func() {
		i := r.IntN(len(blocks))
		require.NoError(t, a.Free(s[r.IntN(len(s))], blocks[i]))
		live -= blocks[i].Size()
		blocks = slices.Delete(blocks, i, i+1)
	}
	for range 3000 {
		n := uint64(64 << 20 * math.Exp2(4*r.Float64()))
		for live+n > most {
			drop()
		}
		b, err := a.Alloc(s[r.IntN(len(s))], n)
		if errors.Is(err, vmm.ErrOutOfMemory) { // the driver's pool may have no place for it
			drop()
			continue
		}
		require.NoError(t, err)
		blocks = append(blocks, b)
		live += n
	}
	for live > rest {
		drop()
	}
	return blocks
}

// TestLargeBlockAfterScatteredOnes: blocks that are live here and there, a fifth of the
// card, leave room for one block of three quarters.
func TestLargeBlockAfterScatteredOnes(t *testing.T) {
	dev, total := card(t)
	for _, c := range contenders() {
		a, streams, end := c.opened(t, dev, 4)
		if a == nil {
			t.Logf("%s: not supported here", c.name)
			continue
		}
		blocks := scattered(t, a, streams, total/100*85, total/100*20)
		require.NoError(t, dev.Sync())
		before, err := a.Stats()
		require.NoError(t, err)
		began := time.Now()
		b, err := a.Alloc(streams[0], total/100*75)
		took := time.Since(began)
		after, serr := a.Stats()
		require.NoError(t, serr)
		t.Logf("%s: 75 %% of the card beside %d blocks: %v after %v; reserved %.1f, then %.1f GiB; moved %.1f GiB",
			c.name, len(blocks), verdictOf(err), took, float64(before.Reserved)/(1<<30), float64(after.Reserved)/(1<<30), float64(after.Remapped-before.Remapped)/(1<<30))
		if c.name == "ours" {
			require.NoError(t, err)
			for _, off := range []uint64{0, b.Size() / 2, b.Size() - 8} {
				require.NoError(t, dev.CopyIn(b.Ptr()+vmm.Ptr(off), make([]byte, 8)))
			}
		}
		if err == nil {
			blocks = append(blocks, b)
		}
		for _, b := range blocks {
			require.NoError(t, a.Free(streams[0], b))
		}
		end()
	}
}

func verdictOf(err error) string {
	if err != nil {
		return fmt.Sprintf("failed (%v)", err)
	}
	return "allocated"
}

// TestSmallBlocksGiveBack reports what blocks of 256 B to 64 KiB hold, and how much of
// that goes when most of them are free. Ours is measured without its packing, too.
func TestSmallBlocksGiveBack(t *testing.T) {
	dev, _ := card(t)
	out := versus.NewTable("pool\tlive MiB\treserved MiB\tratio\tthen live MiB\treserved MiB\tratio\tgiven back MiB\treserved MiB\tratio")
	mib := func(n uint64) float64 { return float64(n) / (1 << 20) }
	ours := func(name string, chunk uint64, packed bool) contender {
		return contender{name, func(d *vmm.Device) (pool.Allocator, error) {
			p, err := pool.New(d, pool.Options{ReleaseThreshold: math.MaxUint64, ChunkSize: chunk})
			if err == nil && !packed {
				pool.SetNoPacking(p)
			}
			return p, err
		}}
	}
	for _, c := range append(contenders(), ours("ours, not packed", 0, false),
		ours("ours, 2 MiB chunks", 2<<20, true), ours("ours, 2 MiB chunks, not packed", 2<<20, false)) {
		a, streams, end := c.opened(t, dev, 2)
		if a == nil {
			out.Add("%s\tnot supported here", c.name)
			continue
		}
		r := rand.New(rand.NewPCG(64, 0))
		var live uint64
		var blocks []pool.Block
		put := func() {
			b, err := a.Alloc(streams[r.IntN(2)], uint64(256*math.Exp2(8*r.Float64())))
			require.NoError(t, err)
			blocks = append(blocks, b)
			live += b.Size()
		}
		drop := func() {
			i := r.IntN(len(blocks))
			require.NoError(t, a.Free(streams[r.IntN(2)], blocks[i]))
			live -= blocks[i].Size()
			blocks[i] = blocks[len(blocks)-1]
			blocks = blocks[:len(blocks)-1]
		}
		for range 40_000 {
			put()
		}
		full, liveFull := statsOfAny(t, a), live
		// A tenth stays. What is freed and allocated meanwhile is where packing counts.
		for len(blocks) > 4_000 {
			for range 4 {
				drop()
			}
			if len(blocks)%8 < 4 {
				put()
			}
		}
		for range 40_000 {
			put()
			drop()
		}
		require.NoError(t, dev.Sync())
		thin, liveThin := statsOfAny(t, a), live
		freed, err := a.TrimTo(0)
		require.NoError(t, err)
		last := statsOfAny(t, a)
		require.GreaterOrEqual(t, last.Reserved, live)
		out.Add("%s\t%.1f\t%.1f\t%.3f\t%.1f\t%.1f\t%.2f\t%.1f\t%.1f\t%.2f", c.name,
			mib(liveFull), mib(full.Reserved), float64(full.Reserved)/float64(liveFull),
			mib(liveThin), mib(thin.Reserved), float64(thin.Reserved)/float64(liveThin),
			mib(freed), mib(last.Reserved), float64(last.Reserved)/float64(live))
		for _, b := range blocks {
			require.NoError(t, a.Free(streams[0], b))
		}
		end()
	}
	out.Log(t)
}

func statsOfAny(t *testing.T, a pool.Allocator) pool.Stats {
	t.Helper()
	st, err := a.Stats()
	require.NoError(t, err)
	return st
}
