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

// holds is how often the buffer of a new Writer takes one element or row, before it is flushed or
// there is nothing to append to.
func holds[T any](w *growable.Writer[T], one ...T) (n int) {
	for w.Append(one...) == nil && w.Buffered() > n {
		n++
	}
	return n
}

func TestWriterKeepsOrder(t *testing.T) {
	d := vmmtest.Device(t)
	for _, size := range []int{1, 2, 7, 64, 1000} {
		v := vector[int32](t, d, growable.Options{MaxLen: 300 * (2*size + 1)})
		w := growable.NewWriter(v, size)
		require.Equal(t, size, holds(growable.NewWriter[int32](nil, size), 1))
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
			require.LessOrEqual(t, w.Buffered(), size)
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
	require.NoError(t, w.Append(make([]int32, 100)...))
	require.NoError(t, w.Append(make([]int32, 11)...))
	require.Equal(t, []uint64{8, 400, 44}, copies)
	for range 20 {
		require.NoError(t, w.Append(3))
	}
	require.NoError(t, w.Append())
	require.Equal(t, []uint64{8, 400, 44, 40}, copies)
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
		err := w.Append(x...)
		for err != nil {
			require.ErrorIs(t, err, vmm.ErrOutOfMemory)
			require.Equal(t, len(want), v.Len()+w.Buffered(), "none of x")
			failed++
			err = w.Append(x...)
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
		require.Equal(t, 4, holds(growable.NewWriter(r, 4), 1, 2, 3))
		require.NoError(t, r.SetLen(0))
		var want []int32
		for i := range 50 {
			x := make([]int32, 3*(i%7))
			for k := range x {
				x[k] = int32(len(want) + k)
			}
			require.NoError(t, w.Append(x...))
			want = append(want, x...)
			require.Equal(t, len(want)/3, r.Len()+w.Buffered())
			require.LessOrEqual(t, w.Buffered(), 4)

			// Part of a row is refused, and takes nothing.
			require.ErrorIs(t, w.Append(1), vmm.ErrInvalid)
			require.ErrorContains(t, w.Append(make([]int32, 13)...), "append 13 elements: invalid argument: not whole rows of 3")
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
		require.NoError(t, w.Append(make([]int32, 16)...))
		require.NoError(t, w.Flush())
		require.Equal(t, 1, wide.Len())
		require.NoError(t, r.Close())
		w.Reset(r)
		require.ErrorIs(t, w.Flush(), vmm.ErrClosed)
	}
	full := rows[int32](t, d, 3, growable.RowsOptions{MaxRows: 1})
	require.Equal(t, 1<<18/3, holds(growable.NewWriter(full, 0), 1, 2, 3), "1 MiB")
	full = rows[int32](t, d, 1<<23, growable.RowsOptions{MaxRows: 1})
	require.Equal(t, 2, holds(growable.NewWriter(full, 9), make([]int32, 1<<23)...), "64 MiB")
}

func TestWriterSizes(t *testing.T) {
	large := make([][1 << 21]byte, 1)
	require.Equal(t, 1<<18, holds(growable.NewWriter[int32](nil, 0), 1))
	require.Equal(t, 1, holds(growable.NewWriter[[1 << 21]byte](nil, -1), large...))
	require.Equal(t, 1<<5, holds(growable.NewWriter[[1 << 21]byte](nil, math.MaxInt), large...), "64 MiB")
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
