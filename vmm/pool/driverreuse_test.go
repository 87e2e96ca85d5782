package pool_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/pool"
)

// TestDriverPoolReuse: each policy of a driver's pool alone has a stream reuse what another one has freed, in
// its case, and does nothing in those of the others.
func TestDriverPoolReuse(t *testing.T) {
	const n = 64 * mib // two of what CUDA reserves at once, so that a block leaves no room for another one
	cases := map[pool.Reuse]func(*testing.T, *gates, *pool.DriverPool, *vmm.Stream, *vmm.Stream) (open func()){
		// The stream waits for an event after the free.
		pool.ReuseFollowEvents: func(t *testing.T, g *gates, p *pool.DriverPool, s, other *vmm.Stream) func() {
			b := alloc(t, p, other, n)
			open := g.hold(other)
			require.NoError(t, p.Free(other, b))
			e, err := other.Record()
			require.NoError(t, err)
			require.NoError(t, s.Wait(e))
			require.NoError(t, e.Close())
			return open
		},
		// The free is over, and no wait has shown it.
		pool.ReuseOpportunistic: func(t *testing.T, _ *gates, p *pool.DriverPool, _, other *vmm.Stream) func() {
			require.NoError(t, p.Free(other, alloc(t, p, other, n)))
			e, err := other.Record()
			require.NoError(t, err)
			require.Eventually(t, func() bool {
				done, err := e.Done()
				return err == nil && done
			}, patience, waitStep)
			require.NoError(t, e.Close())
			return func() {}
		},
		// The free is not over, and there is no other memory.
		pool.ReuseInternalDependencies: func(t *testing.T, g *gates, p *pool.DriverPool, _, other *vmm.Stream) func() {
			b := alloc(t, p, other, n)
			open := g.hold(other)
			require.NoError(t, p.Free(other, b))
			return open
		},
	}
	for on := range pool.ReuseAll + 1 {
		for of, prepare := range cases {
			w := oneDevice(t, 256*mib)
			g, s, other := w.gates(0), w.stream(0), w.stream(0)
			o := pool.Options{ReleaseThreshold: math.MaxUint64, NoReuse: pool.ReuseAll &^ on}
			if of == pool.ReuseInternalDependencies {
				o.Max = n
			}
			p := w.driverPool(o)
			open := prepare(t, g, p, s, other)
			held, err := p.Stats()
			require.NoError(t, err)
			b, err := p.Alloc(s, n)
			switch {
			case of&on == 0 && of == pool.ReuseInternalDependencies:
				require.ErrorIs(t, err, vmm.ErrOutOfMemory, "%b of %b", on, of)
			case of&on == 0:
				require.NoError(t, err)
				now, err := p.Stats()
				require.NoError(t, err)
				require.Greater(t, now.Reserved, held.Reserved, "%b of %b", on, of)
			default:
				require.NoError(t, err, "%b of %b", on, of)
				now, err := p.Stats()
				require.NoError(t, err)
				require.Equal(t, held.Reserved, now.Reserved, "%b of %b", on, of)
				if of != pool.ReuseOpportunistic {
					require.NoError(t, s.Fill(b.Ptr(), 7, 1, n))
					done, err := s.Done()
					require.NoError(t, err)
					require.False(t, done, "it comes after the free")
				}
			}
			open()
			require.NoError(t, s.Sync())
			require.NoError(t, other.Sync())
			if err == nil {
				require.NoError(t, p.Free(s, b))
			}
			closeAll(t, p, s, other)
			w.end()
		}
	}
}
