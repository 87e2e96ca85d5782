package pool_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/nulldriver"
	"github.com/cuvmm/cuvmm/internal/testing/versus"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
	"github.com/cuvmm/cuvmm/vmm/pool"
)

// mix is blocks that come and go in slots: what is in a slot is freed, and another block
// is allocated for it.
type mix struct {
	name   string
	sizes  []uint64
	slots  []uint32
	live   []pool.Block
	at     int
	a      pool.Allocator
	stream *vmm.Stream
}

// mixes are the kinds there are: a pair of one size, and random ones with 2,000 live.
var mixes = []string{"4KiB", "1MiB", "random"}

func newMix(name string, a pool.Allocator, s *vmm.Stream) *mix {
	slots, draws := 1, 1
	if name == "random" {
		slots, draws = 2000, 1<<14
	}
	m := &mix{name: name, a: a, stream: s, sizes: make([]uint64, draws), slots: make([]uint32, draws)}
	r := rand.New(rand.NewPCG(2000, 0))
	for i := range m.sizes {
		switch name {
		case "4KiB":
			m.sizes[i] = 4 << 10
		case "1MiB":
			m.sizes[i] = 1 << 20
		default:
			m.sizes[i], m.slots[i] = 256+r.Uint64N(64<<10-255), r.Uint32N(uint32(slots))
		}
	}
	m.live = make([]pool.Block, slots, slots+7) // in cache lines of its own
	return m
}

// pair is one free and one allocation.
func (m *mix) pair() error {
	i := m.at & (len(m.sizes) - 1)
	m.at++
	b := &m.live[m.slots[i]]
	if b.Ptr() != 0 {
		if err := m.a.Free(m.stream, *b); err != nil {
			return err
		}
	}
	var err error
	*b, err = m.a.Alloc(m.stream, m.sizes[i])
	return err
}

// pairs is n of them.
func (m *mix) pairs(n int) error {
	for range n {
		if err := m.pair(); err != nil {
			return err
		}
	}
	return nil
}

// warm fills the slots.
func (m *mix) warm(tb testing.TB) *mix {
	tb.Helper()
	require.NoError(tb, m.pairs(100+len(m.sizes)))
	return m
}

func (m *mix) end(tb testing.TB) {
	tb.Helper()
	for _, b := range m.live {
		if b.Ptr() != 0 {
			require.NoError(tb, m.a.Free(m.stream, b))
		}
	}
}

// BenchmarkPairs is a free and an allocation.
func BenchmarkPairs(b *testing.B) {
	dev, _ := card(b)
	for _, c := range contenders() {
		for _, name := range mixes {
			b.Run(fmt.Sprintf("pool=%s/mix=%s", c.name, name), func(b *testing.B) {
				a, streams, end := c.opened(b, dev, 1)
				if a == nil {
					b.Skip("not supported here")
				}
				m := newMix(name, a, streams[0]).warm(b)
				b.ReportAllocs()
				for b.Loop() {
					if err := m.pair(); err != nil {
						b.Fatal(err)
					}
				}
				m.end(b)
				end()
			})
		}
	}
}

// BenchmarkPairsInParallel is the same in goroutines with a stream each.
func BenchmarkPairsInParallel(b *testing.B) {
	dev, _ := card(b)
	for _, c := range contenders() {
		for _, n := range []int{1, 8} {
			b.Run(fmt.Sprintf("pool=%s/goroutines=%d", c.name, n), func(b *testing.B) {
				a, streams, end := c.opened(b, dev, n)
				if a == nil {
					b.Skip("not supported here")
				}
				all := newMixes(b, "random", a, streams)
				b.ResetTimer()
				inParallel(b, all, (b.N+n-1)/n)
				b.StopTimer()
				for _, m := range all {
					m.end(b)
				}
				end()
			})
		}
	}
}

func newMixes(tb testing.TB, name string, a pool.Allocator, streams []*vmm.Stream) (all []*mix) {
	tb.Helper()
	for _, s := range streams {
		all = append(all, newMix(name, a, s).warm(tb))
	}
	return all
}

// inParallel makes n pairs of each mix.
func inParallel(tb testing.TB, all []*mix, n int) time.Duration {
	tb.Helper()
	var done sync.WaitGroup
	began := time.Now()
	for _, m := range all {
		done.Go(func() {
			if err := m.pairs(n); err != nil {
				tb.Error(err)
			}
		})
	}
	done.Wait()
	return time.Since(began)
}

// TestPairsInParallel measures 8 goroutines on 8 streams against one on one. A missed
// target is reported, and fails nothing.
func TestPairsInParallel(t *testing.T) {
	const goroutines = 8
	n, rounds := 100_000, 30
	if !onCUDA {
		n, rounds = 1_000, 2
	}
	dev, _ := card(t)
	out := versus.NewTable("pool\tmix\tCPUs\tone, ns a pair\t8, ns a pair\ttimes as many\t95 %\ttarget")
	for i, c := range contenders() {
		a, streams, end := c.opened(t, dev, goroutines)
		if a == nil {
			out.Add("%s\tnot supported here", c.name)
			continue
		}
		if i > 0 {
			n = max(n/100, 10) // the driver takes so much longer
		}
		for _, name := range mixes {
			all := newMixes(t, name, a, streams)
			took := versus.Rounds(rounds,
				func() time.Duration { return goroutines * inParallel(t, all[:1], n) },
				func() time.Duration { return inParallel(t, all, n) })
			low, high := versus.Interval(took[0], took[1])
			times := versus.Median(took[0]) / versus.Median(took[1])
			target := "needs 8 CPUs"
			if runtime.NumCPU() >= goroutines {
				target = versus.Verdict(low >= 5)
			}
			out.Add("%s\t%s\t%d\t%.1f\t%.1f\t%.2f\t[%.2f, %.2f]\t%s", c.name, name, runtime.NumCPU(),
				versus.Median(took[0])/goroutines/float64(n), versus.Median(took[1])/goroutines/float64(n), times, low, high,
				target)
			for _, m := range all {
				m.end(t)
			}
		}
		end()
	}
	out.Log(t)
}

// spare leaves the pool as much memory beside the blocks of m as they have.
func (m *mix) spare(tb testing.TB) {
	tb.Helper()
	more := newMix(m.name, m.a, m.stream).warm(tb)
	require.NoError(tb, m.pairs(len(m.sizes)))
	more.end(tb)
}

// A pair makes no driver call and no Go allocation, if the pool has memory to spare. Without,
// one in many asks the driver how far the stream has come.
func TestPairsMakeNoCalls(t *testing.T) {
	drivers := map[string]driver.Driver{
		"null": nulldriver.NewSized(simulatedCard),
		"host": host.New(host.Config{Devices: 1, Memory: 8 << 30}),
	}
	if onCUDA {
		dev, _ := card(t)
		drivers["cuda"] = dev.Driver()
	}
	for name, drv := range drivers {
		counted := drivertest.Inject(drv, nil)
		dev, err := vmm.OpenDriver(counted, 0)
		require.NoError(t, err)
		for _, kind := range mixes {
			a, err := pool.New(dev, pool.Options{ReleaseThreshold: math.MaxUint64})
			require.NoError(t, err)
			s, err := dev.NewStream()
			require.NoError(t, err)
			m := newMix(kind, a, s).warm(t)
			m.spare(t)
			before := counted.Counts()
			require.NoError(t, m.pairs(10_000))
			require.Equal(t, before, counted.Counts(), "%s on %s: driver calls", kind, name)
			require.Zero(t, testing.AllocsPerRun(10_000, func() {
				if err := m.pair(); err != nil {
					t.Error(err)
				}
			}), "%s on %s: Go allocations", kind, name)
			require.Equal(t, before, counted.Counts(), "%s on %s: driver calls", kind, name)
			m.end(t)
			require.NoError(t, a.Close())
			require.NoError(t, s.Close())
		}
		require.NoError(t, dev.Close())
		require.NoError(t, counted.Balanced())
	}
}
