package budget

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/inside"
	"github.com/cuvmm/cuvmm/internal/testing/versus"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/pool"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// plenty lends enough for all.
type plenty struct{}

func (plenty) Borrow(uint64, bool, time.Time) error { return nil }
func (plenty) Near()                                {}

func timed(f func()) time.Duration {
	begin := time.Now()
	f()
	return time.Since(begin)
}

func rounds(short, long int) int {
	if testing.Short() {
		return short
	}
	return long
}

// TestCostOfALease compares calls under a lease that is not short with the same calls without one.
func TestCostOfALease(t *testing.T) {
	for _, drv := range vmmtest.Drivers() {
		t.Run(drv.Name, func(t *testing.T) {
			d := drv.Device(t)
			g, err := d.NewRange(vmm.RangeOptions{Max: 1 << 30, Chunk: 2 << 20})
			require.NoError(t, err)
			defer func() { require.NoError(t, g.Close()) }()
			require.NoError(t, g.Grow(64<<20))
			p, err := pool.New(d, pool.Options{})
			require.NoError(t, err)
			defer func() { require.NoError(t, p.Close()) }()
			s, err := d.NewStream()
			require.NoError(t, err)
			defer func() { require.NoError(t, s.Close()) }()
			bytes := make([]byte, 4<<10)
			pair := func(n uint64, times int) func() time.Duration {
				return func() time.Duration {
					return timed(func() {
						for range times {
							b, err := p.Alloc(s, n)
							require.NoError(t, err)
							require.NoError(t, p.Free(s, b))
						}
					})
				}
			}
			table := versus.NewTable("\twith a lease\twithout\tratio\t95 %\ttarget")
			for _, c := range []struct {
				name string
				f    func() time.Duration
			}{
				{"1,000 Appends of 4 KiB", func() time.Duration {
					require.NoError(t, g.SetLen(0))
					return timed(func() {
						for range 1000 {
							require.NoError(t, g.Append(bytes))
						}
					})
				}},
				{"400 growths of 2 MiB", func() time.Duration {
					require.NoError(t, g.SetLen(0))
					require.NoError(t, g.Clip())
					return timed(func() {
						for i := range 400 {
							require.NoError(t, g.Grow(uint64(i+1)*2<<20))
						}
					})
				}},
				{"10,000 pool pairs of 1 KiB", pair(1<<10, 10_000)},
				{"5,000 pool pairs of 4 MiB", pair(4<<20, 5000)},
			} {
				leased := func() time.Duration {
					lease, err := inside.VMM.Lend(d, plenty{})
					require.NoError(t, err)
					defer func() { require.NoError(t, lease.End()) }()
					lease.Raise(100 << 30)
					return c.f()
				}
				took := versus.Rounds(rounds(4, 200), leased, c.f)
				low, high := versus.Interval(took[0], took[1])
				a, b := versus.Median(took[0]), versus.Median(took[1])
				table.Add("%s\t%v\t%v\t%.3f\t%.3f %.3f\t1.02 %s", c.name, time.Duration(a), time.Duration(b), a/b, low, high, versus.Verdict(high <= 1.02))
			}
			table.Log(t)
		})
	}
}

// TestCostOfAStep compares a step of the lease with a request over the same socket to which the server replies at once. The
// broker is one in this process, or the one at BUDGET_TEST_SOCKET.
func TestCostOfAStep(t *testing.T) {
	d := vmmtest.Device(t)
	path := os.Getenv("BUDGET_TEST_SOCKET")
	if path == "" {
		path = filepath.Join(t.TempDir(), "b.sock")
		s, err := Serve(path, ServeOptions{Budgets: []Budget{{Device: d, Bytes: 1 << 30}}})
		require.NoError(t, err)
		defer func() { require.NoError(t, s.Close()) }()
	}
	m, err := Join(t.Context(), path, d, JoinOptions{Least: 1 << 20})
	require.NoError(t, err)
	defer func() { require.NoError(t, m.Close()) }()
	step := func() time.Duration {
		took := timed(func() { require.NoError(t, m.ask(t.Context(), 1<<20, false)) })
		require.Greater(t, m.Stats().Lease, uint64(1<<20))
		m.done.Add(1)
		m.give(m.client, m.client.Times(), wire.Demand{Soft: true, Lease: 1 << 20})
		return took
	}
	bare := func() time.Duration {
		return timed(func() {
			err := m.client.Call(t.Context(), wire.TypeList, wire.List{}.Append(nil), wire.TypeListed, func(wire.Frame) error { return nil })
			require.NoError(t, err)
		})
	}
	took := versus.Rounds(rounds(100, 5000), step, bare)
	low, high := versus.Interval(took[0], took[1])
	a, b := versus.Median(took[0]), versus.Median(took[1])
	t.Logf("a step %v, a bare round trip %v, ratio %.2f [%.2f %.2f], target 3: %s", time.Duration(a), time.Duration(b), a/b, low, high, versus.Verdict(high <= 3))
}
