package growable_test

import (
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/growable"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// TestMessages: an error says what was passed, and what would do.
func TestMessages(t *testing.T) {
	d := vmmtest.Device(t)
	v := vector[int32](t, d, growable.Options{MaxLen: 1000})
	require.NoError(t, v.Append(1, 2, 3))
	r := rows[int64](t, d, 3, growable.RowsOptions{Pitch: 40, MaxRows: 100})
	require.NoError(t, r.Append(1, 2, 3, 4, 5, 6))
	var none *growable.Vector[int32]
	make1 := func(o growable.Options) error {
		x, err := growable.New[int32](d, o)
		if err == nil {
			err = x.Close()
		}
		return err
	}
	makeRows := func(width int, o growable.RowsOptions) error {
		x, err := growable.NewRows[int64](d, width, o)
		if err == nil {
			err = x.Close()
		}
		return err
	}
	_, read := v.ReadAt(nil, -1)
	_, write := r.WriteAt(nil, -2)
	_, part := r.ReadAt(make([]int64, 4), 0)
	_, over := r.WriteAt(make([]int64, 6), 1)
	var small error
	for _, small = range r.Blocks(make([]int64, 2)) {
	}
	_, noRange := growable.FromRange[int32](nil)
	for _, c := range []struct {
		err  error
		text string
	}{
		{make1(growable.Options{MaxLen: math.MaxInt}), "make vector: invalid argument: at most 9223372036854775807 elements of 4 bytes each: all of them are more than 2^63-1 bytes"},
		{make1(growable.Options{MaxLen: -5}), "make vector: invalid argument: a maximum of -5 elements: it must not be negative"},
		{make1(growable.Options{MaxLen: 10, Range: vmm.RangeOptions{Max: 10}}), "make vector: invalid argument: at most 10 elements are 40 bytes, but Range.Max is 10: set one of the two"},
		{makeRows(3, growable.RowsOptions{MaxRows: math.MaxInt}), "make rows: invalid argument: at most 9223372036854775807 rows of 24 bytes each: all of them are more than 2^63-1 bytes"},
		{makeRows(0, growable.RowsOptions{}), "make rows: invalid argument: rows of 0 elements, where 1 is the least"},
		{makeRows(3, growable.RowsOptions{Pitch: 20}), "make rows: invalid argument: a pitch of 20 bytes for rows of 24"},
		{makeRows(3, growable.RowsOptions{Pitch: 28}), "make rows: invalid argument: a pitch of 28 bytes, which is no multiple of the alignment 8"},
		{read, "read at -1: out of bounds: there are 3 elements"},
		{write, "write at -2: out of bounds: there are 2 rows"},
		{part, "read into 4 elements: invalid argument: not whole rows of 3"},
		{over, "out of bounds: 80 bytes at 40 in a length of 80"},
		{small, "read into 2 elements: invalid argument: 3 is the least"},
		{v.Grow(-1), "grow by -1 elements: invalid argument: 0 is the least"},
		{v.SetLen(-7), "set length to -7 elements: invalid argument: 0 is the least"},
		{r.Grow(-1), "grow by -1 rows: invalid argument: 0 is the least"},
		{v.Grow(math.MaxInt), "grow by 9223372036854775807 elements of 4 bytes each: beyond the range's maximum: they are more than 2^64-1 bytes"},
		{r.Append(make([]int64, 3*(r.MaxLen()+1))...), "beyond the range's maximum: 4040 bytes beyond 80, of at most 4000"},
		{none.Grow(1), "grow by 1: invalid argument: a nil or zero value"},
		{none.Append(1, 2), "append 2 elements: invalid argument: a nil or zero value"},
		{noRange, "make vector of int32: invalid argument: no range"},
	} {
		require.ErrorContains(t, c.err, c.text)
	}
}

// TestNameOfAVector: a Vector and Rows pass the name of their range on, so errors have it.
func TestNameOfAVector(t *testing.T) {
	d := vmmtest.Device(t)
	d.SetLimit(1 << 20)
	v, err := growable.New[float32](d, growable.Options{MaxLen: 1 << 20, Range: vmm.RangeOptions{Name: "seq-17"}})
	require.NoError(t, err)
	r, err := growable.NewRows[float32](d, 8, growable.RowsOptions{MaxRows: 1 << 20, Range: vmm.RangeOptions{Name: "rows"}})
	require.NoError(t, err)
	for name, err := range map[string]error{"seq-17": v.Append(make([]float32, 1<<20)...), "rows": r.Append(make([]float32, 1<<20)...)} {
		require.ErrorIs(t, err, vmm.ErrOutOfMemory)
		var e *vmm.OpError
		require.ErrorAs(t, err, &e)
		require.Equal(t, name, e.Name)
	}
	require.NoError(t, r.Close())
	require.NoError(t, v.Close())
	_, err = growable.New[float32](d, growable.Options{Range: vmm.RangeOptions{Name: strings.Repeat("n", 65)}})
	require.ErrorIs(t, err, vmm.ErrInvalid)
}
