//go:build cgo

package dlpack_test

import (
	"errors"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cgo/dlpack/consumer"
	"github.com/cuvmm/cuvmm/growable"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/dlpack"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

const page = 4096

// export exports, and hands the tensor over.
func export(t *testing.T, m dlpack.Memory, n int, o dlpack.Options) consumer.Pointer {
	t.Helper()
	x, err := dlpack.Export(m, n, o)
	require.NoError(t, err)
	p, err := x.HandOver()
	require.NoError(t, err)
	return p
}

// remove calls a deleter, and waits until no tensor is left.
func remove(t *testing.T, versioned bool, all ...consumer.Pointer) {
	t.Helper()
	require.NoError(t, consumer.Delete(all, versioned, 1, 1))
	nothingOpen(t)
}

func nothingOpen(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool {
		n, waiting := dlpack.Open()
		return n == 0 && !waiting
	}, 10*time.Second, time.Millisecond)
}

// TestExportedStructs: a C library finds in both structs what Export was given.
func TestExportedStructs(t *testing.T) {
	d := vmmtest.Device(t)
	rows, err := growable.NewRows[float32](d, 3, growable.RowsOptions{Pitch: 16, Range: vmm.RangeOptions{Max: page}})
	require.NoError(t, err)
	defer rows.Close()
	for i := range 5 {
		require.NoError(t, rows.Append(float32(i), 1, 2))
	}
	for _, versioned := range []bool{true, false} {
		p := export(t, rows, 4, dlpack.Options{Unversioned: !versioned})
		got := consumer.Read(p, versioned)
		want := consumer.Tensor{
			Data: uintptr(rows.Ptr()), Type: 1, Code: 2, Bits: 32, Lanes: 1, Shape: []int64{4, 3}, Strides: []int64{4, 1},
		}
		if versioned {
			want.Major = 1
		}
		require.Equal(t, want, got)
		var sum int64
		for i := range 4 {
			for _, x := range []float32{float32(i), 1, 2} {
				for b := math.Float32bits(x); b > 0; b >>= 8 {
					sum += int64(b & 0xff)
				}
			}
		}
		require.Equal(t, sum, consumer.Sum(p, versioned, 16), "in several threads")
		remove(t, versioned, p)
	}
}

// TestDTypes: each type with its DLPack code.
func TestDTypes(t *testing.T) {
	d := vmmtest.Device(t)
	g, err := d.NewRange(vmm.RangeOptions{Max: page})
	require.NoError(t, err)
	defer g.Close()
	require.NoError(t, g.Append(make([]byte, 96)))
	for dtype, want := range map[dlpack.DType]struct {
		code, bits uint8
		name       string
	}{
		dlpack.Bool: {6, 8, "bool"}, dlpack.Int8: {0, 8, "int8"}, dlpack.Int16: {0, 16, "int16"}, dlpack.Int32: {0, 32, "int32"},
		dlpack.Int64: {0, 64, "int64"}, dlpack.Uint8: {1, 8, "uint8"}, dlpack.Uint16: {1, 16, "uint16"}, dlpack.Uint32: {1, 32, "uint32"},
		dlpack.Uint64: {1, 64, "uint64"}, dlpack.Float16: {2, 16, "float16"}, dlpack.BFloat16: {4, 16, "bfloat16"}, dlpack.Float32: {2, 32, "float32"},
		dlpack.Float64: {2, 64, "float64"}, dlpack.Complex64: {5, 64, "complex64"}, dlpack.Complex128: {5, 128, "complex128"},
	} {
		x, err := dlpack.Export(g, 2, dlpack.Options{DType: dtype, Shape: []int{3}})
		require.NoError(t, err, "%v", dtype)
		require.Equal(t, "DLPack export of "+want.name+"[2 3]", x.String())
		p, err := x.HandOver()
		require.NoError(t, err)
		got := consumer.Read(p, true)
		require.Equal(t, []uint8{want.code, want.bits}, []uint8{got.Code, got.Bits}, want.name)
		require.Equal(t, []int64{2, 3}, got.Shape)
		require.Equal(t, []int64{3, 1}, got.Strides)
		remove(t, true, p)
	}
}

// TestPrefixesFollowGrowth: a prefix stays right while the vector grows, and a longer one has the same address.
func TestPrefixesFollowGrowth(t *testing.T) {
	d := vmmtest.Device(t)
	v, err := growable.New[uint8](d, growable.Options{Range: vmm.RangeOptions{Max: 64 * page}})
	require.NoError(t, err)
	defer v.Close()
	var all []consumer.Pointer
	want := int64(0)
	sums := []int64{}
	for i := range 64 {
		block := make([]uint8, page)
		for j := range block {
			block[j] = uint8(i + j)
			want += int64(block[j])
		}
		require.NoError(t, v.Append(block...))
		all = append(all, export(t, v, v.Len(), dlpack.Options{Stream: -1}))
		sums = append(sums, want)
		for k, p := range all {
			require.Equal(t, sums[k], consumer.Sum(p, true, 2))
			require.EqualValues(t, v.Ptr(), consumer.Read(p, true).Data)
		}
	}
	remove(t, true, all...)
}

// TestHoldsUntilTheDeleter: calls that would remove items return ErrBusy with the tensor's name, until its
// deleter was called. Without the hold they succeed.
func TestHoldsUntilTheDeleter(t *testing.T) {
	d := vmmtest.Device(t)
	newVector := func() *growable.Vector[float64] {
		v, err := growable.New[float64](d, growable.Options{Range: vmm.RangeOptions{Max: 16 * page}})
		require.NoError(t, err)
		require.NoError(t, v.Append(make([]float64, 1024)...))
		return v
	}
	v := newVector()
	p := export(t, v, 1000, dlpack.Options{})
	for what, err := range map[string]error{"set length": v.SetLen(999), "sleep": vmm.Sleep(vmm.SleepKeep, v.Range()), "close": v.Close()} {
		require.ErrorIs(t, err, vmm.ErrBusy, what)
		require.ErrorContains(t, err, "DLPack export of float64[1000] [0x0, 0x1f40)", what)
	}
	require.NoError(t, v.SetLen(1000))
	require.NoError(t, v.Clip())
	require.NoError(t, v.Append(1, 2, 3))
	require.ErrorIs(t, v.SetLen(0), vmm.ErrBusy)
	remove(t, true, p)
	require.NoError(t, v.SetLen(0))
	require.NoError(t, v.Close())

	// The negative control.
	dlpack.SetUnheld(true)
	defer dlpack.SetUnheld(false)
	v = newVector()
	p = export(t, v, 1000, dlpack.Options{})
	require.NoError(t, v.Close())
	remove(t, true, p)
}

// TestCloseOrHandOver: one of the two takes the tensor.
func TestCloseOrHandOver(t *testing.T) {
	d := vmmtest.Device(t)
	v, err := growable.New[float32](d, growable.Options{Range: vmm.RangeOptions{Max: page}})
	require.NoError(t, err)
	require.NoError(t, v.Append(1, 2, 3))
	x, err := dlpack.Export(v, 3, dlpack.Options{})
	require.NoError(t, err)
	require.ErrorIs(t, v.Close(), vmm.ErrBusy)
	require.NoError(t, x.Close())
	require.NoError(t, x.Close())
	_, err = x.HandOver()
	require.ErrorIs(t, err, vmm.ErrClosed)
	require.NoError(t, v.SetLen(0))

	require.NoError(t, v.SetLen(3))
	x, err = dlpack.Export(v, 3, dlpack.Options{})
	require.NoError(t, err)
	p, err := x.HandOver()
	require.NoError(t, err)
	require.NoError(t, x.Close(), "it is the consumer's")
	require.ErrorIs(t, v.Close(), vmm.ErrBusy)
	_, err = x.HandOver()
	require.ErrorIs(t, err, vmm.ErrClosed)
	remove(t, true, p)
	require.NoError(t, v.Close())

	var none *dlpack.Tensor
	require.NoError(t, none.Close())
	require.Equal(t, "no DLPack export", none.String())
	_, err = none.HandOver()
	require.ErrorIs(t, err, vmm.ErrClosed)
	_, err = new(dlpack.Tensor).HandOver()
	require.ErrorIs(t, err, vmm.ErrClosed)
	nothingOpen(t)
}

// TestDeletersCalledAgain: a second call does nothing, for as long as the slot is not used again.
func TestDeletersCalledAgain(t *testing.T) {
	d := vmmtest.Device(t)
	v, err := growable.New[float32](d, growable.Options{Range: vmm.RangeOptions{Max: page}})
	require.NoError(t, err)
	require.NoError(t, v.Append(1, 2, 3))
	before := dlpack.Repeated()
	first := export(t, v, 3, dlpack.Options{})
	require.NoError(t, consumer.Delete([]consumer.Pointer{first}, true, 8, 100))
	nothingOpen(t)
	require.EqualValues(t, 99, dlpack.Repeated()-before)
	for range dlpack.Tombstones {
		p := export(t, v, 3, dlpack.Options{})
		require.NotEqual(t, first, p)
		require.NoError(t, consumer.Delete([]consumer.Pointer{first}, true, 1, 1))
		require.ErrorIs(t, v.Close(), vmm.ErrBusy)
		require.NoError(t, consumer.Delete([]consumer.Pointer{p}, true, 1, 1))
		nothingOpen(t)
	}
	require.NoError(t, v.Close())
}

// TestReleased: it is closed once calls that unmap the memory succeed.
func TestReleased(t *testing.T) {
	d := vmmtest.Device(t)
	for _, handedOver := range []bool{true, false} {
		v, err := growable.New[float32](d, growable.Options{Range: vmm.RangeOptions{Max: page}})
		require.NoError(t, err)
		require.NoError(t, v.Append(1, 2, 3))
		x, err := dlpack.Export(v, 3, dlpack.Options{})
		require.NoError(t, err)
		select {
		case <-x.Released():
			require.Fail(t, "it is held")
		default:
		}
		if handedOver {
			p, err := x.HandOver()
			require.NoError(t, err)
			require.NoError(t, consumer.Delete([]consumer.Pointer{p}, true, 1, 1))
		} else {
			require.NoError(t, x.Close())
		}
		<-x.Released()
		require.NoError(t, v.Close())
	}
	<-new(dlpack.Tensor).Released()
	nothingOpen(t)
}

// TestExportOfReaders: they know their elements.
func TestExportOfReaders(t *testing.T) {
	d := vmmtest.Device(t)
	v, err := growable.New[int16](d, growable.Options{Range: vmm.RangeOptions{Max: page}})
	require.NoError(t, err)
	require.NoError(t, v.Append(1, 2, 3))
	r, err := growable.NewReader[int16](v.Range())
	require.NoError(t, err)
	rows, err := growable.NewRows[float32](d, 3, growable.RowsOptions{Pitch: 16, Range: vmm.RangeOptions{Max: page}})
	require.NoError(t, err)
	require.NoError(t, rows.Append(1, 2, 3, 4, 5, 6))
	rr, err := growable.NewRowsReader[float32](described{rows.Range(), rows.Layout()}, 0)
	require.NoError(t, err)
	for _, test := range []struct {
		m              dlpack.Memory
		shape, strides []int64
	}{{r, []int64{2}, []int64{1}}, {rr, []int64{2, 3}, []int64{4, 1}}} {
		p := export(t, test.m, 2, dlpack.Options{})
		got := consumer.Read(p, true)
		require.Equal(t, test.shape, got.Shape)
		require.Equal(t, test.strides, got.Strides)
		require.EqualValues(t, 1, got.Flags, "read-only")
		remove(t, true, p)
	}
	require.NoError(t, v.Close())
	require.NoError(t, rows.Close())
}

type described struct {
	*vmm.Range
	layout vmm.Layout
}

func (d described) Layout() vmm.Layout { return d.layout }

// TestDeletersInCancelledThreads: the thread ends after the deleter and not inside it, so the hold is dropped.
func TestDeletersInCancelledThreads(t *testing.T) {
	d := vmmtest.Device(t)
	v, err := growable.New[float32](d, growable.Options{Range: vmm.RangeOptions{Max: page}})
	require.NoError(t, err)
	require.NoError(t, v.Append(1, 2, 3))
	for range 10 {
		require.NoError(t, consumer.DeleteCancelled(export(t, v, 3, dlpack.Options{}), true))
		nothingOpen(t)
	}
	require.NoError(t, v.Close())
}

// TestManyExports: exports and releases leave nothing, whether a deleter or Close ends them.
func TestManyExports(t *testing.T) {
	many := 1_000_000
	if testing.Short() {
		many = 20_000
	}
	d := vmmtest.Device(t)
	v, err := growable.New[float32](d, growable.Options{Range: vmm.RangeOptions{Max: page}})
	require.NoError(t, err)
	require.NoError(t, v.Append(1, 2, 3))
	const batch = 200
	for i := range many / batch {
		var all []consumer.Pointer
		for range batch {
			x, err := dlpack.Export(v, 3, dlpack.Options{Stream: -1})
			require.NoError(t, err)
			if i%2 == 0 {
				require.NoError(t, x.Close())
				continue
			}
			p, err := x.HandOver()
			require.NoError(t, err)
			all = append(all, p)
		}
		require.NoError(t, consumer.Delete(all, true, 1, 1))
	}
	nothingOpen(t)
	require.NoError(t, v.Close(), "no hold is left")
}

// TestDeletersWhileTheVectorChanges: deleters run in 64 threads while the vector grows, clips, shrinks
// and closes.
func TestDeletersWhileTheVectorChanges(t *testing.T) {
	rounds := 30
	if testing.Short() {
		rounds = 5
	}
	d := vmmtest.Device(t)
	for range rounds {
		v, err := growable.New[uint8](d, growable.Options{Range: vmm.RangeOptions{Max: 256 * page}})
		require.NoError(t, err)
		require.NoError(t, v.Append(make([]uint8, page)...))
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for range 10 {
					var all []consumer.Pointer
					for range 64 {
						x, err := dlpack.Export(v, page, dlpack.Options{})
						if errors.Is(err, vmm.ErrClosed) || errors.Is(err, vmm.ErrBounds) {
							continue
						}
						if err != nil {
							t.Errorf("export: %v", err)
							return
						}
						p, err := x.HandOver()
						if err != nil {
							t.Errorf("hand over: %v", err)
							return
						}
						all = append(all, p)
					}
					for _, p := range all {
						consumer.Sum(p, true, 1)
					}
					if err := consumer.Delete(all, true, 64, 1); err != nil {
						t.Errorf("delete: %v", err)
					}
				}
			})
		}
		allowed := func(err error) {
			if err != nil && !errors.Is(err, vmm.ErrBusy) && !errors.Is(err, vmm.ErrClosed) && !errors.Is(err, vmm.ErrFull) {
				t.Errorf("meanwhile: %v", err)
			}
		}
		wg.Go(func() {
			for i := range 100 {
				allowed(v.Append(make([]uint8, page)...))
				allowed(v.SetLen(page))
				allowed(v.Clip())
				if i > 50 {
					allowed(v.Close())
				}
			}
		})
		wg.Wait()
		nothingOpen(t)
		require.NoError(t, v.Close())
	}
}

// TestBadExports: a typed error, and nothing stays held.
func TestBadExports(t *testing.T) {
	d := vmmtest.Device(t)
	v, err := growable.New[uint16](d, growable.Options{Range: vmm.RangeOptions{Max: page}})
	require.NoError(t, err)
	require.NoError(t, v.Append(1, 2, 3, 4))
	type pair struct{ A, B int32 }
	structs, err := growable.New[pair](d, growable.Options{Range: vmm.RangeOptions{Max: page}})
	require.NoError(t, err)
	require.NoError(t, structs.Append(pair{1, 2}))
	odd, err := growable.NewRows[complex128](d, 1, growable.RowsOptions{Pitch: 24, Range: vmm.RangeOptions{Max: page}})
	require.NoError(t, err)
	require.NoError(t, odd.Append(1))
	g := v.Range()
	closed, err := d.NewRange(vmm.RangeOptions{Max: page})
	require.NoError(t, err)
	require.NoError(t, closed.Close())
	reader, err := growable.NewReader[uint16](g)
	require.NoError(t, err)
	var none *growable.Vector[uint16]
	deep := make([]int, 31)
	for i := range deep {
		deep[i] = 1
	}
	for name, test := range map[string]struct {
		m    dlpack.Memory
		n    int
		o    dlpack.Options
		want error
	}{
		"no memory":            {nil, 1, dlpack.Options{}, vmm.ErrInvalid},
		"a nil vector":         {none, 1, dlpack.Options{}, vmm.ErrInvalid},
		"below 0":              {v, -1, dlpack.Options{}, vmm.ErrInvalid},
		"beyond Len":           {v, 5, dlpack.Options{}, vmm.ErrBounds},
		"far beyond Len":       {v, math.MaxInt, dlpack.Options{}, vmm.ErrBounds},
		"structs":              {structs, 1, dlpack.Options{}, vmm.ErrNotSupported},
		"structs as float64":   {structs, 1, dlpack.Options{DType: dlpack.Float64}, vmm.ErrNotSupported},
		"an odd pitch":         {odd, 1, dlpack.Options{}, vmm.ErrNotSupported},
		"other bits":           {v, 1, dlpack.Options{DType: dlpack.Float32}, vmm.ErrInvalid},
		"an unknown dtype":     {v, 1, dlpack.Options{DType: 99<<8 | 16}, vmm.ErrNotSupported},
		"an odd dtype":         {g, 1, dlpack.Options{DType: dlpack.Uint8 + 1}, vmm.ErrNotSupported},
		"no dtype":             {g, 1, dlpack.Options{}, vmm.ErrInvalid},
		"a shape of a Layout":  {v, 1, dlpack.Options{Shape: []int{2}}, vmm.ErrInvalid},
		"a shape of 0":         {g, 1, dlpack.Options{DType: dlpack.Uint8, Shape: []int{0}}, vmm.ErrInvalid},
		"a shape below 0":      {g, 1, dlpack.Options{DType: dlpack.Uint8, Shape: []int{-2}}, vmm.ErrInvalid},
		"a shape too large":    {g, 1, dlpack.Options{DType: dlpack.Uint8, Shape: []int{math.MaxInt, 3}}, vmm.ErrInvalid},
		"32 dimensions":        {g, 1, dlpack.Options{DType: dlpack.Uint8, Shape: deep}, vmm.ErrInvalid},
		"a closed range":       {closed, 0, dlpack.Options{DType: dlpack.Uint8}, vmm.ErrClosed},
		"a stream of the host": {v, 1, dlpack.Options{Stream: 1}, vmm.ErrInvalid},
		"no such stream":       {v, 1, dlpack.Options{Stream: -2}, vmm.ErrInvalid},
		"a nil stream":         {v, 1, dlpack.Options{After: []*vmm.Stream{nil}}, vmm.ErrInvalid},
		"read-only":            {reader, 1, dlpack.Options{DType: dlpack.Uint16, Unversioned: true}, vmm.ErrPermission},
	} {
		_, err := dlpack.Export(test.m, test.n, test.o)
		require.ErrorIs(t, err, test.want, name)
		nothingOpen(t)
	}
	p := export(t, reader, 4, dlpack.Options{DType: dlpack.Uint16})
	require.EqualValues(t, 1, consumer.Read(p, true).Flags, "read-only")
	empty := export(t, v, 0, dlpack.Options{})
	require.Equal(t, []int64{0}, consumer.Read(empty, true).Shape)
	require.NoError(t, consumer.Delete([]consumer.Pointer{p, empty}, true, 2, 1))
	nothingOpen(t)
	for _, c := range []interface{ Close() error }{v, structs, odd} {
		require.NoError(t, c.Close())
	}
}
