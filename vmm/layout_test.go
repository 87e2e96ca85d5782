package vmm_test

import (
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/cuvmm/cuvmm/vmm"
)

func TestLayoutValidate(t *testing.T) {
	good := vmm.Layout{Kind: vmm.ElemFloat, Bits: 32, Size: 4, Shape: []int{3, 4}, Pitch: 64}
	require.NoError(t, good.Validate())
	for name, change := range map[string]func(*vmm.Layout){
		"kind":                func(l *vmm.Layout) { l.Kind = 6 },
		"bits":                func(l *vmm.Layout) { l.Bits = 24 },
		"size":                func(l *vmm.Layout) { l.Size = 8 },
		"no size":             func(l *vmm.Layout) { l.Kind, l.Bits, l.Size = vmm.ElemOpaque, 8, 0 },
		"opaque bits":         func(l *vmm.Layout) { l.Kind = vmm.ElemOpaque },
		"dimensions":          func(l *vmm.Layout) { l.Shape = []int{1, 1, 1, 1, 1} },
		"dimension of 0":      func(l *vmm.Layout) { l.Shape = []int{3, 0} },
		"dimension below 0":   func(l *vmm.Layout) { l.Shape = []int{-3, -4} },
		"dimensions overflow": func(l *vmm.Layout) { l.Shape = []int{math.MaxInt64, 4} },
		"no pitch":            func(l *vmm.Layout) { l.Pitch = 0 },
		"pitch":               func(l *vmm.Layout) { l.Pitch = 47 },
		"pitch overflows":     func(l *vmm.Layout) { l.Pitch = 1 << 63 },
	} {
		l := good
		change(&l)
		require.ErrorIs(t, l.Validate(), vmm.ErrInvalid, name)
		require.NotEmpty(t, l.String(), name)
		require.False(t, good.Equal(l), name)
	}
	require.ErrorIs(t, vmm.Layout{}.Validate(), vmm.ErrInvalid)
	other := good
	other.Hash[31] = 1
	require.False(t, good.Equal(other))
	other = good
	other.Shape = []int{3, 4}
	require.True(t, good.Equal(other))
}

// TestLayoutCheck: the error names the first difference, and both values.
func TestLayoutCheck(t *testing.T) {
	want := vmm.Layout{Kind: vmm.ElemFloat, Bits: 32, Size: 4, Shape: []int{768}, Pitch: 3072, Hash: [32]byte{0xbd, 31: 0x64}}
	require.NoError(t, want.Check(want))
	one := "bd" + strings.Repeat("00", 30) + "64"
	for text, change := range map[string]func(*vmm.Layout){
		"a layout of rows of 768 int32, not rows of 768 float32: elements of kind int, not float": func(l *vmm.Layout) { l.Kind = vmm.ElemInt },
		"numbers of 64 bits, not 32":    func(l *vmm.Layout) { l.Bits, l.Size, l.Pitch = 64, 8, 6144 },
		"elements of 8 bytes, not 4":    func(l *vmm.Layout) { l.Size = 8 },
		"a shape of [3 256], not [768]": func(l *vmm.Layout) { l.Shape = []int{3, 256} },
		"a shape of [], not [768]":      func(l *vmm.Layout) { l.Shape, l.Pitch = nil, 4 },
		"a layout of rows of 768 float32, 4096 bytes apart, not rows of 768 float32: a pitch of 4096 bytes, not 3072": func(l *vmm.Layout) { l.Pitch = 4096 },
		"a layout of rows of 768 float32, not rows of 768 float32: a hash of none, not " + one:                        func(l *vmm.Layout) { l.Hash = [32]byte{} },
		"there is no layout, and rows of 768 float32 is wanted":                                                       func(l *vmm.Layout) { *l = vmm.Layout{} },
	} {
		l := want
		change(&l)
		err := l.Check(want)
		require.ErrorIs(t, err, vmm.ErrInvalid, text)
		require.ErrorContains(t, err, text)
	}
	other := want
	other.Hash[30] = 1
	require.ErrorContains(t, other.Check(want), "not "+one)
}

func TestLayoutString(t *testing.T) {
	for want, l := range map[string]vmm.Layout{
		"float32":                                {Kind: vmm.ElemFloat, Bits: 32, Size: 4, Pitch: 4},
		"bool":                                   {Kind: vmm.ElemBool, Bits: 8, Size: 1, Pitch: 1},
		"rows of uint8, 2 bytes apart":           {Kind: vmm.ElemUint, Bits: 8, Size: 1, Pitch: 2},
		"rows of 128 complex64":                  {Kind: vmm.ElemComplex, Bits: 64, Size: 8, Shape: []int{128}, Pitch: 1024},
		"rows of 3x4 int64, 128 bytes apart":     {Kind: vmm.ElemInt, Bits: 64, Size: 8, Shape: []int{3, 4}, Pitch: 128},
		"opaque of 24 bytes":                     {Kind: vmm.ElemOpaque, Bits: 8, Size: 24, Pitch: 24},
		"rows of 2 opaque of 3 bytes (01000000)": {Kind: vmm.ElemOpaque, Bits: 8, Size: 3, Shape: []int{2}, Pitch: 6, Hash: [32]byte{1}},
	} {
		require.Equal(t, want, l.String())
	}
	require.Equal(t, "kind(9)", vmm.ElemKind(9).String())
}

func TestLayoutStrides(t *testing.T) {
	for _, test := range []struct {
		l    vmm.Layout
		want []int64
		err  error
	}{
		{vmm.Layout{Kind: vmm.ElemFloat, Bits: 32, Size: 4, Shape: []int{3, 4}, Pitch: 64}, []int64{16, 4, 1}, nil},
		{vmm.Layout{Kind: vmm.ElemUint, Bits: 8, Size: 1, Pitch: 1}, []int64{1}, nil},
		{vmm.Layout{Kind: vmm.ElemOpaque, Bits: 8, Size: 3, Shape: []int{2}, Pitch: 7}, nil, vmm.ErrNotSupported},
		{vmm.Layout{Kind: vmm.ElemComplex, Bits: 128, Size: 16, Pitch: 24}, nil, vmm.ErrNotSupported},
		{vmm.Layout{}, nil, vmm.ErrInvalid},
	} {
		got, err := test.l.Strides()
		require.ErrorIs(t, err, test.err)
		require.Equal(t, test.want, got)
	}
}

// TestStridesStayWithinTheBytes: whatever a layout says, its strides do not exceed the bytes.
func TestStridesStayWithinTheBytes(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		kind := rapid.SampledFrom([]vmm.ElemKind{vmm.ElemOpaque, vmm.ElemInt, vmm.ElemUint, vmm.ElemFloat, vmm.ElemComplex, vmm.ElemBool, 6}).Draw(rt, "kind")
		width := rapid.SampledFrom([]int{0, 8, 16, 32, 64, 128}).Draw(rt, "bits")
		l := vmm.Layout{Kind: kind, Bits: width, Size: uint64(width / 8), Shape: rapid.SliceOfN(rapid.IntRange(-1, 1<<40), 0, 5).Draw(rt, "shape")}
		if kind == vmm.ElemOpaque {
			l.Size = rapid.Uint64Range(0, 1<<40).Draw(rt, "size")
		}
		l.Pitch = rapid.Uint64().Draw(rt, "pitch")
		rows := rapid.IntRange(1, 9).Draw(rt, "rows")
		_ = l.String()
		strides, err := l.Strides()
		if err != nil {
			return
		}
		var last uint64
		for i, n := range append([]int{rows}, l.Shape...) {
			last += uint64(n-1) * uint64(strides[i])
		}
		if bytes := l.Pitch * uint64(rows); (last+1)*l.Size > bytes {
			rt.Fatalf("%+v is beyond %d bytes", strides, bytes)
		}
	})
}
