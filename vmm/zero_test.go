package vmm_test

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

const secret = 0x5a

// fillCap writes the secret to all that the range has memory for, as a kernel would.
func fillCap(t *testing.T, g *vmm.Range) {
	t.Helper()
	s := stream(t, g.Device())
	require.NoError(t, s.Fill(g.Ptr(), secret, 1, g.Cap()))
	require.NoError(t, s.Sync())
	require.NoError(t, s.Close())
}

// shown raises Len to Cap and returns the bytes from off on.
func shown(t *testing.T, g *vmm.Range, off uint64) []byte {
	t.Helper()
	require.NoError(t, g.SetLen(g.Cap()))
	b := make([]byte, g.Len()-off)
	_, err := g.ReadAt(b, int64(off))
	require.NoError(t, err)
	return b
}

// usedPages leaves n pages that hold the secret in the device's cache.
func usedPages(t *testing.T, w *world, n uint64) {
	t.Helper()
	w.devs[0].SetReleaseThreshold(1 << 30)
	old := newRange(t, w.devs[0], vmm.RangeOptions{Max: 64 * page, Chunk: page})
	require.NoError(t, old.Grow(n*page))
	fillCap(t, old)
	require.NoError(t, old.Close())
	require.Equal(t, n*page, w.devs[0].Stats().Cached)
}

// TestZero: by none of the ways in which memory enters Cap does a range with Zero show
// bytes of another range, or its own dropped ones. Without it the same steps show them.
func TestZero(t *testing.T) {
	ways := map[string]func(t *testing.T, w *world, o vmm.RangeOptions) (*vmm.Range, []byte){
		"Grow from the cache": func(t *testing.T, w *world, o vmm.RangeOptions) (*vmm.Range, []byte) {
			usedPages(t, w, 4)
			g := newRange(t, w.devs[0], o)
			require.NoError(t, g.Grow(4*page))
			return g, shown(t, g, 0)
		},
		"half from the cache": func(t *testing.T, w *world, o vmm.RangeOptions) (*vmm.Range, []byte) {
			usedPages(t, w, 2)
			g := newRange(t, w.devs[0], o)
			require.NoError(t, g.Grow(4*page))
			return g, shown(t, g, 0)
		},
		"Append": func(t *testing.T, w *world, o vmm.RangeOptions) (*vmm.Range, []byte) {
			usedPages(t, w, 4)
			g := newRange(t, w.devs[0], o)
			require.NoError(t, g.Append(make([]byte, 3*page+1)))
			return g, shown(t, g, 0)
		},
		"ahead of need": func(t *testing.T, w *world, o vmm.RangeOptions) (*vmm.Range, []byte) {
			usedPages(t, w, 4)
			o.GrowAhead = 4 * page
			g := newRange(t, w.devs[0], o)
			require.Eventually(t, func() bool { return g.Cap() == 4*page }, 10*time.Second, time.Millisecond)
			return g, shown(t, g, 0)
		},
		"SetLen down and up": func(t *testing.T, w *world, o vmm.RangeOptions) (*vmm.Range, []byte) {
			g := newRange(t, w.devs[0], o)
			require.NoError(t, g.Append(bytes.Repeat([]byte{secret}, 3*page+5)))
			require.NoError(t, g.SetLen(page+7))
			return g, shown(t, g, page+7)
		},
		"Clip and Grow": func(t *testing.T, w *world, o vmm.RangeOptions) (*vmm.Range, []byte) {
			w.devs[0].SetReleaseThreshold(1 << 30)
			g := newRange(t, w.devs[0], o)
			require.NoError(t, g.Grow(4*page))
			fillCap(t, g)
			require.NoError(t, g.Clip())
			require.NoError(t, g.Grow(4*page))
			return g, shown(t, g, 0)
		},
		"Clip and Grow before it is unmapped": func(t *testing.T, w *world, o vmm.RangeOptions) (*vmm.Range, []byte) {
			g := newRange(t, w.devs[0], o)
			s := stream(t, w.devs[0])
			require.NoError(t, g.UsedBy(s))
			require.NoError(t, g.Grow(4*page))
			// The secret is written when the range has grown again.
			open := gate(t, w.devs[0], s.Raw())
			require.NoError(t, s.Fill(g.Ptr(), secret, 1, 4*page))
			require.NoError(t, g.Clip())
			grown := make(chan error, 1)
			go func() { grown <- g.Grow(4 * page) }()
			if !o.Zero {
				require.NoError(t, <-grown)
			}
			open()
			if o.Zero {
				require.NoError(t, <-grown, "it waits for the work of before")
			}
			require.NoError(t, s.Sync())
			b := shown(t, g, 0)
			require.NoError(t, s.Close())
			return g, b
		},
		"Sleep and Wake": func(t *testing.T, w *world, o vmm.RangeOptions) (*vmm.Range, []byte) {
			g := newRange(t, w.devs[0], o)
			require.NoError(t, g.Append(pattern(page/2, 1)))
			require.NoError(t, g.Grow(3*page))
			require.NoError(t, vmm.Sleep(vmm.SleepKeep, g))
			usedPages(t, w, 4)
			require.NoError(t, vmm.Wake(g))
			got := make([]byte, page/2)
			_, err := g.ReadAt(got, 0)
			require.NoError(t, err)
			require.Equal(t, pattern(page/2, 1), got)
			return g, shown(t, g, page/2)
		},
		"Sleep that drops, and Wake": func(t *testing.T, w *world, o vmm.RangeOptions) (*vmm.Range, []byte) {
			g := newRange(t, w.devs[0], o)
			require.NoError(t, g.Append(make([]byte, 4*page)))
			require.NoError(t, vmm.Sleep(vmm.SleepDrop, g))
			usedPages(t, w, 4)
			require.NoError(t, vmm.Wake(g))
			return g, shown(t, g, 0)
		},
	}
	for name, way := range ways {
		for _, zero := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/%v", name, zero), func(t *testing.T) {
				w := newWorld(t, 1)
				g, b := way(t, w, vmm.RangeOptions{Max: 64 * page, Chunk: page, Zero: zero})
				require.Equal(t, zero, bytes.Count(b, []byte{0}) == len(b))
				require.NoError(t, g.Close())
				w.end()
			})
		}
	}
}

// TestZeroLeavesWhatIsWritten: what a kernel writes beyond Len is shown by SetLen, and
// memory beyond it that a later growth adds is zero.
func TestZeroLeavesWhatIsWritten(t *testing.T) {
	w := newWorld(t, 1)
	usedPages(t, w, 4)
	g := newRange(t, w.devs[0], vmm.RangeOptions{Max: 64 * page, Chunk: page, Zero: true})
	require.NoError(t, g.Grow(page))
	fillCap(t, g)
	require.NoError(t, g.Grow(3*page))
	b := shown(t, g, 0)
	require.Equal(t, bytes.Repeat([]byte{secret}, page), b[:page])
	require.Equal(t, make([]byte, len(b)-page), b[page:])
	require.NoError(t, g.Close())
	w.end()
}

// TestAFailedAppendLeavesZeros: the part of it that was written is not shown later.
func TestAFailedAppendLeavesZeros(t *testing.T) {
	w := newWorld(t, 1)
	g := newRange(t, w.devs[0], vmm.RangeOptions{Max: 64 * page, Chunk: page, Zero: true})
	require.NoError(t, g.Grow(2*page))
	fillCap(t, g) // as if the copy had come so far
	w.refuse("CopyIn", 1, driver.ErrInvalid)
	require.ErrorIs(t, g.Append(make([]byte, 100)), driver.ErrInvalid)
	b := shown(t, g, 0)
	require.Equal(t, make([]byte, 100), b[:100])
	require.EqualValues(t, secret, b[100])
	require.NoError(t, g.Close())
	w.end()
}

// TestZeroWithAReadOnlyOwner: it wakes, and does not grow.
func TestZeroWithAReadOnlyOwner(t *testing.T) {
	w := newWorld(t, 1)
	usedPages(t, w, 6)
	g := newRange(t, w.devs[0], vmm.RangeOptions{Max: 64 * page, Chunk: page, Zero: true})
	require.NoError(t, g.Grow(2*page))
	require.NoError(t, g.Grant(vmm.AccessRead, w.devs[0]))
	require.NoError(t, vmm.Sleep(vmm.SleepKeep, g))
	require.NoError(t, vmm.Wake(g))
	require.Equal(t, vmm.AccessRead, g.Access(w.devs[0]))
	require.Equal(t, make([]byte, 2*page), shown(t, g, 0))
	require.ErrorIs(t, g.Grow(page), vmm.ErrInvalid)
	require.NoError(t, g.Grant(vmm.AccessReadWrite, w.devs[0]))
	require.NoError(t, g.Grow(page))
	require.NoError(t, g.Close())
	w.end()
}

// TestMaxIsExact although addresses and memory come in chunks.
func TestMaxIsExact(t *testing.T) {
	w := newWorld(t, 1)
	g := newRange(t, w.devs[0], vmm.RangeOptions{Max: page + 100})
	require.EqualValues(t, page+100, g.Max())
	require.EqualValues(t, page+100, g.Options().Max)
	require.EqualValues(t, 2*page, g.Stats().Reserved)
	require.NoError(t, g.Append(make([]byte, page)))
	require.ErrorIs(t, g.Append(make([]byte, 101)), vmm.ErrFull)
	require.ErrorIs(t, g.Grow(101), vmm.ErrFull)
	require.NoError(t, g.Append(make([]byte, 100)))
	require.EqualValues(t, page+100, g.Cap())
	require.EqualValues(t, 2*page, g.Stats().Committed)
	require.ErrorIs(t, g.SetLen(page+101), vmm.ErrBounds)
	require.ErrorIs(t, g.Append([]byte{1}), vmm.ErrFull)
	require.NoError(t, g.Close())
	w.end()
}
