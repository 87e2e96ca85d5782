package pool_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/invariants"
	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/internal/testing/versus"
	"github.com/cuvmm/cuvmm/internal/trace"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
	"github.com/cuvmm/cuvmm/vmm/kernel"
	"github.com/cuvmm/cuvmm/vmm/pool"
)

// untilPTX has a kernel that ends at a time, and one that says what time it is.
const untilPTX = `
.version 6.3
.target sm_52
.address_size 64
.visible .entry until(.param .u64 end)
{
	.reg .pred %q;
	.reg .b64 %e, %t;
	ld.param.u64 %e, [end];
AGAIN:
	mov.u64 %t, %globaltimer;
	setp.lt.u64 %q, %t, %e;
	@%q bra AGAIN;
	ret;
}
.visible .entry clock(.param .u64 p)
{
	.reg .b64 %p, %t;
	ld.param.u64 %p, [p];
	mov.u64 %t, %globaltimer;
	st.u64 [%p], %t;
	ret;
}
`

// lag queues work that ends that long after it was queued, and so keeps streams behind.
type lag struct {
	dev     *vmm.Device
	by      time.Duration
	until   *kernel.Bound
	began   time.Time
	ahead   uint64 // of the device's clock at the start, in ns
	checked time.Time
	clock   *kernel.Bound // nil: the clock is the host's
	at      *vmm.Range    // what clock writes
	own     *vmm.Stream
	m       *kernel.Module
	streams map[*vmm.Stream]*laggard
	most    int // launches of one stream that may have been pending at once
}

// laggard is a stream. Behind too many launches the next would not return: a mark is after
// every lagMark launches, and of those only so many are pending.
type laggard struct {
	launches int // since the last mark
	marks    []*vmm.Event
}

const (
	lagMark  = 64
	lagMarks = 6
)

func newLag(t *testing.T, dev *vmm.Device, by time.Duration) *lag {
	t.Helper()
	l := &lag{dev: dev, by: by, began: time.Now(), streams: map[*vmm.Stream]*laggard{}}
	began := l.began
	code := kernel.Code{Host: kernel.Host{"until": func(_ kernel.Threads, end uint64) {
		time.Sleep(time.Duration(end) - time.Since(began)) //nolint:forbidigo // that is the work
	}}}
	if onCUDA {
		code.Image = []byte(untilPTX)
	}
	var err error
	l.m, err = kernel.Load(dev, code)
	require.NoError(t, err)
	bind := func(name string, arg any) *kernel.Bound {
		f, err := l.m.Func(name)
		require.NoError(t, err)
		b, err := f.Bind(kernel.Config{}, arg)
		require.NoError(t, err)
		return b
	}
	l.until = bind("until", uint64(0))
	if onCUDA {
		l.at, err = dev.Alloc(8)
		require.NoError(t, err)
		l.own, err = dev.NewStream()
		require.NoError(t, err)
		l.clock = bind("clock", l.at.Ptr())
	}
	return l
}

// compare looks at the device's clock: of a few tries the shortest counts.
func (l *lag) compare() error {
	if l.clock == nil || time.Since(l.checked) < 100*time.Millisecond {
		return nil
	}
	least := time.Duration(1 << 62)
	for range 4 {
		before := time.Since(l.began)
		if err := l.clock.Launch(l.own); err != nil {
			return err
		}
		if err := l.own.Sync(); err != nil {
			return err
		}
		after := time.Since(l.began)
		if after-before > least {
			continue
		}
		least = after - before
		var word [8]byte
		if err := l.dev.CopyOut(word[:], l.at.Ptr()); err != nil {
			return err
		}
		l.ahead = binary.NativeEndian.Uint64(word[:]) - uint64(before+least/2)
	}
	l.checked = time.Now()
	return nil
}

// work is what Trace.Replay calls for each operation.
func (l *lag) work(s *vmm.Stream, _ pool.Block) error {
	if err := l.compare(); err != nil {
		return err
	}
	x := l.streams[s]
	if x == nil {
		x = &laggard{}
		l.streams[s] = x
	}
	if x.launches == lagMark {
		e, err := s.Record()
		if err != nil {
			return err
		}
		x.marks, x.launches = append(x.marks, e), 0
	}
	// Events are not asked before: the pool would learn of it.
	if len(x.marks) == lagMarks {
		if err := errors.Join(x.marks[0].Sync(), x.marks[0].Close()); err != nil {
			return err
		}
		x.marks = x.marks[1:]
	}
	if err := l.until.Set(0, l.ahead+uint64(time.Since(l.began)+l.by)); err != nil {
		return err
	}
	x.launches++
	l.most = max(l.most, len(x.marks)*lagMark+x.launches)
	return l.until.Launch(s)
}

func (l *lag) close(t *testing.T) {
	t.Helper()
	for _, x := range l.streams {
		for _, e := range x.marks {
			require.NoError(t, e.Close())
		}
	}
	if l.clock != nil {
		closeAll(t, l.own, l.at)
	}
	closeAll(t, l.m)
}

// lagCard is the device of TestReplayLagging, and the peak of its traces: the machine's GPU, or
// else one whose memory nothing touches.
func lagCard(t *testing.T) (dev *vmm.Device, peak uint64) {
	t.Helper()
	if onCUDA {
		dev, total := card(t)
		return dev, total / 10 * 6
	}
	memory := uint64(16 << 30)
	if invariants.Enabled {
		memory = 1 << 30
	}
	dev, err := vmm.OpenDriver(host.New(host.Config{Devices: 1, Memory: memory}), 0)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, dev.Close()) })
	return dev, memory / 10 * 6
}

// shorten leaves out what comes after the first n operations. What is allocated then is freed
// in the streams that it was allocated in.
func shorten(t *trace.Trace, n int) {
	if n >= len(t.Ops) {
		return
	}
	t.Ops, t.Blocks = slices.Clip(t.Ops[:n]), 0
	live := map[uint32]trace.Op{}
	for _, o := range t.Ops {
		switch o.Kind {
		case trace.Alloc:
			live[o.Block] = o
			t.Blocks++
		case trace.Free:
			delete(live, o.Block)
		}
	}
	t.Ops = append(t.Ops, trace.Op{Kind: trace.Sync})
	for _, id := range slices.Sorted(maps.Keys(live)) {
		t.Ops = append(t.Ops, trace.Op{Kind: trace.Free, Stream: live[id].Stream, Block: id})
	}
	t.Ops = append(t.Ops, trace.Op{Kind: trace.Sync})
}

// TestReplayLagging: what pools hold when streams are behind: after each allocation and before each
// free, work is queued in the same stream that ends so much later. The traces are the first part of
// those of TestReplay.
func TestReplayLagging(t *testing.T) {
	dev, peak := lagCard(t)
	ops := testgate.Effort(2000, 30_000, 100_000)
	if onCUDA {
		ops = 100_000
	}
	for _, g := range trace.Generators {
		t.Run(g.Name, func(t *testing.T) {
			tr := g.Make(0, peak)
			shorten(tr, ops)
			tr.Scale(peak)
			t.Logf("%d operations", len(tr.Ops))
			out := versus.NewTable("trace\tlag\tpool\tlive GiB\treserved GiB\tratio\tfailures\ttime")
			defer out.Log(t)
			for _, by := range []time.Duration{0, 100 * time.Microsecond, 10 * time.Millisecond} {
				for _, c := range contenders() {
					a, streams, end := c.opened(t, dev, tr.Streams)
					if a == nil {
						out.Add("%s\t%v\t%s\tnot supported here", g.Name, by, c.name)
						continue
					}
					l := newLag(t, dev, by)
					var work func(*vmm.Stream, pool.Block) error
					if by > 0 {
						work = l.work
						began := time.Now()
						require.NoError(t, l.work(streams[0], pool.Block{}))
						require.NoError(t, streams[0].Sync())
						require.Greater(t, time.Since(began), by/2, "the work ended at once")
					}
					r, err := tr.Replay(t.Context(), a, streams, work)
					require.NoError(t, err, "%s, %v behind, on %s", tr.Name, by, c.name)
					l.close(t)
					end()
					out.Add("%s\t%v\t%s\t%.2f\t%.2f\t%.3f\t%d\t%v", g.Name, by, c.name, float64(r.Live)/(1<<30), float64(r.Reserved)/(1<<30),
						r.Ratio(), r.Failures, r.Took.Round(time.Millisecond))
					require.Less(t, l.most, 500)
					if c.name == "ours" && r.Failures > 0 {
						t.Errorf("%s, %v behind: %d allocations failed", g.Name, by, r.Failures)
					}
				}
			}
		})
	}
}

// TestReplayWork: what a replay's work returns ends it, and it is called twice for each block.
func TestReplayWork(t *testing.T) {
	dev, _ := lagCard(t)
	tr := trace.Generators[1].Make(1, mib*100)
	shorten(tr, 1000)
	a, streams, end := contenders()[0].opened(t, dev, tr.Streams)
	var n int
	r, err := tr.Replay(t.Context(), a, streams, func(s *vmm.Stream, b pool.Block) error {
		n++
		require.Contains(t, streams, s)
		return s.Fill(b.Ptr(), 1, 1, 1)
	})
	require.NoError(t, err)
	require.Zero(t, r.Failures)
	require.Equal(t, 2*tr.Blocks, n)
	_, err = tr.Replay(t.Context(), a, streams, func(*vmm.Stream, pool.Block) error {
		return fmt.Errorf("work: %w", errInjected)
	})
	require.ErrorIs(t, err, errInjected)
	require.Zero(t, statsOfAny(t, a).Blocks)
	end()
}
