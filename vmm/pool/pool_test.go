package pool_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/pool"
)

func TestSmoke(t *testing.T) {
	d, err := vmm.Open("host")
	require.NoError(t, err)
	p, err := pool.New(d, pool.Options{})
	require.NoError(t, err)
	s, err := d.NewStream()
	require.NoError(t, err)
	rnd := rand.New(rand.NewPCG(1, 2))
	var live []pool.Block
	for range 20000 {
		if len(live) > 0 && rnd.IntN(2) == 0 {
			i := rnd.IntN(len(live))
			require.NoError(t, p.Free(s, live[i]))
			require.ErrorIs(t, p.Free(s, live[i]), pool.ErrDoubleFree)
			live[i] = live[len(live)-1]
			live = live[:len(live)-1]
			continue
		}
		n := uint64(1) << rnd.IntN(22)
		b, err := p.Alloc(s, n+rnd.Uint64N(n))
		require.NoError(t, err)
		got, ok := p.Find(b.Ptr() + vmm.Ptr(b.Size()-1))
		require.True(t, ok)
		require.Equal(t, b.Ptr(), got.Ptr())
		live = append(live, b)
	}
	st, err := p.Stats()
	require.NoError(t, err)
	t.Logf("%+v", st)
	require.ErrorIs(t, p.Close(), vmm.ErrBusy)
	for _, b := range live {
		require.NoError(t, p.Free(s, b))
	}
	require.NoError(t, s.Sync())
	st, err = p.Stats()
	require.NoError(t, err)
	t.Logf("%+v", st)
	require.NoError(t, p.Close())
	require.NoError(t, s.Close())
	require.NoError(t, d.Close())
}

func BenchmarkPair(b *testing.B) {
	d, err := vmm.Open("host")
	require.NoError(b, err)
	defer d.Close()
	p, err := pool.New(d, pool.Options{ReleaseThreshold: 1 << 40})
	require.NoError(b, err)
	defer p.Close()
	s, err := d.NewStream()
	require.NoError(b, err)
	defer s.Close()
	for _, n := range []uint64{4096, 1 << 20} {
		b.Run(map[uint64]string{4096: "4KiB", 1 << 20: "1MiB"}[n], func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				x, err := p.Alloc(s, n)
				if err != nil {
					b.Fatal(err)
				}
				if err := p.Free(s, x); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("random", func(b *testing.B) {
		rnd := rand.New(rand.NewPCG(1, 2))
		var live [2000]pool.Block
		var sizes [4096]uint64
		var which [4096]int
		for i := range sizes {
			sizes[i] = 256 + rnd.Uint64N(65536-256)
			which[i] = rnd.IntN(len(live))
		}
		for i := range live {
			live[i], _ = p.Alloc(s, sizes[i])
		}
		b.ReportAllocs()
		i := 0
		for b.Loop() {
			k := which[i&4095]
			if err := p.Free(s, live[k]); err != nil {
				b.Fatal(err)
			}
			live[k], err = p.Alloc(s, sizes[i*7&4095])
			if err != nil {
				b.Fatal(err)
			}
			i++
		}
		for i := range live {
			p.Free(s, live[i])
		}
	})
}
