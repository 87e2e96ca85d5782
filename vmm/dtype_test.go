package vmm_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
)

var someFields = []vmm.Field{
	{Name: "id", Kind: vmm.ElemInt, Bits: 64},
	{Name: "at.x", Kind: vmm.ElemFloat, Bits: 32, Offset: 8},
	{Name: "tags", Kind: vmm.ElemUint, Bits: 16, Shape: []int{2, 3}, Offset: 12},
	{Name: "ok", Kind: vmm.ElemBool, Bits: 8, Offset: 24},
	{Name: "one", Kind: vmm.ElemComplex, Bits: 64, Shape: []int{1}, Offset: 32},
}

// TestDtype: the text is what NumPy takes, and says the same as the fields.
func TestDtype(t *testing.T) {
	text, err := vmm.DtypeOf(40, someFields)
	require.NoError(t, err)
	require.Equal(t, `{"names":["id","at.x","tags","ok","one"],"formats":["<i8","<f4","(2,3)<u2","|b1","(1,)<c8"],"offsets":[0,8,12,24,32],"itemsize":40}`, text)
	l := vmm.Layout{Bits: 8, Size: 40, Pitch: 40, Dtype: text}
	require.NoError(t, l.Validate())
	fields, err := l.Fields()
	require.NoError(t, err)
	require.Equal(t, someFields, fields)
	none, err := vmm.Layout{Bits: 8, Size: 40, Pitch: 40}.Fields()
	require.NoError(t, err)
	require.Empty(t, none)
	_, err = vmm.Layout{}.Fields()
	require.NoError(t, err)
}

// TestDtypeRefused: what another process sends may be anything.
func TestDtypeRefused(t *testing.T) {
	const good = `{"names":["A","B"],"formats":["<i4","(2,)<u2"],"offsets":[0,4],"itemsize":8}`
	l := vmm.Layout{Bits: 8, Size: 8, Pitch: 8, Dtype: good}
	require.NoError(t, l.Validate())
	for _, change := range [][2]string{
		{good, "{"}, {good, "{}"}, {good, "null"}, {good, "\xff"}, {good, strings.Repeat(" ", vmm.MaxDtype) + good},
		{`"A","B"`, `"A"`}, {`"A","B"`, `"A","A"`}, {`"A","B"`, `"A",""`}, {`[0,4]`, `[0]`}, {`[0,4]`, `[0,5]`},
		{`[0,4]`, `[0,18446744073709551615]`}, {`[0,4]`, `[0,-1]`}, {`:8}`, `:9}`}, {`"<i4",`, ``},
		{"<i4", ""}, {"<i4", "<i"}, {"<i4", "<i3"}, {"<i4", "|i4"}, {"<i4", ">i4"}, {"<i4", "<q4"}, {"<i4", "<O8"}, {"<i4", "<i04"}, {"<i4", "<i+4"},
		{"(2,)<u2", "(2)<u2"}, {"(2,)<u2", "(0,)<u2"}, {"(2,)<u2", "(-2,)<u2"}, {"(2,)<u2", "()<u2"}, {"(2,)<u2", "2,)<u2"}, {"(2,)<u2", "(3,)<u2"},
		{"(2,)<u2", "(9223372036854775807,9223372036854775807)<u2"}, {"(2,)<u2", "(x,)<u2"},
	} {
		bad := l
		bad.Dtype = strings.Replace(good, change[0], change[1], 1)
		require.ErrorIs(t, bad.Validate(), vmm.ErrInvalid, "%q", change)
		require.False(t, bad.Equal(l), "%q", change)
		require.ErrorIs(t, bad.Check(l), vmm.ErrInvalid, "%q", change)
	}
	l.Kind, l.Bits = vmm.ElemInt, 64
	require.ErrorIs(t, l.Validate(), vmm.ErrInvalid, "numbers have no fields")

	var many []vmm.Field
	for i := range 500 {
		many = append(many, vmm.Field{Name: fmt.Sprint("f", i), Kind: vmm.ElemInt, Bits: 8, Offset: uint64(i)})
	}
	_, err := vmm.DtypeOf(500, many)
	require.ErrorIs(t, err, vmm.ErrLimit)
	_, err = vmm.DtypeOf(8, []vmm.Field{{}})
	require.ErrorIs(t, err, vmm.ErrInvalid)
	_, err = vmm.DtypeOf(8, nil)
	require.ErrorIs(t, err, vmm.ErrInvalid)
}

// TestDtypeDifference: the error names the field.
func TestDtypeDifference(t *testing.T) {
	one, err := vmm.DtypeOf(40, someFields)
	require.NoError(t, err)
	other, err := vmm.DtypeOf(40, someFields[:4])
	require.NoError(t, err)
	l, m := vmm.Layout{Bits: 8, Size: 40, Pitch: 40, Dtype: one}, vmm.Layout{Bits: 8, Size: 40, Pitch: 40, Dtype: other}
	require.ErrorContains(t, l.Check(m), `field "one" as (1,)<c8 at 32, not 4 fields`)
	m.Dtype = strings.Replace(one, "<f4", "<i4", 1)
	require.ErrorContains(t, l.Check(m), `field "at.x" as <f4 at 8, not field "at.x" as <i4 at 8`)
	m.Dtype = one + " "
	require.ErrorContains(t, l.Check(m), "a dtype of ")
	m.Dtype = ""
	require.ErrorContains(t, l.Check(m), `field "id" as <i8 at 0, not 0 fields`)
}

func FuzzDtype(f *testing.F) {
	text, err := vmm.DtypeOf(40, someFields)
	require.NoError(f, err)
	f.Add(text, uint64(40))
	f.Fuzz(func(t *testing.T, text string, size uint64) {
		l := vmm.Layout{Bits: 8, Size: size, Pitch: size, Dtype: text}
		fields, err := l.Fields()
		if err != nil || text == "" {
			return
		}
		again, err := vmm.DtypeOf(size, fields)
		require.NoError(t, err)
		l.Dtype = again
		same, err := l.Fields()
		require.NoError(t, err)
		require.Equal(t, fields, same)
	})
}
