//go:build cgo

package dlpack_test

import (
	"math"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cgo/dlpack/consumer"
	"github.com/cuvmm/cuvmm/growable"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/dlpack"
	"github.com/cuvmm/cuvmm/vmm/kernel"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// from is FromDLPack or FromUnversioned.
func from(d *vmm.Device, p consumer.Pointer, versioned bool) (*dlpack.Foreign, error) {
	if versioned {
		return dlpack.FromDLPack(d, p)
	}
	return dlpack.FromUnversioned(d, p)
}

// TestImport: memory of another library is read, copied, appended and used by kernels, and given back
// once.
func TestImport(t *testing.T) {
	d := vmmtest.Device(t)
	for _, versioned := range []bool{true, false} {
		m := consumer.Make(versioned)
		t.Cleanup(m.Free)
		s := consumer.Good()
		if versioned {
			s.Flags = 1
		}
		m.Set(s)
		f, err := from(d, m.Pointer(), versioned)
		require.NoError(t, err)
		require.Equal(t, []int64{4, 3}, f.Shape())
		require.Equal(t, dlpack.Float32, f.DType())
		require.EqualValues(t, 48, f.Size())
		require.EqualValues(t, 12, f.Pitch())
		require.Equal(t, versioned, f.ReadOnly())
		require.Equal(t, d, f.Device())
		bytes, err := f.Bytes()
		require.NoError(t, err)
		for i, b := range bytes {
			require.EqualValues(t, i, b)
		}
		require.Len(t, bytes, 48)
		elems, err := dlpack.Slice[float32](f)
		require.NoError(t, err)
		require.Len(t, elems, 12)
		for _, err := range []error{second(dlpack.Slice[float64](f)), second(dlpack.Slice[*int](f)), second(dlpack.Slice[bool](f)), second(dlpack.Slice[[4]byte](f))} {
			require.ErrorIs(t, err, vmm.ErrInvalid)
		}

		rows, err := growable.NewRows[float32](d, 3, growable.RowsOptions{Range: vmm.RangeOptions{Max: page}})
		require.NoError(t, err)
		require.NoError(t, rows.Append(elems...))
		require.NoError(t, rows.Grow(4))
		stream, err := d.NewStream()
		require.NoError(t, err)
		require.NoError(t, stream.CopyIn(rows.PtrAt(4), bytes))
		require.NoError(t, stream.Sync())
		require.NoError(t, rows.SetLen(8))
		got := make([]byte, 96)
		_, err = rows.Range().ReadAt(got, 0)
		require.NoError(t, err)
		require.Equal(t, append(bytes, bytes...), got)

		var arg vmm.MemoryArg
		kernel.Memory(f).MemoryArg(&arg)
		want := vmm.AccessReadWrite
		if versioned {
			want = vmm.AccessRead
		}
		require.NoError(t, arg.Err())
		require.Equal(t, vmm.Span{Addr: f.Ptr(), Size: 48, Access: want}, arg.Span)
		require.EqualValues(t, []uint64{4, 12}, []uint64{arg.Count, arg.Stride})
		_, err = dlpack.Export(f, 1, dlpack.Options{DType: dlpack.Uint8})
		require.ErrorIs(t, err, vmm.ErrNotSupported, "it is not ours to hold")

		require.ErrorContains(t, d.Close(), "DLPack import of float32[4 3]")
		require.Zero(t, m.Deletes())
		require.NoError(t, f.Close())
		require.NoError(t, f.Close())
		require.Equal(t, 1, m.Deletes())
		_, err = f.Bytes()
		require.ErrorIs(t, err, vmm.ErrClosed)
		kernel.Memory(f).MemoryArg(&arg)
		require.ErrorIs(t, arg.Err(), vmm.ErrClosed)
		require.NoError(t, stream.Close())
		require.NoError(t, rows.Close())
	}
}

func second[T any](_ T, err error) error { return err }

// TestImportsOfAllSorts: unusual tensors, accepted and refused; the deleter is called once
// in each case.
func TestImportsOfAllSorts(t *testing.T) {
	d := vmmtest.Device(t)
	ones := make([]int64, 70)
	for i := range ones {
		ones[i] = 1
	}
	for name, test := range map[string]struct {
		spoil func(*consumer.Spec)
		want  error
		size  uint64
	}{
		"no strides":          {func(s *consumer.Spec) { s.NoStrides = true }, nil, 48},
		"a byte offset":       {func(s *consumer.Spec) { s.Offset = 4 }, nil, 48},
		"padded rows":         {func(s *consumer.Spec) { s.Strides[0] = 5 }, nil, 72},
		"pinned":              {func(s *consumer.Spec) { s.Type = 3 }, nil, 48},
		"a scalar":            {func(s *consumer.Spec) { s.NDim, s.NoShape, s.NoStrides = 0, true, true }, nil, 4},
		"no data, no size":    {func(s *consumer.Spec) { s.NoData, s.Shape[1] = true, 0 }, nil, 0},
		"no rows":             {func(s *consumer.Spec) { s.NoData, s.Shape[0] = true, 0 }, nil, 0},
		"one row, any stride": {func(s *consumer.Spec) { s.Shape[0], s.Strides[0] = 1, -7 }, nil, 12},
		"32 dimensions":       {func(s *consumer.Spec) { s.NDim, s.Shape, s.Strides = 32, ones, ones }, nil, 4},

		"65 dimensions":         {func(s *consumer.Spec) { s.NDim, s.Shape, s.Strides = 65, ones, ones }, vmm.ErrInvalid, 0},
		"dimensions below 0":    {func(s *consumer.Spec) { s.NDim = -1 }, vmm.ErrInvalid, 0},
		"no shape":              {func(s *consumer.Spec) { s.NoShape = true }, vmm.ErrInvalid, 0},
		"a shape below 0":       {func(s *consumer.Spec) { s.Shape[1] = -3 }, vmm.ErrInvalid, 0},
		"a shape that wraps":    {func(s *consumer.Spec) { s.Shape, s.NoStrides = []int64{1 << 40, 1 << 40}, true }, vmm.ErrBounds, 0},
		"a row that wraps":      {func(s *consumer.Spec) { s.Shape, s.NoStrides = []int64{1, math.MaxInt64}, true }, vmm.ErrBounds, 0},
		"negative strides":      {func(s *consumer.Spec) { s.Strides[0] = -3 }, vmm.ErrNotSupported, 0},
		"rows that overlap":     {func(s *consumer.Spec) { s.Strides[0] = 2 }, vmm.ErrNotSupported, 0},
		"rows that are one":     {func(s *consumer.Spec) { s.Strides[0] = 0 }, vmm.ErrNotSupported, 0},
		"columns first":         {func(s *consumer.Spec) { s.Strides = []int64{1, 4} }, vmm.ErrNotSupported, 0},
		"a stride that wraps":   {func(s *consumer.Spec) { s.Strides[0] = math.MaxInt64 }, vmm.ErrNotSupported, 0},
		"an offset that wraps":  {func(s *consumer.Spec) { s.Offset = math.MaxUint64 - 3 }, vmm.ErrBounds, 0},
		"an end that wraps":     {func(s *consumer.Spec) { s.Strides[0] = 1 << 60 }, vmm.ErrBounds, 0},
		"an offset, misaligned": {func(s *consumer.Spec) { s.Offset = 2 }, vmm.ErrInvalid, 0},
		"data, misaligned":      {func(s *consumer.Spec) { s.DataOff = 1 }, vmm.ErrInvalid, 0},
		"no data":               {func(s *consumer.Spec) { s.NoData = true }, vmm.ErrInvalid, 0},
		"an offset of no data":  {func(s *consumer.Spec) { s.NoData, s.Offset = true, 64 }, vmm.ErrInvalid, 0},
		"two lanes":             {func(s *consumer.Spec) { s.Lanes = 2 }, vmm.ErrNotSupported, 0},
		"no lanes":              {func(s *consumer.Spec) { s.Lanes = 0 }, vmm.ErrNotSupported, 0},
		"an unknown dtype":      {func(s *consumer.Spec) { s.Code = 77 }, vmm.ErrNotSupported, 0},
		"4 bits":                {func(s *consumer.Spec) { s.Bits = 4 }, vmm.ErrNotSupported, 0},
		"a GPU's":               {func(s *consumer.Spec) { s.Type = 2 }, vmm.ErrInvalid, 0},
		"an unknown device":     {func(s *consumer.Spec) { s.Type = 12 }, vmm.ErrNotSupported, 0},
	} {
		for _, versioned := range []bool{true, false} {
			m := consumer.Make(versioned)
			s := consumer.Good()
			test.spoil(&s)
			m.Set(s)
			f, err := from(d, m.Pointer(), versioned)
			if test.want != nil {
				require.ErrorIs(t, err, test.want, name)
			} else {
				require.NoError(t, err, name)
				require.Equal(t, test.size, f.Size(), name)
				b, err := f.Bytes()
				require.NoError(t, err, name)
				require.Len(t, b, int(test.size), name)
				if test.size > 0 {
					require.EqualValues(t, s.Offset, b[0], name)
				}
				require.Zero(t, m.Deletes(), name)
				require.NoError(t, f.Close())
			}
			require.Equal(t, 1, m.Deletes(), name)
			m.Free()
		}
	}
}

// TestImportOfAnotherVersion: nothing is read but the version, and the deleter is called.
func TestImportOfAnotherVersion(t *testing.T) {
	d := vmmtest.Device(t)
	for _, major := range []uint32{0, 2, 1 << 31} {
		m := consumer.Make(true)
		s := consumer.Good()
		s.Major, s.NDim, s.NoShape = major, 1<<30, true
		m.Set(s)
		_, err := dlpack.FromDLPack(d, m.Pointer())
		require.ErrorIs(t, err, vmm.ErrNotSupported)
		require.ErrorContains(t, err, "DLPack ")
		require.Equal(t, 1, m.Deletes())
		m.Free()
	}
}

// TestImportWithoutThis: no tensor, no device, no deleter; a Foreign that is nil or closed.
func TestImportWithoutThis(t *testing.T) {
	d := vmmtest.Device(t)
	for _, versioned := range []bool{true, false} {
		_, err := from(d, nil, versioned)
		require.ErrorIs(t, err, vmm.ErrInvalid)
		m := consumer.Make(versioned)
		_, err = from(nil, m.Pointer(), versioned)
		require.ErrorIs(t, err, vmm.ErrInvalid)
		require.Equal(t, 1, m.Deletes())
		s := consumer.Good()
		s.NoDeleter = true
		m.Set(s)
		f, err := from(d, m.Pointer(), versioned)
		require.NoError(t, err)
		require.NoError(t, f.Close())
		require.Equal(t, 1, m.Deletes())
		m.Free()
	}
	for _, f := range []*dlpack.Foreign{nil, {}} {
		require.NoError(t, f.Close())
		require.Zero(t, f.Size())
		require.False(t, f.ReadOnly())
		require.Nil(t, f.Device())
		_, err := f.Bytes()
		require.ErrorIs(t, err, vmm.ErrInvalid)
		arg := vmm.MemoryArg{Count: 3}
		f.MemoryArg(&arg)
		require.Zero(t, arg.Count)
	}
}

// TestPanickingDeleter: a deleter in Go may panic. The memory is given up all the same, and nothing stays locked.
func TestPanickingDeleter(t *testing.T) {
	for _, versioned := range []bool{true, false} {
		d, err := vmm.Open("host")
		require.NoError(t, err)
		m := consumer.Make(versioned)
		s := consumer.Good()
		s.Panics = true
		m.Set(s)
		f, err := from(d, m.Pointer(), versioned)
		require.NoError(t, err)
		require.ErrorIs(t, d.Close(), vmm.ErrBusy)
		require.PanicsWithError(t, consumer.ErrDeleter.Error(), func() { _ = f.Close() })
		_, err = f.Bytes()
		require.ErrorIs(t, err, vmm.ErrClosed)
		require.NoError(t, f.Close())
		require.Equal(t, 1, m.Deletes())
		require.NoError(t, d.Close())
		m.Free()
	}
}

// TestWithoutDescriptors: an import needs none, and an export succeeds once there is one again. It is a process
// of its own, which has no descriptor for deleters yet.
func TestWithoutDescriptors(t *testing.T) {
	const child = "CUVMM_WITHOUT_DESCRIPTORS"
	if os.Getenv(child) == "" {
		c := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestWithoutDescriptors$")
		c.Env = append(os.Environ(), child+"=1")
		out, err := c.CombinedOutput()
		require.NoError(t, err, "%s", out)
		return
	}
	d := vmmtest.Device(t)
	v, err := growable.New[float32](d, growable.Options{Range: vmm.RangeOptions{Max: page}})
	require.NoError(t, err)
	require.NoError(t, v.Append(1, 2, 3))
	var old syscall.Rlimit
	require.NoError(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &old))
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 3, Max: old.Max}))
	m := consumer.Make(true)
	f, imported := dlpack.FromDLPack(d, m.Pointer())
	_, exported := dlpack.Export(v, 3, dlpack.Options{})
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &old))
	require.NoError(t, imported)
	require.ErrorIs(t, exported, vmm.ErrLimit)
	require.NoError(t, f.Close())
	require.Equal(t, 1, m.Deletes())
	m.Free()
	remove(t, true, export(t, v, 3, dlpack.Options{}))
	require.NoError(t, v.Close())
}

// TestImportOfAnExport: this package can import its own exports, and Close calls their deleter.
func TestImportOfAnExport(t *testing.T) {
	d := vmmtest.Device(t)
	v, err := growable.New[complex128](d, growable.Options{Range: vmm.RangeOptions{Max: page}})
	require.NoError(t, err)
	require.NoError(t, v.Append(1, 2i, 3))
	for _, versioned := range []bool{true, false} {
		f, err := from(d, export(t, v, 2, dlpack.Options{Unversioned: !versioned}), versioned)
		require.NoError(t, err)
		got, err := dlpack.Slice[complex128](f)
		require.NoError(t, err)
		require.Equal(t, []complex128{1, 2i}, got)
		// It is memory of the driver's own, so copies of streams take it, too.
		require.NoError(t, v.Grow(2))
		stream, err := d.NewStream()
		require.NoError(t, err)
		require.NoError(t, stream.Copy(v.PtrAt(3), f.Ptr(), f.Size()))
		require.NoError(t, stream.Close())
		require.NoError(t, v.SetLen(5))
		x, err := v.At(4)
		require.NoError(t, err)
		require.Equal(t, 2i, x)
		require.ErrorIs(t, v.Close(), vmm.ErrBusy)
		require.NoError(t, f.Close())
		nothingOpen(t)
	}
	require.NoError(t, v.Close())
}
