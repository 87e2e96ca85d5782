package vmm_test

import (
	"bytes"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/exp/stats"

	"github.com/cuvmm/cuvmm/internal/testing/versus"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// What these tests measure means something on a GPU. On the host they run with small
// sizes, so that they keep working. A missed target is noted in the table and fails
// nothing: only a wrong result does.

// scaled is a size on a GPU, or a small one on the host.
func scaled(gpu uint64) uint64 {
	if onCUDA {
		return gpu
	}
	return max(page, gpu>>30*page)
}

// traffic copies inside the device on its own stream until stop, and says how many bytes a
// second it moved.
type traffic struct {
	dev   *vmm.Device
	s     *vmm.Stream
	from  *vmm.Range
	size  uint64
	moved atomic.Uint64
	quit  atomic.Bool
	done  sync.WaitGroup
}

func newTraffic(t *testing.T, d *vmm.Device) *traffic {
	t.Helper()
	size := scaled(1 << 30)
	g, err := d.Alloc(2 * size)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, g.Close()) })
	return &traffic{dev: d, s: stream(t, d), from: g, size: size}
}

// start begins, with a few copies queued at any time.
func (a *traffic) start(t *testing.T) (stop func() float64) {
	a.moved.Store(0)
	a.quit.Store(false)
	began := time.Now()
	a.done.Go(func() {
		var events []*vmm.Event
		for !a.quit.Load() {
			err := a.s.Copy(a.from.Ptr()+vmm.Ptr(a.size), a.from.Ptr(), a.size)
			e, rerr := a.s.Record()
			if err != nil || rerr != nil {
				t.Error(err, rerr)
				return
			}
			if events = append(events, e); len(events) > 4 {
				if err := events[0].Sync(); err != nil {
					t.Error(err)
				}
				_ = events[0].Close()
				events = events[1:]
				a.moved.Add(a.size)
			}
		}
		for _, e := range events {
			_ = e.Sync()
			_ = e.Close()
		}
	})
	return func() float64 {
		moved, took := a.moved.Load(), time.Since(began)
		a.quit.Store(true)
		a.done.Wait()
		return float64(moved) / took.Seconds()
	}
}

// appends appends n bytes at a time on the device, at a rate in bytes a second, up to
// total. It returns the times of those appends that had to grow the range or, with
// growth ahead, that used a chunk first.
func appends(t *testing.T, g *vmm.Range, s *vmm.Stream, from vmm.Ptr, n, total uint64, rate float64) (crossing []float64, took time.Duration) {
	t.Helper()
	var each []time.Duration
	var grown []uint64
	began := time.Now()
	for at := uint64(0); at < total; at += n {
		for due := time.Duration(float64(at) / rate * 1e9); time.Since(began) < due; {
		}
		before := g.Cap()
		start := time.Now()
		err := g.Grow(n)
		if g.Options().GrowAhead == 0 && g.Cap() > before {
			grown = append(grown, at/n)
		}
		if err == nil {
			err = s.Copy(g.Ptr()+vmm.Ptr(at), from, n)
		}
		if err == nil {
			err = g.SetLen(at + n)
		}
		each = append(each, time.Since(start))
		require.NoError(t, err)
	}
	require.NoError(t, s.Sync())
	took = time.Since(began)
	if g.Options().GrowAhead > 0 {
		for _, c := range g.Segments() {
			grown = append(grown, uint64(c.Addr-g.Ptr())/n)
		}
	}
	for _, i := range grown {
		if i > 0 && i < uint64(len(each)) {
			crossing = append(crossing, float64(each[i])/1e3)
		}
	}
	return crossing, took
}

// TestAppendsWithGrowthAhead measures appends that need a new chunk, with growth ahead and
// without.
func TestAppendsWithGrowthAhead(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	n, total := scaled(16<<20), scaled(32<<30)
	from, err := d.Alloc(n)
	require.NoError(t, err)
	s := stream(t, d)
	out := versus.NewTable("appends of 16 MiB at\tchunks\tahead\tcrossings\tp50 us\tp99 us\tmax us\tworker at work\tp50 ratio\tp99 ratio\ttarget")
	for _, rate := range []float64{100e9, 300e9} {
		for _, chunk := range []uint64{scaled(64 << 20), scaled(256 << 20), 0} {
			var took [2][]float64
			var duty [2]float64
			for range 4 {
				for i, ahead := range []uint64{0, scaled(4 << 30)} {
					g, err := d.NewRange(vmm.RangeOptions{Max: 2 * total, Chunk: chunk, GrowAhead: ahead})
					require.NoError(t, err)
					for ahead > 0 && g.Cap() < ahead {
						time.Sleep(time.Millisecond) //nolint:forbidigo // the first growth ahead is not measured
					}
					before := d.Stats().WorkTime
					crossing, all := appends(t, g, s, from.Ptr(), n, total, rate)
					took[i] = append(took[i], crossing...)
					duty[i] += float64(d.Stats().WorkTime-before) / float64(all) / 4
					require.Zero(t, g.Stats().GrowAheadFailures)
					require.NoError(t, g.Close())
					if onCUDA {
						time.Sleep(80 * time.Millisecond) //nolint:forbidigo // the driver is clearing released memory
					}
				}
			}
			q := func(i int) []float64 { return stats.Quantiles(took[i], 0.5, 0.99, 1) }
			for i, ahead := range []string{"none", "4 GiB"} {
				out.Add("%.0f GB/s\t%d MiB\t%s\t%d\t%.1f\t%.1f\t%.1f\t%.1f %%\t%.3f\t%.3f\t%s", rate/1e9, chunk>>20, ahead, len(took[i]),
					q(i)[0], q(i)[1], q(i)[2], 100*duty[i], q(i)[0]/q(0)[0], q(i)[1]/q(0)[1],
					versus.Verdict(i == 0 || q(1)[0] <= q(0)[0]/10 && q(1)[1] <= q(0)[1]/10))
			}
		}
	}
	out.Log(t)
	require.NoError(t, s.Close())
	require.NoError(t, from.Close())
	w.end()
}

// TestGrowthAheadLeavesOthersAlone measures how much slower copies on another stream are
// while appends grow a range in the background, against appends to mapped memory.
func TestGrowthAheadLeavesOthersAlone(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	n, total := scaled(16<<20), scaled(32<<30)
	from, err := d.Alloc(n)
	require.NoError(t, err)
	s, other := stream(t, d), newTraffic(t, d)
	way := func(rate float64, o vmm.RangeOptions, grown bool) func() time.Duration {
		return func() time.Duration {
			o.Max = 2 * total
			g, err := d.NewRange(o)
			require.NoError(t, err)
			if grown {
				require.NoError(t, g.Grow(total+scaled(8<<30)))
			}
			for g.Cap() < o.GrowAhead {
				time.Sleep(time.Millisecond) //nolint:forbidigo // the first growth ahead is not measured
			}
			stop := other.start(t)
			appends(t, g, s, from.Ptr(), n, total, rate)
			moved := stop()
			require.NoError(t, g.Close())
			if onCUDA {
				time.Sleep(80 * time.Millisecond) //nolint:forbidigo // the driver is clearing released memory
			}
			return time.Duration(1e21 / moved) // time for a fixed amount
		}
	}
	out := versus.NewTable("copies beside appends at\tchunks\tpairs\tslower by growth ahead\t95 %\ttarget")
	for _, rate := range []float64{100e9, 300e9} {
		for _, chunk := range []uint64{scaled(256 << 20), 0} {
			pairs := 12
			if !onCUDA {
				pairs = 1
			}
			took := versus.Rounds(pairs, way(rate, vmm.RangeOptions{Chunk: chunk, GrowAhead: scaled(4 << 30)}, false),
				way(rate, vmm.RangeOptions{Chunk: chunk}, true))
			low, high := versus.Interval(took[0], took[1])
			out.Add("%.0f GB/s\t%d MiB\t%d\t%.4f\t[%.4f, %.4f]\t%s", rate/1e9, chunk>>20, len(took[0]),
				versus.Median(took[0])/versus.Median(took[1]), low, high, versus.Verdict(high < 1.02))
		}
	}
	out.Log(t)
	require.NoError(t, s.Close())
	require.NoError(t, from.Close())
}

// TestClipsLeaveOthersAlone: 500 times a second a range on stream B grows by 256 MiB, is
// written and clipped, while copies run on stream A.
func TestClipsLeaveOthersAlone(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	other := newTraffic(t, d)
	b := stream(t, d)
	n, span := scaled(256<<20), 300*time.Millisecond
	if !onCUDA {
		span = 20 * time.Millisecond
	}
	g, err := d.NewRange(vmm.RangeOptions{Max: 4 * n})
	require.NoError(t, err)
	require.NoError(t, g.UsedBy(b))
	var clips []float64
	cycles := func() {
		began := time.Now()
		for i := 0; time.Since(began) < span; i++ {
			for time.Since(began) < time.Duration(i)*2*time.Millisecond {
			}
			require.NoError(t, g.Grow(n))
			require.NoError(t, b.Fill(g.Ptr(), 0xab, 4, 1<<10))
			start := time.Now()
			require.NoError(t, g.Clip())
			clips = append(clips, float64(time.Since(start))/1e3)
		}
	}
	out := versus.NewTable("copies beside 500 clips a second\tpairs\tslower\t95 %\ttarget\tcreates\treleases\treadopted MiB")
	for _, kept := range []uint64{0, 4 * n} {
		d.SetReleaseThreshold(kept)
		before := d.Stats()
		pairs := 12
		if !onCUDA {
			pairs = 1
		}
		took := versus.Rounds(pairs, func() time.Duration {
			stop := other.start(t)
			cycles()
			return time.Duration(1e21 / stop())
		}, func() time.Duration {
			stop := other.start(t)
			time.Sleep(span) //nolint:forbidigo // the same time without
			return time.Duration(1e21 / stop())
		})
		low, high := versus.Interval(took[0], took[1])
		st := d.Stats()
		out.Add("threshold %d MiB\t%d\t%.4f\t[%.4f, %.4f]\t%s\t%d\t%d\t%d", kept>>20, pairs, versus.Median(took[0])/versus.Median(took[1]),
			low, high, versus.Verdict(high < 1.02), st.Creates-before.Creates, st.Releases-before.Releases, (st.Reclaimed-before.Reclaimed)>>20)
	}
	out.Log(t)

	// With A idle, and with A busy for long.
	out = versus.NewTable("Clip with A\tn\tp50 us\tp99 us\tmax us")
	for _, queued := range []int{0, 1, 1000} { // 1000 outlast the clips
		clips = nil
		for range queued {
			require.NoError(t, other.s.Copy(other.from.Ptr()+vmm.Ptr(other.size), other.from.Ptr(), other.size))
		}
		cycles()
		require.NoError(t, other.s.Sync())
		q := stats.Quantiles(clips, 0.5, 0.99, 1)
		out.Add("%d copies of 1 GiB queued\t%d\t%.1f\t%.1f\t%.1f", queued, len(clips), q[0], q[1], q[2])
	}
	out.Log(t)
	require.NoError(t, g.Close())
	require.NoError(t, b.Close())
}

// TestThousandRangesGrowAtRandom to 100 GiB in total, a few times over. None of it is left
// afterwards.
func TestThousandRangesGrowAtRandom(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	free, _, err := d.MemInfo()
	require.NoError(t, err)
	total := min(scaled(100<<30), free/2)
	if onCUDA {
		total = min(100<<30, free/10*9)
	}
	random := rand.New(rand.NewPCG(7, 7))
	cycle := func() {
		ranges := make([]*vmm.Range, 1000)
		for i := range ranges {
			ranges[i], err = d.NewRange(vmm.RangeOptions{Max: max(total/3, 1000*page)}) // 1,000 of them fit in the process's addresses
			require.NoError(t, err)
		}
		for left := total; left > 0; {
			g := ranges[random.IntN(len(ranges))]
			n := min(left, page*(1+random.Uint64N(64)))
			before := g.Stats().Committed
			if d.Stats().Committed+n+n/4+page*8 > total {
				break
			}
			require.NoError(t, g.Grow(g.Cap()+n))
			left -= min(left, g.Stats().Committed-before)
		}
		for _, g := range ranges {
			require.NoError(t, g.Close())
		}
		require.Zero(t, d.Stats().Committed)
	}
	cycle()
	before, _, err := d.MemInfo()
	require.NoError(t, err)
	for range 3 {
		cycle()
	}
	require.Eventually(t, func() bool {
		after, _, err := d.MemInfo()
		return err == nil && after == before
	}, 5*time.Second, 10*time.Millisecond, "drift 0")
	t.Logf("peak %d of %d MiB", d.Stats().PeakCommitted>>20, total>>20)
	require.Greater(t, d.Stats().PeakCommitted, total/2)
	w.end()
}

// TestSleepAgainstPinnedCopies: Sleep and Wake with contents, from the second
// time on, against pinned copies of as many bytes.
func TestSleepAgainstPinnedCopies(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	size, part := scaled(16<<30), scaled(1<<30)
	g, err := d.NewRange(vmm.RangeOptions{Max: size})
	require.NoError(t, err)
	want := pattern(int(part), 5)
	for i := uint64(0); i < size; i += part {
		want[0] = byte(i / part)
		require.NoError(t, g.Append(want))
	}
	dev := raw(t, d)
	pin, _, err := dev.(driver.HostAllocator).AllocHost(part)
	require.NoError(t, err)
	s := stream(t, d)
	timed := func(f func() error) time.Duration {
		start := time.Now()
		err := f()
		took := time.Since(start)
		require.NoError(t, err)
		return took
	}
	// pinned copies the whole range to pinned memory or back, part by part.
	spare, err := d.Alloc(size)
	require.NoError(t, err)
	pinned := func(to, from func(at uint64) vmm.Ptr) float64 {
		return float64(timed(func() error {
			for at := uint64(0); at < size; at += part {
				if err := dev.Copy(to(at), from(at), part, s.Raw()); err != nil {
					return err
				}
			}
			return dev.SyncStream(s.Raw())
		}))
	}
	here := func(uint64) vmm.Ptr { return pin }
	there := func(at uint64) vmm.Ptr { return spare.Ptr() + vmm.Ptr(at) }
	ptr, capacity := g.Ptr(), g.Cap()
	rounds := 10
	if !onCUDA {
		rounds = 2
	}
	var took [4][]float64 // sleep, pinned down, wake, pinned up
	first := timed(func() error { return vmm.Sleep(vmm.SleepKeep, g) })
	require.NoError(t, vmm.Wake(g))
	for range rounds {
		took[1] = append(took[1], pinned(here, there))
		took[0] = append(took[0], float64(timed(func() error { return vmm.Sleep(vmm.SleepKeep, g) })))
		require.Zero(t, g.Stats().Committed)
		took[2] = append(took[2], float64(timed(func() error { return vmm.Wake(g) })))
		took[3] = append(took[3], pinned(there, here))
		back := make([]byte, part)
		for i := uint64(0); i < size; i += part {
			want[0] = byte(i / part)
			_, err := g.ReadAt(back, int64(i))
			require.NoError(t, err)
			require.True(t, bytes.Equal(want, back), "part %d", i/part)
		}
	}
	require.Equal(t, ptr, g.Ptr())
	require.Equal(t, capacity, g.Cap())
	out := versus.NewTable("GiB\tway\tGB/s\tpinned GB/s\tof pinned\t95 %\ttarget")
	for i, way := range []string{"sleep", "wake"} {
		ours, theirs := took[2*i], took[2*i+1]
		low, high := versus.Interval(theirs, ours)
		out.Add("%d\t%s\t%.1f\t%.1f\t%.3f\t[%.3f, %.3f]\t%s", size>>30, way, float64(size)/versus.Median(ours), float64(size)/versus.Median(theirs),
			versus.Median(theirs)/versus.Median(ours), low, high, versus.Verdict(low >= 0.8))
	}
	out.Add("%d\tfirst sleep\t%.1f", size>>30, float64(size)/float64(first))
	out.Log(t)
	require.NoError(t, dev.(driver.HostAllocator).FreeHost(pin))
	require.NoError(t, s.Close())
	require.NoError(t, spare.Close())
	require.NoError(t, g.Close())
	w.end()
}
