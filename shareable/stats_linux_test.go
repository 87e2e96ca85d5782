package shareable

import (
	"encoding/json"
	"fmt"
	"math"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// TestStatsAsJSON: the names are those of package vmm's style.
func TestStatsAsJSON(t *testing.T) {
	t.Parallel()
	b, err := json.Marshal(Stats{Conns: 1, Published: 2, KeptFDs: 3, Accepted: 4, Refused: 5, Violations: 6, TimedOut: 7, Frames: 8, Resyncs: 9})
	require.NoError(t, err)
	require.JSONEq(t, `{"conns":1,"published":2,"kept_fds":3,"accepted":4,"refused":5,"violations":6,"timed_out":7,"frames":8,"resyncs":9}`, string(b))
}

// manyObjects is a server with n publications of one range.
func manyObjects(t testing.TB, n int) *Server {
	t.Helper()
	dev := vmmtest.Device(t)
	g, err := dev.NewRange(vmm.RangeOptions{Share: vmm.ShareFD, Max: 2 << 20})
	require.NoError(t, err)
	s, err := NewServer(dev, Options{MaxObjects: n})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, s.Close())
		require.NoError(t, g.Close())
	})
	for i := range n {
		_, err := s.Publish(fmt.Sprint("object", i), g, PublishOptions{})
		require.NoError(t, err)
	}
	return s
}

// TestListCost: a LIST of the last object looks at no other, however many there are.
func TestListCost(t *testing.T) {
	const rounds = 20
	bytes := func(n int) uint64 {
		s := manyObjects(t, n)
		ses, far := served(t, s)
		list := wire.Frame{Payload: wire.List{After: uint64(n - 1)}.Append(nil)}
		least := uint64(math.MaxUint64) // other goroutines allocate, too
		for range 10 {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			for range rounds {
				require.NoError(t, ses.list(list))
				f, err := far.Read()
				require.NoError(t, err)
				m, err := wire.DecodeListed(f.Payload)
				require.NoError(t, err)
				require.Len(t, m.Entries, 1)
			}
			runtime.ReadMemStats(&after)
			least = min(least, (after.TotalAlloc-before.TotalAlloc)/rounds)
		}
		return least
	}
	few := bytes(3)
	require.Less(t, bytes(300), few+300*8/2)
}

// TestListAfterRemoval: publications are listed by id, whichever of them have gone.
func TestListAfterRemoval(t *testing.T) {
	t.Parallel()
	s := manyObjects(t, 20)
	all := s.listed(0, 100)
	for i, p := range all {
		require.Equal(t, uint64(i+1), p.id)
		if i%3 == 0 {
			require.NoError(t, p.close())
		}
	}
	left := s.listed(0, 100)
	require.Len(t, left, 13)
	for i, p := range left {
		require.Equal(t, left[i+1:], s.listed(p.id, 100))
	}
	require.Equal(t, left[:2], s.listed(1, 2))
	require.Empty(t, s.listed(^uint64(0), 100))
}

func BenchmarkListLast(b *testing.B) {
	s := manyObjects(b, 4096)
	for b.Loop() {
		require.Len(b, s.listed(4095, 512), 1)
	}
}
