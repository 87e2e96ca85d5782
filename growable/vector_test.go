package growable_test

import (
	"fmt"
	"io"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/growable"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

type row struct {
	ID    int64
	Score float32
	Tags  [3]uint8
}

func vector[T any](t testing.TB, d *vmm.Device, o growable.Options) *growable.Vector[T] {
	t.Helper()
	v, err := growable.New[T](d, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, v.Close()) })
	return v
}

func TestVectorGrowsInPlace(t *testing.T) {
	v := vector[float32](t, vmmtest.Device(t), growable.Options{MaxLen: 10_000_000})
	require.Zero(t, v.Len())
	require.Zero(t, v.Cap())
	require.GreaterOrEqual(t, v.MaxLen(), 10_000_000)
	p := v.Ptr()
	var want []float32
	for i := range 40 {
		part := make([]float32, 1000*i)
		for k := range part {
			part[k] = float32(i*1_000_000 + k)
		}
		require.NoError(t, v.Append(part...))
		want = append(want, part...)
		require.Equal(t, p, v.Ptr())
		require.Equal(t, len(want), v.Len())
		require.GreaterOrEqual(t, v.Cap(), v.Len())
	}
	got := make([]float32, len(want))
	n, err := v.ReadAt(got, 0)
	require.NoError(t, err)
	require.Equal(t, len(want), n)
	require.True(t, slices.Equal(want, got))
	h, err := v.Host()
	require.NoError(t, err)
	require.True(t, slices.Equal(want, h))
}

func TestVectorOfStructs(t *testing.T) {
	v := vector[row](t, vmmtest.Device(t), growable.Options{MaxLen: 1000})
	require.NoError(t, v.Append(row{1, 0.5, [3]uint8{1, 2, 3}}, row{2, 1.5, [3]uint8{4, 5, 6}}))
	require.NoError(t, v.Append())
	x, err := v.At(1)
	require.NoError(t, err)
	require.Equal(t, row{2, 1.5, [3]uint8{4, 5, 6}}, x)
	require.NoError(t, v.Set(0, row{ID: 9}))
	x, err = v.At(0)
	require.NoError(t, err)
	require.Equal(t, row{ID: 9}, x)
	require.Equal(t, v.Ptr()+16, v.PtrAt(1))
}

func TestVectorBlocks(t *testing.T) {
	v := vector[uint16](t, vmmtest.Device(t), growable.Options{MaxLen: 1 << 20})
	var want []uint16
	for i := range 1000 {
		want = append(want, uint16(i))
	}
	require.NoError(t, v.Append(want...))
	for _, buf := range [][]uint16{make([]uint16, 1), make([]uint16, 300), make([]uint16, 5000), nil} {
		var got []uint16
		for b, err := range v.Blocks(buf) {
			require.NoError(t, err)
			got = append(got, b...)
		}
		require.Equal(t, want, got)
	}
	for _, err := range v.Blocks([]uint16{}) { // no nil buffer
		require.ErrorIs(t, err, vmm.ErrInvalid)
	}
	for b, err := range v.Blocks(make([]uint16, 7)) {
		require.NoError(t, err)
		require.Equal(t, want[:7], b)
		break
	}
}

func TestVectorBlocksReportAFailedCopy(t *testing.T) {
	d := vmmtest.Device(t, drivertest.FailNth("CopyOut", 2, vmm.ErrInvalid))
	v := vector[int32](t, d, growable.Options{MaxLen: 100})
	require.NoError(t, v.Append(1, 2, 3, 4))
	var got []int32
	var failed error
	for b, err := range v.Blocks(make([]int32, 2)) {
		got = append(got, b...)
		failed = err
	}
	require.Equal(t, []int32{1, 2}, got)
	require.ErrorIs(t, failed, vmm.ErrInvalid)
}

func TestVectorKernelsFillRoom(t *testing.T) {
	d := vmmtest.Device(t)
	v := vector[int32](t, d, growable.Options{MaxLen: 1000})
	require.NoError(t, v.Append(1, 2))
	require.NoError(t, v.Grow(3))
	require.Equal(t, 2, v.Len())
	s, err := d.NewStream()
	require.NoError(t, err)
	require.NoError(t, s.Fill(v.PtrAt(2), 7, 4, 3)) // stands for a kernel
	require.NoError(t, s.Sync())
	require.NoError(t, s.Close())
	require.NoError(t, v.SetLen(5))
	got := make([]int32, 5)
	_, err = v.ReadAt(got, 0)
	require.NoError(t, err)
	require.Equal(t, []int32{1, 2, 7, 7, 7}, got)
	require.NoError(t, v.SetLen(1))
	require.NoError(t, v.Clip())
	require.Equal(t, 1, v.Len())
}

func TestVectorOnRange(t *testing.T) {
	d := vmmtest.Device(t)
	r, err := d.NewRange(vmm.RangeOptions{Max: 1 << 21})
	require.NoError(t, err)
	_, err = r.Write([]byte{1, 0, 0, 0, 2, 0})
	require.NoError(t, err)
	_, err = growable.FromRange[uint32](r)
	require.ErrorIs(t, err, vmm.ErrInvalid, "half an element")
	_, err = growable.FromRange[uint32](nil)
	require.ErrorIs(t, err, vmm.ErrInvalid)
	_, err = r.Write([]byte{0, 0})
	require.NoError(t, err)
	v, err := growable.FromRange[uint32](r)
	require.NoError(t, err)
	require.Same(t, r, v.Range())
	x, err := v.At(1)
	require.NoError(t, err)
	require.EqualValues(t, 2, x)

	_, err = r.Write([]byte{9})
	require.NoError(t, err)
	require.ErrorIs(t, v.Append(3), vmm.ErrInvalid, "it would lie across elements")
	require.NoError(t, v.Close())
	require.ErrorIs(t, r.Append(nil), vmm.ErrClosed, "Close closes the range")
}

func TestElements(t *testing.T) {
	d := vmmtest.Device(t)
	type inner struct{ Name string }
	type deep struct {
		A [2]struct{ P inner }
	}
	for _, c := range []struct {
		name string
		text string
		make func() error
	}{
		{"int", "int: use int32 (CUDA's int) or int64", make_[int](d)},
		{"uint", "use uint32 or uint64", make_[uint](d)},
		{"string", "string", make_[string](d)},
		{"pointer", "*int", make_[*int](d)},
		{"slice", "[]uint8", make_[[]byte](d)},
		{"map", "map[int]int", make_[map[int]int](d)},
		{"func", "func()", make_[func()](d)},
		{"interface", "interface {}", make_[any](d)},
		{"nothing", "has no size", make_[struct{}](d)},
		{"no elements", "has no size", make_[[0]int32](d)},
		{"a field", "struct {..}.P.Name (string)", make_[struct{ P inner }](d)},
		{"a field of an array's field", "growable_test.deep.A[0].P.Name (string)", make_[deep](d)},
		{"an int field", "struct {..}.N (int): use int32", make_[struct{ N int }](d)},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := c.make()
			require.ErrorIs(t, err, growable.ErrElement)
			require.ErrorContains(t, err, c.text)
			require.Equal(t, err, c.make(), "the cached result is the same")
		})
	}
	require.NoError(t, make_[complex128](d)())
	require.NoError(t, make_[[4][4]float64](d)())
	require.NoError(t, make_[struct {
		_ [0]func()
		X bool
	}](d)())
}

func make_[T any](d *vmm.Device) func() error {
	return func() error {
		v, err := growable.New[T](d, growable.Options{MaxLen: 1})
		if err != nil {
			return err
		}
		return v.Close()
	}
}

func TestVectorBadInput(t *testing.T) {
	d := vmmtest.Device(t)
	v := vector[int32](t, d, growable.Options{MaxLen: 1000})
	require.NoError(t, v.Append(1, 2, 3))
	for name, c := range map[string]struct {
		want error
		do   func() error
	}{
		"grow by a negative count":     {vmm.ErrInvalid, func() error { return v.Grow(-1) }},
		"grow beyond the maximum":      {vmm.ErrFull, func() error { return v.Grow(v.MaxLen()) }},
		"grow by too many":             {vmm.ErrFull, func() error { return v.Grow(math.MaxInt) }},
		"a negative length":            {vmm.ErrInvalid, func() error { return v.SetLen(-1) }},
		"a length beyond the capacity": {vmm.ErrBounds, func() error { return v.SetLen(v.Cap() + 1) }},
		"a length beyond all":          {vmm.ErrBounds, func() error { return v.SetLen(math.MaxInt) }},
		"read before the start":        {vmm.ErrBounds, func() error { _, err := v.ReadAt(make([]int32, 1), -1); return err }},
		"read beyond all":              {vmm.ErrBounds, func() error { _, err := v.ReadAt(make([]int32, 1), math.MaxInt); return err }},
		"read past the end":            {io.EOF, func() error { _, err := v.ReadAt(make([]int32, 2), 2); return err }},
		"write past the end":           {vmm.ErrBounds, func() error { _, err := v.WriteAt([]int32{1}, 3); return err }},
		"a negative maximum":           {vmm.ErrInvalid, func() error { _, err := growable.New[int32](d, growable.Options{MaxLen: -1}); return err }},
		"a maximum that overflows":     {vmm.ErrInvalid, func() error { _, err := growable.New[int32](d, growable.Options{MaxLen: math.MaxInt}); return err }},
		"two maxima that do not agree": {vmm.ErrInvalid, two(d, 10, 10)},
		"no device":                    {vmm.ErrInvalid, func() error { _, err := growable.New[int32](nil, growable.Options{}); return err }},
		"append more than the maximum": {vmm.ErrFull, func() error { return v.Append(make([]int32, v.MaxLen())...) }},
	} {
		require.ErrorIs(t, c.do(), c.want, name)
	}
	require.NoError(t, two(d, 10, 40)())
	require.Equal(t, 3, v.Len())

	require.PanicsWithError(t, "runtime error: index out of range [3] with length 3", func() { _, _ = v.At(3) })
	require.PanicsWithError(t, "runtime error: index out of range [-1]", func() { _, _ = v.At(-1) })
	require.PanicsWithError(t, "runtime error: index out of range [3] with length 3", func() { _ = v.Set(3, 1) })
	require.PanicsWithError(t, "runtime error: index out of range [-1]", func() { _ = v.Set(-1, 1) })
	require.Panics(t, func() { v.PtrAt(v.Cap() + 1) })
	require.NotPanics(t, func() { v.PtrAt(v.Cap()) })
}

func two(d *vmm.Device, n int, max uint64) func() error {
	return func() error {
		v, err := growable.New[int32](d, growable.Options{MaxLen: n, Range: vmm.RangeOptions{Max: max}})
		if err != nil {
			return err
		}
		return v.Close()
	}
}

func TestVectorAfterClose(t *testing.T) {
	v, err := growable.New[int32](vmmtest.Device(t), growable.Options{MaxLen: 10})
	require.NoError(t, err)
	require.NoError(t, v.Append(1))
	require.NoError(t, v.Close())
	require.NoError(t, v.Close())
	require.Zero(t, v.Len())
	require.Zero(t, v.Cap())
	require.ErrorIs(t, v.Append(1), vmm.ErrClosed)
	require.ErrorIs(t, v.Grow(1), vmm.ErrClosed)
	require.ErrorIs(t, v.SetLen(0), vmm.ErrClosed)
	require.ErrorIs(t, v.Clip(), vmm.ErrClosed)
	_, err = v.At(0)
	require.ErrorIs(t, err, vmm.ErrClosed)
	require.ErrorIs(t, v.Set(0, 1), vmm.ErrClosed)
	_, err = v.Host()
	require.ErrorIs(t, err, vmm.ErrClosed)
	require.ErrorIs(t, v.Range().UsedBy(nil), vmm.ErrClosed)
}

func TestNilVector(t *testing.T) {
	var v *growable.Vector[int32]
	require.ErrorIs(t, v.Append(1), vmm.ErrInvalid)
	require.ErrorIs(t, v.Grow(1), vmm.ErrInvalid)
	require.ErrorIs(t, v.SetLen(1), vmm.ErrInvalid)
	require.ErrorIs(t, v.Clip(), vmm.ErrInvalid)
	_, err := v.At(0)
	require.ErrorIs(t, err, vmm.ErrInvalid)
	require.ErrorIs(t, v.Set(0, 1), vmm.ErrInvalid)
	_, err = v.Host()
	require.ErrorIs(t, err, vmm.ErrInvalid)
	require.Zero(t, v.Len()+v.Cap()+v.MaxLen())
	require.Zero(t, v.Ptr())
	require.Nil(t, v.Range())
	for b, err := range v.Blocks(nil) {
		require.Empty(t, b)
		require.ErrorIs(t, err, vmm.ErrInvalid)
	}
	require.NoError(t, v.Close())
	require.NoError(t, v.CloseContext(t.Context()))
}

func TestVectorAll(t *testing.T) {
	v := vector[int32](t, vmmtest.Device(t, drivertest.FailNth("CopyOut", 3, vmm.ErrInvalid)), growable.Options{MaxLen: 1000})
	require.Empty(t, collect(t, v.All()))
	n, err := v.AppendSeq(slices.Values([]int32{1, 2, 3, 4}))
	require.NoError(t, err)
	require.Equal(t, 4, n)
	require.Equal(t, []int32{1, 2, 3, 4}, collect(t, v.All()))
	for x, err := range v.All() {
		require.NoError(t, err)
		if x == 2 {
			break
		}
	}
	for x, err := range v.All() {
		require.Zero(t, x)
		require.ErrorIs(t, err, vmm.ErrInvalid, "the copy failed")
	}
}

// TestVectorAppendSeq: a sequence larger than the buffer, and one that fails on the way.
func TestVectorAppendSeq(t *testing.T) {
	const many = 1<<18 + 5 // elements of 4 bytes: the buffer holds 1 MiB
	counting := func(yield func(int32) bool) {
		for i := range int32(many) {
			if !yield(i) {
				return
			}
		}
	}
	fail := false
	d := vmmtest.Device(t, func(c drivertest.Call) error {
		if c.Name == "CopyIn" && c.Size < 1<<20 && fail {
			return vmm.ErrOutOfMemory
		}
		return nil
	})
	v := vector[int32](t, d, growable.Options{MaxLen: 3 * many})
	n, err := v.AppendSeq(counting)
	require.NoError(t, err)
	require.Equal(t, many, n)
	got := all(t, v)
	require.Len(t, got, many)
	for i, x := range got {
		require.EqualValues(t, i, x)
	}

	fail = true
	n, err = v.AppendSeq(counting)
	require.ErrorIs(t, err, vmm.ErrOutOfMemory)
	require.Equal(t, 1<<18, n, "what was appended before stays")
	require.Equal(t, many+n, v.Len())

	n, err = v.AppendSeq(func(func(int32) bool) {})
	require.NoError(t, err)
	require.Zero(t, n)
	_, err = v.AppendSeq(nil)
	require.ErrorIs(t, err, vmm.ErrInvalid)
}

func TestVectorString(t *testing.T) {
	v := vector[float32](t, vmmtest.Device(t), growable.Options{MaxLen: 1 << 19})
	require.NoError(t, v.Append(1, 2, 3))
	require.Equal(t, fmt.Sprintf("vector of float32 on host:0: length 3, capacity %d, maximum 524288", v.Cap()), v.String())
	require.Equal(t, v.String(), fmt.Sprint(v))
	var none *growable.Vector[float32]
	require.Equal(t, "no vector", none.String())
	require.Equal(t, "no vector", (&growable.Vector[int8]{}).String())
	require.Contains(t, vector[struct{ A, B int8 }](t, v.Range().Device(), growable.Options{MaxLen: 1}).String(), "vector of struct {..} on ")
}

// TestMaxLenIsExact: not one element more than was asked for.
func TestMaxLenIsExact(t *testing.T) {
	d := vmmtest.Device(t)
	v := vector[int32](t, d, growable.Options{MaxLen: 100})
	require.Equal(t, 100, v.MaxLen())
	require.ErrorIs(t, v.Append(make([]int32, 101)...), vmm.ErrFull)
	for i := range int32(100) {
		require.NoError(t, v.Append(i))
	}
	require.ErrorIs(t, v.Append(100), vmm.ErrFull)
	require.ErrorIs(t, v.Grow(1), vmm.ErrFull)
	require.Equal(t, 100, v.Len())

	r := rows[int16](t, d, 3, growable.RowsOptions{Pitch: 8, MaxRows: 100})
	require.Equal(t, 100, r.MaxLen())
	require.NoError(t, r.Append(make([]int16, 300)...))
	require.ErrorIs(t, r.Append(1, 2, 3), vmm.ErrFull)
	require.Equal(t, 100, r.Len())
}
