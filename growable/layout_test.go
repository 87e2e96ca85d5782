package growable_test

import (
	"encoding/hex"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/growable"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

type (
	halves  struct{ A, B uint16 }
	swapped struct{ B, A uint16 }
	event   struct {
		When  int64
		Where [3]float32
		halves
		Good bool
		_    uint8
	}
)

func layoutOf[T any](t *testing.T) vmm.Layout {
	t.Helper()
	v, err := growable.New[T](vmmtest.Device(t), growable.Options{MaxLen: 1 << 10})
	require.NoError(t, err)
	defer v.Close()
	l := v.Layout()
	require.NoError(t, l.Validate())
	return l
}

// TestLayoutsAreStable: processes of different versions compare the hashes.
func TestLayoutsAreStable(t *testing.T) {
	for _, c := range []struct {
		got  vmm.Layout
		want string
		hash string
	}{
		{layoutOf[bool](t), "bool", ""},
		{layoutOf[int8](t), "int8", ""},
		{layoutOf[int16](t), "int16", ""},
		{layoutOf[int32](t), "int32", ""},
		{layoutOf[int64](t), "int64", ""},
		{layoutOf[uint8](t), "uint8", ""},
		{layoutOf[uint16](t), "uint16", ""},
		{layoutOf[uint32](t), "uint32", ""},
		{layoutOf[uint64](t), "uint64", ""},
		{layoutOf[float32](t), "float32", "bd2616c5d04d29163b60779c0459f8f763aeafd9cd32ea1d6a5e7d6cc0fd5664"},
		{layoutOf[float64](t), "float64", ""},
		{layoutOf[complex64](t), "complex64", ""},
		{layoutOf[complex128](t), "complex128", ""},
		{layoutOf[[2][3]float32](t), "rows of 2x3 float32", "bd2616c5d04d29163b60779c0459f8f763aeafd9cd32ea1d6a5e7d6cc0fd5664"},
		{layoutOf[[2][2][2][2][2]int8](t), "opaque of 32 bytes (8a067381)", "8a067381f9647ea462b5419ac33027aad4cf49693607f24b84c6f5f02c6cf594"},
		{layoutOf[halves](t), "opaque of 4 bytes (d69bd34d)", "d69bd34d58dbbe0aa179e3180bc5aac578a78d6694bee31e7a3675ff9a3ca77d"},
		{layoutOf[event](t), "opaque of 32 bytes (79ed056f)", "79ed056f5f3e8e93a264ed1ad7d0a950b400a49d45f130b29948b44cd7fc5174"},
	} {
		require.Equal(t, c.want, c.got.String())
		if c.hash != "" {
			require.Equal(t, c.hash, hex.EncodeToString(c.got.Hash[:]), c.want)
		}
	}
	require.False(t, layoutOf[halves](t).Equal(layoutOf[swapped](t)), "the fields differ")
	require.True(t, layoutOf[halves](t).Equal(layoutOf[struct{ A, B uint16 }](t)), "a type's name says nothing")
	require.False(t, layoutOf[int32](t).Equal(layoutOf[uint32](t)))
}

type nested struct {
	ID    int64
	At    struct{ X, Y float32 }
	Parts [2]halves
	Grid  [2][3]uint16
	None  [0]int32
	halves
	OK bool
	_  [3]uint8
}

// TestLayoutDescribesFields: structs in structs are flattened, and what has no bytes or no
// name is left out.
func TestLayoutDescribesFields(t *testing.T) {
	l := layoutOf[nested](t)
	require.Equal(t, `{"names":["ID","At.X","At.Y","Parts[0].A","Parts[0].B","Parts[1].A","Parts[1].B","Grid","halves.A","halves.B","OK"],`+
		`"formats":["<i8","<f4","<f4","<u2","<u2","<u2","<u2","(2,3)<u2","<u2","<u2","|b1"],`+
		`"offsets":[0,8,12,16,18,20,22,24,36,38,40],"itemsize":48}`, l.Dtype)
	fields, err := l.Fields()
	require.NoError(t, err)
	require.Len(t, fields, 11)
	rows, err := growable.LayoutOf[[3]nested]()
	require.NoError(t, err)
	require.Equal(t, l.Dtype, rows.Dtype)
	require.Equal(t, []int{3}, rows.Shape)

	require.Empty(t, layoutOf[float32](t).Dtype, "a number says it all")
	require.Empty(t, layoutOf[[2][2][2][2][2]int8](t).Dtype)
	require.Empty(t, layoutOf[struct{ _ int32 }](t).Dtype)
	require.Empty(t, layoutOf[struct{ Many [1 << 20]halves }](t).Dtype, "too long")
	require.ErrorContains(t, layoutOf[halves](t).Check(layoutOf[swapped](t)), `field "A" as <u2 at 0, not field "B" as <u2 at 0`)
}

func TestLayoutOfRows(t *testing.T) {
	d := vmmtest.Device(t)
	r, err := growable.NewRows[float32](d, 3, growable.RowsOptions{Pitch: 16, MaxRows: 1 << 10})
	require.NoError(t, err)
	defer r.Close()
	require.Equal(t, "rows of 3 float32, 16 bytes apart", r.Layout().String())
	require.NoError(t, r.Append(1, 2, 3, 4, 5, 6))

	packed, err := growable.NewRows[float32](d, 3, growable.RowsOptions{MaxRows: 1 << 10})
	require.NoError(t, err)
	defer packed.Close()
	require.True(t, packed.Layout().Equal(layoutOf[[3]float32](t)), "the bytes are the same")

	reader, err := growable.NewRowsReader[float32](r.Range(), 3)
	require.NoError(t, err)
	require.True(t, reader.Layout().Equal(packed.Layout()))
}

// TestLayoutOfATypeAndDimensions: the same as of what holds the elements.
func TestLayoutOfATypeAndDimensions(t *testing.T) {
	l, err := growable.LayoutOf[float32](768)
	require.NoError(t, err)
	require.Equal(t, "rows of 768 float32", l.String())
	r, err := growable.NewRows[float32](vmmtest.Device(t), 768, growable.RowsOptions{MaxRows: 10})
	require.NoError(t, err)
	defer r.Close()
	require.NoError(t, r.Layout().Check(l))
	l, err = growable.LayoutOf[event]()
	require.NoError(t, err)
	require.NoError(t, layoutOf[event](t).Check(l))
	l, err = growable.LayoutOf[[3]float32](2)
	require.NoError(t, err)
	require.NoError(t, layoutOf[[2][3]float32](t).Check(l))

	// The caller's slice stays the caller's, with what lies behind its end.
	dims := []int{2, 9}
	l, err = growable.LayoutOf[[3]float32](dims[:1]...)
	require.NoError(t, err)
	dims[0] = 7
	require.Equal(t, []int{2, 3}, l.Shape)
	require.Equal(t, 9, dims[1])

	for text, make := range map[string]func() (vmm.Layout, error){
		"rows of 5 dimensions":                              func() (vmm.Layout, error) { return growable.LayoutOf[int8](1, 1, 1, 1, 1) },
		"describe int8 in rows of [0]: invalid argument: a": func() (vmm.Layout, error) { return growable.LayoutOf[int8](0) },
		"a dimension of -3":                                 func() (vmm.Layout, error) { return growable.LayoutOf[int8](-3) },
		"rows of [4611686018427387904 8] elements":          func() (vmm.Layout, error) { return growable.LayoutOf[int8](math.MaxInt/2+1, 8) },
		"9223372036854775808 apart":                         func() (vmm.Layout, error) { return growable.LayoutOf[int8](math.MaxInt/2+1, 2) },
	} {
		_, err := make()
		require.ErrorIs(t, err, vmm.ErrInvalid, text)
		require.ErrorContains(t, err, text)
	}
	_, err = growable.LayoutOf[string](3)
	require.ErrorIs(t, err, growable.ErrElement)
}

func TestLayoutOfNothing(t *testing.T) {
	var v *growable.Vector[int16]
	require.Equal(t, "int16", v.Layout().String())
	var r *growable.Rows[int16]
	require.Equal(t, vmm.Layout{}, r.Layout())
	var none *growable.RowsReader[int16]
	require.Equal(t, vmm.Layout{}, none.Layout())
	var s *growable.Vector[string]
	require.Equal(t, vmm.Layout{}, s.Layout())
}
