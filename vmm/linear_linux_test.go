package vmm_test

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/invariants"
	"github.com/cuvmm/cuvmm/internal/testing/nulldriver"
	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/internal/testing/versus"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/internal/lock"
)

// leastTime is the least time that f takes for n pieces of work, of several and without the garbage
// collector, which has its own mind.
func leastTime(n int, f func(n int) time.Duration) time.Duration {
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	least := f(n)
	for range 8 {
		runtime.GC()
		least = min(least, f(n))
	}
	return least
}

// requireLinear: 10 times the work takes at most 30 times the time, with whatever runs beside it.
// With time for each pair it takes 100 times as long.
func requireLinear(t *testing.T, n int, f func(n int) time.Duration) {
	t.Helper()
	testgate.Long(t)
	if lock.Ordered {
		return // the race detector takes its own time
	}
	f(4 * n) // the heap has its size from here on
	few, many := leastTime(n/10, f), leastTime(n, f)
	t.Logf("%d: %v, %d: %v, %.1f times as long", n/10, few, n, many, float64(many)/float64(few))
	require.LessOrEqual(t, many, 30*few)
}

// TestClipOfManyChunks: a Clip, and the growth before it, take a time that does not grow with the
// number of chunks that stay.
func TestClipOfManyChunks(t *testing.T) {
	testgate.Long(t)
	if lock.Ordered || invariants.Enabled {
		return // the checks look at each chunk
	}
	const few, many, times, chunk = 100, 100_000, 100, 2 << 20
	least := func(n uint64) time.Duration {
		d, err := vmm.OpenDriver(nulldriver.New(), 0)
		require.NoError(t, err)
		g, err := d.NewRange(vmm.RangeOptions{Max: (n + 1) * chunk, Chunk: chunk})
		require.NoError(t, err)
		require.NoError(t, g.Grow(n*chunk))
		require.NoError(t, g.SetLen(n*chunk))
		took := leastTime(times, func(n int) time.Duration {
			return versus.CPUTime(t, func() {
				for range n {
					require.NoError(t, g.Grow(1))
					require.NoError(t, g.Clip())
				}
			})
		})
		require.NoError(t, g.Close())
		require.NoError(t, d.Close())
		return took / times
	}
	a, b := least(few), least(many)
	t.Logf("%d chunks: %v, %d: %v", few, a, many, b)
	require.LessOrEqual(t, b, 10*a)
}

// TestReadAsksAboutFewStreams: a read waits for the context, and the driver is asked about the
// legacy stream alone, however many streams there are, and about those whose handle the program has.
func TestReadAsksAboutFewStreams(t *testing.T) {
	streams := testgate.Effort(1000, 4000, 4000)
	w := newWorld(t, 1)
	d := w.devs[0]
	g := newRange(t, d, vmm.RangeOptions{})
	require.NoError(t, g.Append([]byte{1}))
	for range streams {
		stream(t, d)
	}
	asks := func() int {
		before := w.made("Capturing")
		_, err := g.ReadAt(make([]byte, 1), 0)
		require.NoError(t, err)
		return w.made("Capturing") - before
	}
	require.Equal(t, 1, asks())
	for name, show := range map[string]func(*vmm.Stream) driver.Stream{
		"Raw":   (*vmm.Stream).Raw,
		"Queue": (*vmm.Stream).Queue,
		"Hold": func(s *vmm.Stream) driver.Stream {
			handle, _, release, err := s.Hold()
			require.NoError(t, err)
			release()
			return handle
		},
		"wrapped": func(s *vmm.Stream) driver.Stream {
			wrapped := d.WrapStream(uintptr(s.Raw()))
			t.Cleanup(func() { require.NoError(t, wrapped.Close()) })
			return wrapped.Raw()
		},
	} {
		asked, s := asks(), stream(t, d)
		handle := show(s)
		require.Greater(t, asks(), asked, name)
		c := raw(t, d).(driver.Grapher)
		require.NoError(t, c.BeginCapture(handle, driver.CaptureRelaxed))
		_, err := g.ReadAt(make([]byte, 1), 0)
		require.ErrorIs(t, err, vmm.ErrCapturing, name)
		require.NoError(t, endCapture(c, handle))
	}
	require.NoError(t, g.Close())
}

// capturing captures n fills of different memory, and returns how long that takes.
func capturing(t testing.TB, s *vmm.Stream, p vmm.Ptr, n int) time.Duration {
	took := versus.CPUTime(t, func() {
		require.NoError(t, s.BeginCapture())
		for i := range n {
			if err := s.Fill(p+vmm.Ptr(16*i), 1, 4, 4); err != nil {
				require.NoError(t, err)
			}
		}
	})
	g, err := s.EndCapture()
	require.NoError(t, err)
	require.NoError(t, g.Close())
	return took
}

// forCapture is a stream, and memory for n fills.
func forCapture(t testing.TB, n int) (*vmm.Stream, vmm.Ptr) {
	d, err := vmm.OpenDriver(newWorld(t, 1).inner, 0)
	require.NoError(t, err)
	g := newRange(t, d, vmm.RangeOptions{Max: 1 << 30})
	require.NoError(t, g.Grow(uint64(16*n)))
	s, err := d.NewStream()
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, s.Close())
		require.NoError(t, g.Close())
		require.NoError(t, d.Close())
	})
	return s, g.Ptr()
}

// TestCapturingIsLinear in the number of spans that the captured work uses.
func TestCapturingIsLinear(t *testing.T) {
	testgate.Long(t) // before it makes what it captures
	s, p := forCapture(t, 80_000)
	requireLinear(t, 20_000, func(n int) time.Duration { return capturing(t, s, p, n) })
}

func BenchmarkCapture(b *testing.B) {
	for _, n := range []int{2_500, 20_000} {
		b.Run(fmt.Sprintf("nodes=%d", n), func(b *testing.B) {
			s, p := forCapture(b, n)
			var took time.Duration
			for b.Loop() {
				took += capturing(b, s, p, n)
			}
			b.ReportMetric(float64(took.Nanoseconds())/float64(b.N*n), "ns/node")
		})
	}
}

// openStreams is n streams on a driver whose calls cost nothing.
func openStreams(t testing.TB, n int) []*vmm.Stream {
	d, err := vmm.OpenDriver(nulldriver.New(), 0)
	require.NoError(t, err)
	var all []*vmm.Stream
	for range n {
		s, err := d.NewStream()
		require.NoError(t, err)
		all = append(all, s)
	}
	return all
}

// waitInTurn has each stream wait for the one before, the first one for the last.
func waitInTurn(t testing.TB, streams []*vmm.Stream) {
	for i, s := range streams {
		e, err := s.Record()
		require.NoError(t, err)
		require.NoError(t, streams[(i+1)%len(streams)].Wait(e))
		require.NoError(t, e.Close())
	}
}

func syncAll(t testing.TB, streams []*vmm.Stream) {
	for _, s := range streams {
		require.NoError(t, s.Sync())
	}
}

// closeStreams closes the streams, and their device.
func closeStreams(t testing.TB, streams []*vmm.Stream) {
	for _, s := range slices.Backward(streams) {
		require.NoError(t, s.Close())
	}
	require.NoError(t, streams[0].Device().Close())
}

// TestManyStreamsOrder: what is known of the order of streams that wait for each other takes
// memory for each stream, and not for each pair; and hardly any once they are synced.
func TestManyStreamsOrder(t *testing.T) {
	heap := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	for _, n := range []int{1000, 2000, 4000}[:testgate.Effort(1, 3, 3)] {
		streams := openStreams(t, n)
		before := heap()
		waitInTurn(t, streams)
		waiting := heap()
		syncAll(t, streams)
		synced := heap()
		t.Logf("%d streams: %d KiB as they wait, %d KiB once synced", n, int64(waiting-before)>>10, int64(synced-before)>>10)
		require.LessOrEqual(t, int64(waiting-before), int64(n<<10))
		require.LessOrEqual(t, int64(synced-before), int64(n<<9), "2 MiB for 4,000")
		closeStreams(t, streams)
	}
}

// TestManyStreamsOrderIsLinear: what is known of that order takes time for each stream, and not for
// each pair.
func TestManyStreamsOrderIsLinear(t *testing.T) {
	requireLinear(t, 4000, func(n int) time.Duration {
		streams := openStreams(t, n)
		took := versus.CPUTime(t, func() {
			waitInTurn(t, streams)
			syncAll(t, streams)
		})
		closeStreams(t, streams)
		return took
	})
}

// BenchmarkWait has each of n streams wait for the one before, again and again, with what that
// costs to keep the order known.
func BenchmarkInTurn(b *testing.B) {
	for _, n := range []int{400, 4000} {
		b.Run(fmt.Sprintf("streams=%d", n), func(b *testing.B) {
			var took time.Duration
			for b.Loop() {
				streams := openStreams(b, n)
				start := time.Now()
				waitInTurn(b, streams)
				syncAll(b, streams)
				took += time.Since(start)
				closeStreams(b, streams)
			}
			b.ReportMetric(float64(took.Nanoseconds())/float64(b.N*n), "ns/stream")
		})
	}
}

func BenchmarkWait(b *testing.B) {
	for _, n := range []int{2, 8, 64} {
		b.Run(fmt.Sprintf("streams=%d", n), func(b *testing.B) {
			streams := openStreams(b, n)
			var events []*vmm.Event
			for _, s := range streams {
				e, err := s.Device().NewEvent(0)
				require.NoError(b, err)
				require.NoError(b, e.Record(s))
				events = append(events, e)
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				e, next := events[i%n], streams[(i+1)%n]
				if err := e.Record(streams[i%n]); err != nil {
					b.Fatal(err)
				}
				if err := next.Wait(e); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkAfter looks up what a stream that waits for n others comes after.
func BenchmarkAfter(b *testing.B) {
	for _, n := range []int{2, 8, 64, 4096} {
		b.Run(fmt.Sprintf("streams=%d", n), func(b *testing.B) {
			streams := openStreams(b, n)
			waitInTurn(b, streams)
			last := streams[n-1]
			for i := 0; b.Loop(); i++ {
				if last.After(streams[i%(n-1)]) == 0 {
					b.Fatal("it comes after all others")
				}
			}
		})
	}
}
