package kernel_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/growable"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/kernel"
)

func builtins(t testing.TB, dev *vmm.Device) *kernel.Builtins {
	t.Helper()
	b, err := kernel.LoadBuiltins(dev)
	return ends(t, b, err)
}

// random is n numbers.
func random(n int) []uint32 {
	r := rand.New(rand.NewPCG(1, uint64(n)))
	all := make([]uint32, n)
	for i := range all {
		all[i] = r.Uint32()
	}
	return all
}

func TestPatterns(t *testing.T) {
	dev := open(t)
	b, s := builtins(t, dev), stream(t, dev)
	for _, n := range []int{1, 7, 8, 4096, 100_003, 1 << 20} {
		v := vector(t, dev, make([]byte, n)...)
		p := kernel.Pattern{Seed: 7}
		require.NoError(t, b.FillPattern(s, v, p))
		bad, first, err := b.VerifyPattern(s, v, p)
		require.NoError(t, err)
		require.Zero(t, bad)
		require.Zero(t, first)
		want := make([]byte, n)
		p.Fill(want)
		require.Equal(t, want, contents(t, v))

		at := n * 2 / 3
		require.NoError(t, v.Set(at, want[at]^0x80))
		require.NoError(t, v.Set(n-1, want[n-1]^1))
		bad, first, err = b.VerifyPattern(s, v, p)
		require.NoError(t, err)
		require.Equal(t, uint64(at), first)
		if at < n-1 {
			require.Equal(t, uint64(2), bad)
		}
	}
	empty := vector[byte](t, dev)
	require.NoError(t, b.FillPattern(s, empty, kernel.Pattern{}))
	bad, _, err := b.VerifyPattern(s, empty, kernel.Pattern{})
	require.NoError(t, err)
	require.Zero(t, bad)
}

func TestReductions(t *testing.T) {
	dev := open(t)
	b, s := builtins(t, dev), stream(t, dev)
	v, err := growable.New[float32](dev, growable.Options{})
	ends(t, v, err)
	_, err = kernel.Min[float32](b, s, v)
	require.ErrorIs(t, err, vmm.ErrInvalid, "of nothing")
	sum, err := kernel.SumFloat[float32](b, s, v)
	require.NoError(t, err)
	require.Zero(t, sum)
	const n = 100_001
	require.NoError(t, v.Grow(n))
	require.NoError(t, v.SetLen(n))
	require.NoError(t, kernel.Iota[float32](b, s, v, -50, 0.5))
	sum, err = kernel.SumFloat[float32](b, s, v)
	require.NoError(t, err)
	require.InDelta(t, float64(n)*(-50+0.5*float64(n-1)/2), sum, 1e-3)
	again, err := kernel.SumFloat[float32](b, s, v)
	require.NoError(t, err)
	require.Equal(t, math.Float64bits(sum), math.Float64bits(again), "the same to the bit")
	least, err := kernel.Min[float32](b, s, v)
	require.NoError(t, err)
	require.EqualValues(t, -50, least)
	require.NoError(t, v.Set(n/2, float32(math.NaN())))
	greatest, err := kernel.Max[float32](b, s, v)
	require.NoError(t, err)
	require.True(t, math.IsNaN(float64(greatest)))

	u := vector(t, dev, random(n)...)
	var want uint64
	for _, x := range random(n) {
		want += uint64(x)
	}
	got, err := kernel.SumUint[uint32](b, s, u)
	require.NoError(t, err)
	require.Equal(t, want, got)
	signed := vector[int64](t, dev, -5, 3)
	total, err := kernel.SumInt[int64](b, s, signed)
	require.NoError(t, err)
	require.EqualValues(t, -2, total)

	_, err = kernel.SumUint[uint64](b, s, u)
	require.ErrorIs(t, err, vmm.ErrInvalid, "elements of another size")
	_, err = kernel.SumUint[uint32](b, s, nil)
	require.ErrorIs(t, err, vmm.ErrInvalid)
	_, err = kernel.SumUint[uint32](b, nil, u)
	require.ErrorIs(t, err, vmm.ErrInvalid)
}

// sorted is the elements in order: compacting leaves them in any.
func sorted[T kernel.Number](all []T) []T {
	slices.Sort(all)
	return all
}

func TestCompact(t *testing.T) {
	dev := open(t)
	b, s := builtins(t, dev), stream(t, dev)
	sizes := []int{1, 1000, 100_000}
	if onCUDA {
		sizes = append(sizes, 10_000_000)
	}
	for _, n := range sizes {
		src := vector(t, dev, random(n)...)
		const limit = 1 << 31
		want := slices.DeleteFunc(random(n), func(x uint32) bool { return x >= limit })
		out := vector[uint32](t, dev, 1, 2, 3)
		ptr := out.Ptr()
		c, err := kernel.NewCursor(out)
		ends(t, c, err)
		for range 2 { // first it has to grow
			got, err := kernel.Compact(b, s, c, src, kernel.Less, uint32(limit))
			require.NoError(t, err)
			require.EqualValues(t, len(want), got)
		}
		all := contents(t, out)
		require.Equal(t, []uint32{1, 2, 3}, all[:3])
		require.Equal(t, sorted(append(slices.Clone(want), want...)), sorted(all[3:]))
		require.Equal(t, ptr, out.Ptr())

		mask := vector(t, dev, make([]byte, n)...)
		require.NoError(t, mask.Set(n-1, 1))
		got, err := b.CompactMask(s, c, src, mask)
		require.NoError(t, err)
		require.EqualValues(t, 1, got)
		last, err := out.At(out.Len() - 1)
		require.NoError(t, err)
		require.Equal(t, random(n)[n-1], last)
		_, err = b.CompactMask(s, c, src, vector[byte](t, dev))
		require.ErrorIs(t, err, vmm.ErrInvalid, "a short mask")
		_, err = kernel.Compact(b, s, c, src, kernel.Less, uint64(1))
		require.ErrorIs(t, err, vmm.ErrInvalid, "elements of another size")
	}
	_, err := kernel.Compact(b, s, nil, vector[uint32](t, dev, 1), kernel.Less, uint32(1))
	require.ErrorIs(t, err, vmm.ErrInvalid)
}

func TestGatherScatter(t *testing.T) {
	dev := open(t)
	b, s := builtins(t, dev), stream(t, dev)
	src, dst := vector[uint64](t, dev, 10, 11, 12, 13), vector[uint64](t, dev, 0, 0, 0)
	require.NoError(t, b.Gather(s, dst, src, vector[uint32](t, dev, 3, 0, 3), 0))
	require.Equal(t, []uint64{13, 10, 13}, contents(t, dst))
	require.NoError(t, b.Scatter(s, src, dst, vector[uint64](t, dev, 1, 2, 0), 0))
	require.Equal(t, []uint64{13, 13, 10, 13}, contents(t, src))
	err := b.Gather(s, dst, src, vector[uint32](t, dev, 4, 1, 100), 0)
	require.ErrorIs(t, err, vmm.ErrBounds)
	require.ErrorContains(t, err, "2 of 3 indices")
	require.Equal(t, []uint64{13, 13, 13}, contents(t, dst), "the row with an index in bounds was copied")
	require.ErrorIs(t, b.Gather(s, dst, src, vector[uint32](t, dev, 0, 0, 0, 0), 0), vmm.ErrBounds, "more indices than rows")
	require.ErrorIs(t, b.Gather(s, dst, src, vector[byte](t, dev, 0), 0), vmm.ErrInvalid)
	require.ErrorIs(t, b.Gather(s, dst, src, vector[uint32](t, dev, 0), 16), vmm.ErrInvalid, "rows that overlap")
	require.ErrorIs(t, b.Gather(s, dst, nil, vector[uint32](t, dev, 0), 0), vmm.ErrInvalid)
	require.NoError(t, b.Gather(s, dst, src, vector[uint32](t, dev), 0))

	rows, err := growable.NewRows[uint16](dev, 3, growable.RowsOptions{Pitch: 16})
	ends(t, rows, err)
	require.NoError(t, rows.Append(1, 2, 3, 4, 5, 6))
	flat, err := growable.NewRows[uint16](dev, 3, growable.RowsOptions{})
	ends(t, flat, err)
	require.NoError(t, flat.Append(0, 0, 0))
	require.NoError(t, b.Gather(s, flat, rows, vector[uint32](t, dev, 1), 0))
	got := make([]uint16, 3)
	_, err = flat.ReadAt(got, 0)
	require.NoError(t, err)
	require.Equal(t, []uint16{4, 5, 6}, got)
}

func TestCopy(t *testing.T) {
	dev := open(t)
	b, s := builtins(t, dev), stream(t, dev)
	src, dst := vector(t, dev, random(100_000)...), vector(t, dev, make([]uint32, 100_001)...)
	require.NoError(t, b.Copy(s, dst, src))
	require.NoError(t, s.Sync())
	require.Equal(t, append(random(100_000), 0), contents(t, dst))
	require.ErrorIs(t, b.Copy(s, src, dst), vmm.ErrBounds)
	require.ErrorIs(t, b.Copy(s, src, nil), vmm.ErrInvalid)
}

// TestBuiltinsAtOnce uses more streams than there is scratch memory for.
func TestBuiltinsAtOnce(t *testing.T) {
	dev := open(t)
	b := builtins(t, dev)
	v := vector(t, dev, random(10_000)...)
	s := stream(t, dev)
	want, err := kernel.SumUint[uint32](b, s, v)
	require.NoError(t, err)
	done := make(chan error)
	const goroutines = 40
	for range goroutines {
		go func() {
			s, err := dev.NewStream()
			if err == nil {
				for range 5 {
					got, sumErr := kernel.SumUint[uint32](b, s, v)
					if sumErr != nil || got != want {
						err = sumErr
						break
					}
				}
				if closeErr := s.Close(); err == nil {
					err = closeErr
				}
			}
			done <- err
		}()
	}
	for range goroutines {
		require.NoError(t, <-done)
	}
}

// TestBuiltinsRefused: a call that cannot wait for its result queues nothing, and takes no
// scratch memory with it.
func TestBuiltinsRefused(t *testing.T) {
	dev := open(t)
	b, v, s := builtins(t, dev), vector[float32](t, dev, 1, 2), stream(t, dev)
	closed, err := dev.NewStream()
	require.NoError(t, err)
	require.NoError(t, closed.Close())
	require.NoError(t, s.BeginCapture())
	for range 20 {
		_, err := kernel.SumFloat[float32](b, nil, v)
		require.ErrorIs(t, err, vmm.ErrInvalid)
		_, err = kernel.SumFloat[float32](b, closed, v)
		require.ErrorIs(t, err, vmm.ErrClosed)
		_, err = kernel.SumFloat[float32](b, s, v)
		require.ErrorIs(t, err, vmm.ErrCapturing)
	}
	graph, err := s.EndCapture()
	ends(t, graph, err)
	got, err := kernel.SumFloat[float32](b, s, v)
	require.NoError(t, err)
	require.EqualValues(t, 3, got)
}
