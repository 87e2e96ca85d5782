package growable_test

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/growable"
	"github.com/cuvmm/cuvmm/internal/testing/nulldriver"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

func rows[T any](t testing.TB, d *vmm.Device, width int, o growable.RowsOptions) *growable.Rows[T] {
	t.Helper()
	r, err := growable.NewRows[T](d, width, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	return r
}

// TestRowsOfEveryPitch goes through appends, writes and reads of rows of many
// widths and pitches beside a plain slice.
func TestRowsOfEveryPitch(t *testing.T) {
	d := vmmtest.Device(t)
	for _, width := range []int{1, 2, 3, 16, 100, 768} {
		for _, pad := range []int{0, 2, 4, 6, 64, 510, 5000, 1 << 20} {
			random := rand.New(rand.NewPCG(uint64(width), uint64(pad)))
			pitch := 2*width + pad
			r := rows[uint16](t, d, width, growable.RowsOptions{Pitch: pitch, MaxRows: 40})
			note := fmt.Sprintf("width %d, pitch %d", width, pitch)
			require.Equal(t, pitch, r.Pitch(), note)
			require.Equal(t, width, r.Width(), note)
			fresh := func(n int) []uint16 {
				s := make([]uint16, n*width)
				for i := range s {
					s[i] = uint16(random.Uint32() | 1) // never what padding is
				}
				return s
			}
			var want []uint16
			for i := range 6 {
				s := fresh(i)
				require.NoError(t, r.Append(s...), note)
				want = append(want, s...)
				require.Equal(t, len(want)/width, r.Len(), note)
			}
			s := fresh(3)
			n, err := r.WriteAt(s, 4)
			require.NoError(t, err, note)
			require.Equal(t, 3, n, note)
			copy(want[4*width:], s)

			for at := range 16 {
				dst := make([]uint16, 5*width)
				n, err := r.ReadAt(dst, at)
				if have := min(5, 15-at); have < 5 {
					require.ErrorIs(t, err, io.EOF, note)
					require.Equal(t, have, n, note)
				} else {
					require.NoError(t, err, note)
				}
				require.Equal(t, want[at*width:][:n*width], dst[:n*width], note)
			}
			for _, buf := range [][]uint16{nil, make([]uint16, width), make([]uint16, 4*width+width/2)} {
				var got []uint16
				for b, err := range r.Blocks(buf) {
					require.NoError(t, err, note)
					require.Zero(t, len(b)%width, note)
					got = append(got, b...)
				}
				require.Equal(t, want, got, note)
			}

			raw, err := r.Range().Host()
			require.NoError(t, err)
			require.Len(t, raw, 15*pitch, note)
			for i := range 15 {
				require.True(t, bytes.Equal(make([]byte, pad), raw[i*pitch+2*width:(i+1)*pitch]), note)
			}
			if h, err := r.Host(); pad == 0 {
				require.NoError(t, err)
				require.Equal(t, want, h)
			} else {
				require.ErrorIs(t, err, vmm.ErrNotSupported)
			}
			require.Equal(t, r.Ptr()+vmm.Ptr(3*pitch), r.PtrAt(3))
		}
	}
}

// TestRowsPaddingIsNeverWritten: what lies there stays, and with Zero it is zeros.
func TestRowsPaddingIsNeverWritten(t *testing.T) {
	d := vmmtest.Device(t)
	r := rows[uint8](t, d, 3, growable.RowsOptions{Pitch: 8, MaxRows: 10})
	require.NoError(t, r.Grow(4))
	require.NoError(t, d.CopyIn(r.Ptr(), []byte("################################")))
	require.NoError(t, r.Append([]byte("abc")...))
	require.NoError(t, r.Append([]byte("ghijkl")...))
	require.NoError(t, r.SetLen(4)) // as after a kernel
	n, err := r.WriteAt([]byte("defmno"), 0)
	require.NoError(t, err)
	require.Equal(t, 2, n)
	raw, err := r.Range().Host()
	require.NoError(t, err)
	require.Equal(t, "def#####mno#####jkl#############", string(raw))

	// Memory of the Rows that were is used again.
	d.SetReleaseThreshold(1 << 30)
	require.NoError(t, r.Close())
	for _, zero := range []bool{true, false} {
		old := rows[uint8](t, d, 3, growable.RowsOptions{MaxRows: 8})
		require.NoError(t, old.Append([]byte("########################")...))
		require.NoError(t, old.Close())
		r = rows[uint8](t, d, 3, growable.RowsOptions{Pitch: 8, MaxRows: 3, Range: vmm.RangeOptions{Zero: zero}})
		require.NoError(t, r.Append([]byte("abcdefghi")...))
		raw, err = r.Range().Host()
		require.NoError(t, err)
		if zero {
			require.Equal(t, "abc\x00\x00\x00\x00\x00def\x00\x00\x00\x00\x00ghi\x00\x00\x00\x00\x00", string(raw))
		} else {
			require.Equal(t, "abc#####def#####ghi#####", string(raw))
		}
		require.NoError(t, r.Close())
	}
}

func TestRowsAppendIsAtomic(t *testing.T) {
	d := vmmtest.Device(t, drivertest.FailNth("CopyIn2D", 2, vmm.ErrOutOfMemory))
	r := rows[float32](t, d, 4, growable.RowsOptions{Pitch: 32, MaxRows: 100})
	require.NoError(t, r.Append(1, 2, 3, 4, 5, 6, 7, 8))
	require.ErrorIs(t, r.Append(make([]float32, 80)...), vmm.ErrOutOfMemory)
	require.Equal(t, 2, r.Len())
	require.NoError(t, r.Append(9, 10, 11, 12))
	got := make([]float32, 12)
	_, err := r.ReadAt(got, 0)
	require.NoError(t, err)
	require.Equal(t, []float32{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, got)
}

// TestRowsMoveNoPadding: as many bytes are copied as the elements have, and none between.
func TestRowsMoveNoPadding(t *testing.T) {
	d := vmmtest.Device(t)
	r := rows[float32](t, d, 3, growable.RowsOptions{Pitch: 1 << 10, MaxRows: 100})
	s := slices.Repeat([]float32{1, 2, 3}, 50)
	require.NoError(t, r.Append(s...))
	_, err := r.WriteAt(s, 0)
	require.NoError(t, err)
	_, err = r.ReadAt(make([]float32, len(s)), 0)
	require.NoError(t, err)
	made := d.Driver().(*drivertest.Injected).Counts()
	require.EqualValues(t, 2*50*12, made["CopyIn2D"].Bytes)
	require.EqualValues(t, 50*12, made["CopyOut2D"].Bytes)
	require.Zero(t, made["CopyIn"].Made+made["CopyOut"].Made)
	require.NoError(t, r.Append(1, 2, 3))
	made = d.Driver().(*drivertest.Injected).Counts()
	require.EqualValues(t, 12, made["CopyIn"].Bytes, "one row is no copy of rows")
}

// TestPitchOfTheDevice: rows take the pitch that the device prefers, and that of a driver which
// prefers none is no padding.
func TestPitchOfTheDevice(t *testing.T) {
	d := vmmtest.Device(t)
	none, err := vmm.OpenDriver(nulldriver.New(), 0)
	require.NoError(t, err)
	for _, width := range []int{1, 100, 768} {
		pitch, err := d.Pitch(uint64(4 * width))
		require.NoError(t, err)
		r := rows[float32](t, d, width, growable.RowsOptions{Pitch: int(pitch), MaxRows: 20})
		require.EqualValues(t, pitch, r.Pitch())
		require.Equal(t, 20, r.MaxLen())
		s := make([]float32, 5*width)
		for i := range s {
			s[i] = float32(i)
		}
		require.NoError(t, r.Append(s...))
		got := make([]float32, len(s))
		_, err = r.ReadAt(got, 0)
		require.NoError(t, err)
		require.Equal(t, s, got)

		pitch, err = none.Pitch(uint64(4 * width))
		require.NoError(t, err)
		flat := rows[float32](t, none, width, growable.RowsOptions{Pitch: int(pitch), MaxRows: 20})
		require.Equal(t, 4*width, flat.Pitch())
		require.NoError(t, flat.Close())
	}
	require.NoError(t, none.Close())
}

// BenchmarkRowsAppend appends 4 MiB of rows with padding: to memory that has been written,
// and to memory that is new.
func BenchmarkRowsAppend(b *testing.B) {
	const width, count = 750, 1400
	d, err := vmm.Open("host:0")
	require.NoError(b, err)
	s := make([]float32, width*count)
	for _, fresh := range []bool{false, true} {
		b.Run(fmt.Sprintf("fresh=%v", fresh), func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(4 * width * count)
			r, err := growable.NewRows[float32](d, width, growable.RowsOptions{Pitch: 3072, MaxRows: count})
			require.NoError(b, err)
			for b.Loop() {
				require.NoError(b, r.SetLen(0))
				if fresh {
					require.NoError(b, r.Clip())
				}
				require.NoError(b, r.Append(s...))
			}
			require.NoError(b, r.Close())
		})
	}
	require.NoError(b, d.Close())
}

func TestRowsKernelsFillRoom(t *testing.T) {
	d := vmmtest.Device(t)
	r := rows[int32](t, d, 2, growable.RowsOptions{Pitch: 16, MaxRows: 1000})
	require.NoError(t, r.Append(1, 2))
	require.NoError(t, r.Grow(3))
	require.GreaterOrEqual(t, r.Cap(), 4)
	require.Equal(t, 1, r.Len())
	s, err := d.NewStream()
	require.NoError(t, err)
	require.NoError(t, s.Fill(r.PtrAt(1), 7, 4, 12)) // stands for a kernel
	require.NoError(t, s.Close())
	require.NoError(t, r.SetLen(4))
	got := make([]int32, 8)
	_, err = r.ReadAt(got, 0)
	require.NoError(t, err)
	require.Equal(t, []int32{1, 2, 7, 7, 7, 7, 7, 7}, got)
	require.NoError(t, r.SetLen(1))
	require.NoError(t, r.Clip())
	require.NoError(t, r.Range().Append([]byte{1}))
	require.ErrorIs(t, r.Append(1, 2), vmm.ErrInvalid, "it would lie across rows")
}

func TestRowsBadInput(t *testing.T) {
	d := vmmtest.Device(t)
	try := func(width int, o growable.RowsOptions) func() error {
		return func() error {
			r, err := growable.NewRows[int64](d, width, o)
			if err == nil {
				err = r.Close()
			}
			return err
		}
	}
	r := rows[int64](t, d, 3, growable.RowsOptions{Pitch: 40, MaxRows: 100})
	require.NoError(t, r.Append(1, 2, 3, 4, 5, 6))
	huge := rows[byte](t, d, 1, growable.RowsOptions{Pitch: math.MaxInt})
	read := func(n, row int) func() error {
		return func() error { _, err := r.ReadAt(make([]int64, n), row); return err }
	}
	write := func(n, row int) func() error {
		return func() error { _, err := r.WriteAt(make([]int64, n), row); return err }
	}
	for name, c := range map[string]struct {
		want error
		do   func() error
	}{
		"no width":                     {vmm.ErrInvalid, try(0, growable.RowsOptions{})},
		"a negative width":             {vmm.ErrInvalid, try(-1, growable.RowsOptions{})},
		"a width that overflows":       {vmm.ErrInvalid, try(math.MaxInt/4, growable.RowsOptions{})},
		"a width of too many bytes":    {vmm.ErrInvalid, try(math.MaxInt/8+1, growable.RowsOptions{})},
		"a pitch below a row":          {vmm.ErrInvalid, try(3, growable.RowsOptions{Pitch: 16})},
		"a pitch out of line":          {vmm.ErrInvalid, try(3, growable.RowsOptions{Pitch: 28})},
		"a negative pitch":             {vmm.ErrInvalid, try(3, growable.RowsOptions{Pitch: -24})},
		"a negative maximum":           {vmm.ErrInvalid, try(3, growable.RowsOptions{MaxRows: -1})},
		"a maximum that overflows":     {vmm.ErrInvalid, try(3, growable.RowsOptions{MaxRows: math.MaxInt})},
		"two maxima that do not agree": {vmm.ErrInvalid, try(3, growable.RowsOptions{MaxRows: 2, Range: vmm.RangeOptions{Max: 8}})},
		"two maxima that agree":        {nil, try(3, growable.RowsOptions{MaxRows: 2, Range: vmm.RangeOptions{Max: 48}})},
		"no device": {vmm.ErrInvalid, func() error {
			_, err := growable.NewRows[int64](nil, 3, growable.RowsOptions{})
			return err
		}},
		"no plain data": {growable.ErrElement, func() error {
			_, err := growable.NewRows[string](d, 3, growable.RowsOptions{})
			return err
		}},
		"append part of a row":      {vmm.ErrInvalid, func() error { return r.Append(1, 2) }},
		"append beyond the maximum": {vmm.ErrFull, func() error { return r.Append(make([]int64, 3*(r.MaxLen()+1))...) }},
		"append to a huge pitch":    {vmm.ErrFull, func() error { return huge.Append(1) }},
		"read of a huge pitch":      {io.EOF, func() error { _, err := huge.ReadAt(make([]byte, 1), 0); return err }},
		"write to a huge pitch":     {vmm.ErrBounds, func() error { _, err := huge.WriteAt([]byte{1}, 0); return err }},
		"read part of a row":        {vmm.ErrInvalid, read(4, 0)},
		"read before the start":     {vmm.ErrBounds, read(3, -1)},
		"read beyond all":           {vmm.ErrBounds, read(3, math.MaxInt)},
		"read past the end":         {io.EOF, read(6, 1)},
		"write part of a row":       {vmm.ErrInvalid, write(1, 0)},
		"write past the end":        {vmm.ErrBounds, write(6, 1)},
		"write more than there can be": {vmm.ErrBounds, func() error {
			_, err := r.WriteAt(make([]int64, 3*(r.MaxLen()+1)), 0)
			return err
		}},
		"grow by a negative count": {vmm.ErrInvalid, func() error { return r.Grow(-1) }},
		"grow beyond the maximum":  {vmm.ErrFull, func() error { return r.Grow(r.MaxLen()) }},
		"a negative length":        {vmm.ErrInvalid, func() error { return r.SetLen(-1) }},
		"a length beyond all":      {vmm.ErrBounds, func() error { return r.SetLen(math.MaxInt) }},
		"blocks smaller than a row": {vmm.ErrInvalid, func() (failed error) {
			for _, err := range r.Blocks(make([]int64, 2)) {
				failed = err
			}
			return failed
		}},
	} {
		require.ErrorIs(t, c.do(), c.want, name)
	}
	require.Equal(t, 2, r.Len())
	require.Panics(t, func() { r.PtrAt(r.Cap() + 1) })
	require.Panics(t, func() { r.PtrAt(-1) })
	require.NotPanics(t, func() { r.PtrAt(r.Cap()) })
}

func TestNilAndClosedRows(t *testing.T) {
	closed := rows[int32](t, vmmtest.Device(t), 2, growable.RowsOptions{MaxRows: 10})
	require.NoError(t, closed.Close())
	for want, r := range map[error]*growable.Rows[int32]{vmm.ErrInvalid: nil, vmm.ErrClosed: closed} {
		require.ErrorIs(t, r.Append(1, 2), want)
		require.ErrorIs(t, r.Append(), want)
		require.ErrorIs(t, r.Grow(1), want)
		require.ErrorIs(t, r.SetLen(1), want)
		require.ErrorIs(t, r.Clip(), want)
		_, err := r.ReadAt(make([]int32, 2), 0)
		require.ErrorIs(t, err, want)
		_, err = r.WriteAt(make([]int32, 2), 0)
		require.ErrorIs(t, err, want)
		_, err = r.Host()
		require.ErrorIs(t, err, want)
		require.Zero(t, r.Len()+r.Cap())
		for b, err := range r.Blocks(nil) {
			require.Empty(t, b)
			require.ErrorIs(t, err, want)
		}
		require.NoError(t, r.Close())
		require.NoError(t, r.CloseContext(t.Context()))
	}
	var none *growable.Rows[int32]
	require.Zero(t, none.Width()+none.Pitch()+none.MaxLen())
	require.Zero(t, none.Ptr())
	require.Nil(t, none.Range())
}

func TestRowsAll(t *testing.T) {
	d := vmmtest.Device(t)
	for _, pitch := range []int{0, 16} {
		r := rows[int32](t, d, 3, growable.RowsOptions{Pitch: pitch, MaxRows: 1 << 20})
		want := [][]int32{{1, 2, 3}, {4, 5, 6}, {7, 8, 9}}
		n, err := r.AppendSeq(slices.Values(want))
		require.NoError(t, err)
		require.Equal(t, 3, n)
		var got [][]int32
		for row, err := range r.All() {
			require.NoError(t, err)
			got = append(got, slices.Clone(row))
		}
		require.Equal(t, want, got)

		// Several rows at once, none, and then one that is too short.
		n, err = r.AppendSeq(slices.Values([][]int32{{1, 2, 3, 4, 5, 6}, {}, {7, 8}, {9, 9, 9}}))
		require.ErrorIs(t, err, vmm.ErrInvalid)
		require.ErrorContains(t, err, "append 2 elements: invalid argument: not whole rows of 3")
		require.Equal(t, 2, n)
		require.Equal(t, 5, r.Len())
		_, err = r.AppendSeq(nil)
		require.ErrorIs(t, err, vmm.ErrInvalid)

		require.NoError(t, r.SetLen(1))
		require.Equal(t, fmt.Sprintf("rows of 3 int32 on host:0: length 1, capacity %d, maximum %d", r.Cap(), r.MaxLen()), r.String())
	}
	require.Equal(t, "no rows", (&growable.Rows[int8]{}).String())
}

// TestOneRowCostsNoAllocation: read into a slice of the caller's, with padding too.
func TestOneRowCostsNoAllocation(t *testing.T) {
	if raceBuild {
		t.Skip("the locks of the race build allocate")
	}
	d, err := vmm.OpenDriver(nulldriver.New(), 0)
	require.NoError(t, err)
	for _, pitch := range []int{0, 16} {
		r, err := growable.NewRows[int32](d, 3, growable.RowsOptions{Pitch: pitch, MaxRows: 100})
		require.NoError(t, err)
		require.NoError(t, r.Append(make([]int32, 30)...))
		reader, err := growable.NewRowsReader[int32](r.Range(), 3)
		require.NoError(t, err)
		row := make([]int32, 3)
		for _, read := range []func([]int32, int) (int, error){r.ReadAt, reader.ReadAt} {
			require.Zero(t, testing.AllocsPerRun(100, func() {
				if n, err := read(row, 7); n != 1 || err != nil {
					t.Fatal(n, err)
				}
			}))
		}
		require.NoError(t, r.Close())
	}
	require.NoError(t, d.Close())
}
