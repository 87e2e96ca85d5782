package growable_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/growable"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// all is the elements of v.
func all[T any](t testing.TB, v *growable.Vector[T]) []T {
	t.Helper()
	got := make([]T, v.Len())
	_, err := v.ReadAt(got, 0)
	require.NoError(t, err)
	return got
}

func TestWriterKeepsOrder(t *testing.T) {
	d := vmmtest.Device(t)
	for _, size := range []int{1, 2, 7, 64, 1000} {
		v := vector[int32](t, d, growable.Options{MaxLen: 300 * (2*size + 1)})
		w := growable.NewWriter(v, size)
		require.Equal(t, size, w.Size())
		random := rand.New(rand.NewPCG(1, uint64(size)))
		var want []int32
		for range 300 {
			x := make([]int32, random.IntN(2*size+2))
			for i := range x {
				x[i] = random.Int32()
			}
			require.NoError(t, w.Append(x...))
			want = append(want, x...)
			clear(x) // it may be reused
			require.Equal(t, len(want), v.Len()+w.Buffered())
			require.Equal(t, size, w.Buffered()+w.Available())
		}
		require.NoError(t, w.Flush())
		require.NoError(t, w.Flush())
		require.Zero(t, w.Buffered())
		require.Equal(t, want, all(t, v))
	}
}

func TestWriterLargeSlicesPassBy(t *testing.T) {
	var copies []uint64
	d := vmmtest.Device(t, func(c drivertest.Call) error {
		if c.Name == "CopyIn" {
			copies = append(copies, c.Size)
		}
		return nil
	})
	v := vector[int32](t, d, growable.Options{MaxLen: 1000})
	w := growable.NewWriter(v, 10)
	require.NoError(t, w.Append(1, 2))
	require.NoError(t, w.AppendSlice(make([]int32, 10)))
	require.NoError(t, w.AppendSlice(make([]int32, 100)))
	require.NoError(t, w.Append(make([]int32, 100)...))
	require.Equal(t, []uint64{8, 40, 400, 400}, copies)
	for range 20 {
		require.NoError(t, w.Append(3))
	}
	require.NoError(t, w.AppendSlice(nil))
	require.Equal(t, []uint64{8, 40, 400, 400, 40}, copies)
}

// TestWriterLosesNothing fails every copy once: the call that failed is made
// again, and everything arrives once, in order.
func TestWriterLosesNothing(t *testing.T) {
	failing := false
	d := vmmtest.Device(t, func(c drivertest.Call) error {
		if c.Name != "CopyIn" {
			return nil
		}
		if failing = !failing; failing {
			return vmm.ErrOutOfMemory
		}
		return nil
	})
	v := vector[int32](t, d, growable.Options{MaxLen: 10_000})
	w := growable.NewWriter(v, 8)
	var want []int32
	failed := 0
	for i := range 500 {
		x := make([]int32, i%21)
		for k := range x {
			x[k] = int32(len(want) + k)
		}
		add := w.AppendSlice
		if i%2 == 0 {
			add = func(x []int32) error { return w.Append(x...) }
		}
		err := add(x)
		for err != nil {
			require.ErrorIs(t, err, vmm.ErrOutOfMemory)
			require.Equal(t, len(want), v.Len()+w.Buffered(), "none of x")
			failed++
			err = add(x)
		}
		want = append(want, x...)
	}
	if err := w.Flush(); err != nil {
		require.Positive(t, w.Buffered())
		require.NoError(t, w.Flush())
	}
	require.Greater(t, failed, 100)
	failing = true
	require.Equal(t, want, all(t, v))
}

// Elements of a call must not have to be allocated.
func TestWriterAllocatesNothing(t *testing.T) {
	w := growable.NewWriter(vector[int32](t, vmmtest.Device(t), growable.Options{MaxLen: 1 << 20}), 1<<20)
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		_ = w.Append(1)
		_ = w.Append(1, 2, 3)
	}))
}

func TestWriterReset(t *testing.T) {
	d := vmmtest.Device(t)
	a, b := vector[int64](t, d, growable.Options{MaxLen: 100}), vector[int64](t, d, growable.Options{MaxLen: 100})
	w := growable.NewWriter(a, 4)
	require.NoError(t, w.Append(1, 2, 3))
	w.Reset(b)
	require.NoError(t, w.Append(4))
	require.NoError(t, w.Flush())
	require.Zero(t, a.Len())
	require.Equal(t, []int64{4}, all(t, b))
}

// TestWriterOfRows: the same, counted in rows, with padding too.
func TestWriterOfRows(t *testing.T) {
	d := vmmtest.Device(t)
	for _, pitch := range []int{0, 20} {
		r := rows[int32](t, d, 3, growable.RowsOptions{Pitch: pitch, MaxRows: 10_000})
		w := growable.NewWriter(r, 4)
		require.Equal(t, 4, w.Size())
		var want []int32
		for i := range 50 {
			x := make([]int32, 3*(i%7))
			for k := range x {
				x[k] = int32(len(want) + k)
			}
			add := w.AppendSlice
			if i%2 == 0 {
				add = func(x []int32) error { return w.Append(x...) }
			}
			require.NoError(t, add(x))
			want = append(want, x...)
			require.Equal(t, len(want)/3, r.Len()+w.Buffered())
			require.Equal(t, 4, w.Buffered()+w.Available())

			// Part of a row is refused, and takes nothing.
			require.ErrorIs(t, w.Append(1), vmm.ErrInvalid)
			require.ErrorContains(t, w.AppendSlice(make([]int32, 13)), "append 13 elements: invalid argument: not whole rows of 3")
			require.Equal(t, len(want)/3, r.Len()+w.Buffered())
		}
		require.NoError(t, w.Flush())
		got := make([]int32, len(want))
		_, err := r.ReadAt(got, 0)
		require.NoError(t, err)
		require.Equal(t, want, got)

		// It continues with other rows, here with some that are longer than the buffer.
		wide := rows[int32](t, d, 16, growable.RowsOptions{MaxRows: 100})
		w.Reset(wide)
		require.Zero(t, w.Size())
		require.NoError(t, w.Append(make([]int32, 16)...))
		require.NoError(t, w.Flush())
		require.Equal(t, 1, wide.Len())
		require.NoError(t, r.Close())
		w.Reset(r)
		require.ErrorIs(t, w.Flush(), vmm.ErrClosed)
	}
	require.Equal(t, 1<<18/3, growable.NewWriter(rows[int32](t, d, 3, growable.RowsOptions{MaxRows: 1}), 0).Size(), "1 MiB")
	require.Equal(t, 1, growable.NewWriter(rows[int32](t, d, 1<<24, growable.RowsOptions{MaxRows: 1}), 9).Size(), "64 MiB")
}

func TestWriterSizes(t *testing.T) {
	require.Equal(t, 1<<18, growable.NewWriter[int32](nil, 0).Size())
	require.Equal(t, 1, growable.NewWriter[[1 << 21]byte](nil, -1).Size())
	require.Equal(t, 1<<5, growable.NewWriter[[1 << 21]byte](nil, math.MaxInt).Size(), "64 MiB")
	w := growable.NewWriter[int32](nil, 2)
	require.NoError(t, w.Append(1))
	require.ErrorIs(t, w.Flush(), vmm.ErrInvalid)
	require.ErrorIs(t, w.Append(1, 2, 3), vmm.ErrInvalid)
	require.Equal(t, 1, w.Buffered())
}

func BenchmarkWriter(b *testing.B) {
	const n = 1 << 20
	for _, each := range []int{1, 16, 4096} {
		b.Run(fmt.Sprintf("each=%d", each), func(b *testing.B) {
			v := vector[int32](b, vmmtest.Device(b), growable.Options{MaxLen: n})
			w := growable.NewWriter(v, 0)
			x := make([]int32, each)
			b.SetBytes(4 * n)
			for b.Loop() {
				if err := v.SetLen(0); err != nil {
					b.Fatal(err)
				}
				if each == 1 {
					for i := range int32(n) {
						if err := w.Append(i); err != nil {
							b.Fatal(err)
						}
					}
				} else {
					for range n / each {
						if err := w.Append(x...); err != nil {
							b.Fatal(err)
						}
					}
				}
				if err := w.Flush(); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds()/1e6, "Melem/s")
		})
	}
}
