package kernel_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/growable"
	"github.com/cuvmm/cuvmm/internal/testing/nulldriver"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/internal/lock"
	"github.com/cuvmm/cuvmm/vmm/kernel"
)

func saxpy(n uint64, a float32, x, y []float32) {
	for i := range n {
		y[i] += a * x[i]
	}
}

func TestLaunch(t *testing.T) {
	dev := open(t)
	x, y := vector[float32](t, dev, 1, 2, 3), vector[float32](t, dev, 10, 20, 30)
	f := function(t, load(t, dev, kernel.Host{"saxpy": saxpy}), "saxpy")
	s := stream(t, dev)
	require.NoError(t, f.Launch(s, kernel.Over(x.Len(), 256), uint64(3), float32(2), kernel.Read(x), y))
	require.NoError(t, s.Sync())
	require.Equal(t, []float32{12, 24, 36}, contents(t, y))
	require.NoError(t, f.Launch(s, kernel.Over(0, 256), uint64(0), float32(2), kernel.Read(x), y), "over nothing")
	require.NoError(t, s.Sync())
	require.Equal(t, []float32{12, 24, 36}, contents(t, y))
}

// point is as C has it: padding between its fields.
type point struct {
	Kind uint8
	X, Y float64
	Tag  [3]int16
}

// TestArguments: every kind arrives as it was, whatever lies before it.
func TestArguments(t *testing.T) {
	dev := open(t)
	v := vector[uint16](t, dev, 7, 8, 9)
	bytes, err := dev.NewRange(vmm.RangeOptions{})
	ends(t, bytes, err)
	require.NoError(t, bytes.Append([]byte("bytes")))
	s := stream(t, dev)
	p := point{3, 1.5, -2.5, [3]int16{-1, 0, 1}}
	calls := 0
	m := load(t, dev, kernel.Host{
		"all": func(th kernel.Threads, a uint8, b int64, c bool, d float32, e point, f []uint16, g vmm.Ptr, h *[2]uint16,
			i []byte, j vmm.Ptr, k complex128, l [2]int32,
		) error {
			calls++
			if (th != kernel.Threads{Grid: vmm.Dim{X: 2, Y: 1, Z: 1}, Block: vmm.Dim{X: 32, Y: 1, Z: 1}}) || th.Count() != 64 ||
				a != 1 || b != -2 || !c || d != 0.5 || e != p || len(f) != 3 || f[2] != 9 ||
				kernel.Slice[uint16](g, 3)[1] != 8 || h[1] != 8 || string(i) != "bytes" || j != 0 || k != 1i || l != [2]int32{4, 5} {
				return errors.New("wrong arguments")
			}
			return nil
		},
		"none": func() { calls++ },
	})
	f := function(t, m, "all")
	require.NoError(t, f.Launch(s, kernel.Config{Grid: vmm.Dim{X: 2}, Block: vmm.Dim{X: 32}},
		uint8(1), int64(-2), true, float32(0.5), p, v, v.Ptr(), kernel.Pointer(v), kernel.Read(bytes), vmm.Ptr(0), complex128(1i), [2]int32{4, 5}))
	require.NoError(t, function(t, m, "none").Launch(s, kernel.Config{}))
	require.NoError(t, s.Sync())
	require.Equal(t, 2, calls)
}

func TestArgumentsRefused(t *testing.T) {
	dev := open(t)
	v := vector[float32](t, dev, 1)
	gone, err := growable.New[float32](dev, growable.Options{})
	require.NoError(t, err)
	require.NoError(t, gone.Append(1))
	require.NoError(t, gone.Close())
	m := load(t, dev, kernel.Host{
		"f": func([]float32, uint32) { t.Error("it ran") },
		"p": func(vmm.Ptr, uint32) { t.Error("it ran") },
	})
	f, p := function(t, m, "f"), function(t, m, "p")
	s := stream(t, dev)
	var none *growable.Vector[float32]
	for _, c := range []struct {
		name string
		f    *kernel.Func
		args []any
		want error
		text string
	}{
		{"too few", f, []any{v}, vmm.ErrInvalid, "2 of 3 parameters"},
		{"too many", f, []any{v, uint32(1), uint32(2)}, vmm.ErrInvalid, "3 arguments, of which 2 fill all 3"},
		{"none", f, nil, vmm.ErrInvalid, "0 of 3 parameters"},
		{"size", f, []any{v, uint64(1)}, vmm.ErrInvalid, "argument 2: invalid argument: uint64 has 8 bytes for a parameter of 4"},
		{"int", f, []any{v, 1}, vmm.ErrInvalid, "argument 2: invalid argument: int has no fixed size"},
		{"string", f, []any{v, "1"}, vmm.ErrInvalid, "no plain data"},
		{"slice", f, []any{[]float32{1}, uint32(1)}, vmm.ErrInvalid, "no plain data"},
		{"struct with a pointer", f, []any{struct{ p *int }{}, uint32(1)}, vmm.ErrInvalid, "field p"},
		{"empty struct", f, []any{v, struct{}{}}, vmm.ErrInvalid, "no bytes"},
		{"a Range of bytes for a slice of floats", f, []any{v.Range(), uint32(1)}, vmm.ErrInvalid, "items of 1 bytes, and the slice 4"},
		{"address", p, []any{uintptr(1), uint32(1)}, vmm.ErrInvalid, "vmm.Ptr"},
		{"nil", f, []any{nil, uint32(1)}, vmm.ErrInvalid, "argument 1"},
		{"nil vector", f, []any{none, uint32(1)}, vmm.ErrInvalid, "nil"},
		{"a count that the kernel does not take", p, []any{v, uint32(1)}, vmm.ErrInvalid, "see Pointer"},
		{"a number to read", p, []any{kernel.Read(uint64(1)), uint32(1)}, vmm.ErrInvalid, "no memory"},
		{"closed", f, []any{gone, uint32(1)}, vmm.ErrClosed, ""},
		{"pointer to nothing", p, []any{v.Ptr() + 1<<20, uint32(1)}, vmm.ErrBounds, ""},
	} {
		err := c.f.Launch(s, kernel.Over(1, 1), c.args...)
		require.ErrorIs(t, err, c.want, c.name)
		require.ErrorContains(t, err, c.text, c.name)
	}
	require.NoError(t, s.Sync())
	_, err = m.Func("g")
	require.ErrorIs(t, err, vmm.ErrInvalid)
	require.ErrorIs(t, f.Launch(nil, kernel.Over(1, 1), v, uint32(1)), vmm.ErrInvalid)
	require.ErrorIs(t, (*kernel.Func)(nil).Launch(s, kernel.Over(1, 1)), vmm.ErrInvalid)
	require.ErrorIs(t, f.Launch(s, kernel.Over(1, 2000), v, uint32(1)), vmm.ErrInvalid, "threads")
	require.ErrorIs(t, f.Launch(s, kernel.Over(uint64(1)<<40, 1), v, uint32(1)), vmm.ErrInvalid, "blocks")
	require.ErrorIs(t, f.Launch(s, kernel.Config{Block: vmm.Dim{X: 1}, Shared: 1 << 20}, v, uint32(1)), vmm.ErrInvalid, "shared memory")
}

func TestHostRefused(t *testing.T) {
	dev := open(t)
	for name, f := range map[string]any{
		"nil": nil, "number": 1, "nil function": (func())(nil), "variadic": func(...int32) {},
		"results": func() int { return 1 }, "int": func(int) {}, "string": func(string) {}, "slice of slices": func([][]byte) {},
	} {
		_, err := kernel.Load(dev, kernel.Code{Host: kernel.Host{"f": f}})
		require.ErrorIs(t, err, vmm.ErrInvalid, name)
	}
	_, err := kernel.Load(dev, kernel.Code{Image: []byte("x"), CUDA: "x"})
	require.ErrorIs(t, err, vmm.ErrInvalid)
	_, err = kernel.Load(nil, kernel.Code{})
	require.ErrorIs(t, err, vmm.ErrInvalid)
	if !onCUDA {
		_, err = kernel.Load(dev, kernel.Code{CUDA: "no Go functions"})
		require.ErrorIs(t, err, vmm.ErrNotSupported)
	}
	require.NoError(t, (*kernel.Module)(nil).Close())
	_, err = (*kernel.Module)(nil).Func("f")
	require.ErrorIs(t, err, vmm.ErrInvalid)
}

// TestHostCompilesNothing: beside Go functions the source for a GPU is not looked at.
func TestHostCompilesNothing(t *testing.T) {
	dev := open(t)
	if onCUDA {
		t.Skip("the host device alone has Go functions")
	}
	m, err := kernel.Load(dev, kernel.Code{CUDA: "no CUDA C++", Host: kernel.Host{"f": func() {}}})
	function(t, ends(t, m, err), "f")
}

// TestBound: memory is looked at anew for each launch, and arguments can be changed.
func TestBound(t *testing.T) {
	dev := open(t)
	v := vector[uint32](t, dev, 1)
	m := load(t, dev, kernel.Host{"add": func(v []uint32, by uint32) {
		for i := range v {
			v[i] += by
		}
	}})
	s := stream(t, dev)
	b, err := function(t, m, "add").Bind(kernel.Over(1, 1), v, uint32(10))
	require.NoError(t, err)
	require.NoError(t, b.Launch(s))
	require.NoError(t, s.Sync())
	require.NoError(t, v.Append(2, 3))
	require.NoError(t, b.Set(1, uint32(100)))
	require.NoError(t, b.Launch(s))
	require.NoError(t, s.Sync())
	require.Equal(t, []uint32{111, 102, 103}, contents(t, v))
	require.ErrorIs(t, b.Set(1, uint64(1)), vmm.ErrInvalid)
	require.ErrorIs(t, b.Set(0, uint64(1)), vmm.ErrInvalid)
	require.ErrorIs(t, b.Set(2, uint32(1)), vmm.ErrInvalid)
	require.ErrorIs(t, b.Set(-1, uint32(1)), vmm.ErrInvalid)
	require.NoError(t, v.SetLen(0))
	require.NoError(t, b.Launch(s), "no elements")
	require.NoError(t, s.Sync())
}

// TestBoundAllocatesNothing beside what the driver does: this one does nothing.
func TestBoundAllocatesNothing(t *testing.T) {
	if lock.Ordered {
		t.Skip("the race detector's locks allocate")
	}
	dev, err := vmm.OpenDriver(nulldriver.New(), 0)
	ends(t, dev, err)
	x, y := vector[float32](t, dev, 1), vector[float32](t, dev, 1)
	m, err := kernel.Load(dev, kernel.Code{Host: kernel.Host{"f": func(x, y []float32) {}}})
	s := stream(t, dev)
	b, err := function(t, ends(t, m, err), "f").Bind(kernel.Over(1, 1), kernel.Read(x), y)
	require.NoError(t, err)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		if err := b.Launch(s); err != nil {
			t.Error(err)
		}
	}))
}

func TestPTXParams(t *testing.T) {
	got := kernel.PTXParams([]byte(`
.version 6.3
.target sm_75
	// .globl	one
.visible .entry one(
	.param .u64 one_param_0,
	.param .f32 one_param_1,
	.param .align 8 .b8 one_param_2[24],
	.param .u8 one_param_3
)
.maxntid 256, 1, 1
{ .reg .b64 %rd<3>; }
.entry two()
{ ret; }
.visible .entry _Z3$_0(.param .u64 .ptr .global .align 4 p)
{ ret; }
`))
	require.Equal(t, map[string][]vmm.Param{
		"one":    {{Offset: 0, Size: 8}, {Offset: 8, Size: 4}, {Offset: 16, Size: 24}, {Offset: 40, Size: 1}},
		"two":    {},
		"_Z3$_0": {{Offset: 0, Size: 8}},
	}, got)
	require.Nil(t, kernel.PTXParams([]byte("\x7fELF")))
}

// TestUncheckedOffsets: where a driver does not tell a kernel's parameters, arguments lie as in a
// struct of CUDA's.
func TestUncheckedOffsets(t *testing.T) {
	type spectrum struct {
		Peak complex64
		Gain float32
	}
	for _, c := range []struct {
		name string
		args []any
		want []uint32
		size uint32
	}{
		{"numbers", []any{int8(1), int16(1), float32(1), float64(1), int8(1)}, []uint32{0, 2, 4, 8, 16}, 17},
		{"a float2", []any{float32(1), complex64(1), float32(1)}, []uint32{0, 8, 16}, 20},
		{"a double2", []any{float32(1), complex128(1), float32(1)}, []uint32{0, 16, 32}, 36},
		{"an array of float2", []any{float32(1), [2]complex64{}, float32(1)}, []uint32{0, 8, 24}, 28},
		{"a struct with a float2", []any{float32(1), spectrum{}, float32(1)}, []uint32{0, 8, 24}, 28},
		{"a pointer", []any{float32(1), vmm.Ptr(0), complex64(1)}, []uint32{0, 8, 16}, 24},
	} {
		offs, size, err := kernel.UncheckedOffsets(c.args...)
		require.NoError(t, err, c.name)
		require.Equal(t, c.want, offs, c.name)
		require.Equal(t, c.size, size, c.name)
	}
}

// TestOtherLayoutInC: a struct whose fields lie elsewhere in C than in Go is refused.
func TestOtherLayoutInC(t *testing.T) {
	type inner struct {
		A complex64
		B float32
	}
	for _, x := range []any{
		struct {
			A float32
			B complex64
		}{},
		struct {
			A inner
			B float32
		}{},
		[2]inner{},
	} {
		_, _, err := kernel.UncheckedOffsets(x)
		require.ErrorIs(t, err, vmm.ErrInvalid, "%T", x)
		require.ErrorContains(t, err, "in C", "%T", x)
	}
	_, _, err := kernel.UncheckedOffsets(struct {
		A, _ float32
		B    complex64
	}{}, [1]inner{})
	require.NoError(t, err)
}

// TestZeroValues return errors.
func TestZeroValues(t *testing.T) {
	dev := open(t)
	v, s := vector[float32](t, dev, 1), stream(t, dev)
	require.ErrorIs(t, new(kernel.Bound).Launch(s), vmm.ErrInvalid)
	require.ErrorIs(t, new(kernel.Bound).Set(0, int32(1)), vmm.ErrInvalid)
	for _, f := range []*kernel.Func{nil, {}} {
		require.Empty(t, f.Name())
		_, err := f.Info()
		require.ErrorIs(t, err, vmm.ErrInvalid)
		_, _, err = f.SuggestBlock(0)
		require.ErrorIs(t, err, vmm.ErrInvalid)
		_, err = f.Occupancy(1, 0)
		require.ErrorIs(t, err, vmm.ErrInvalid)
		require.ErrorIs(t, f.SetMaxDynamicShared(1), vmm.ErrInvalid)
		_, err = f.Bind(kernel.Over(1, 1))
		require.ErrorIs(t, err, vmm.ErrInvalid)
	}
	for _, b := range []*kernel.Builtins{nil, {}} {
		_, err := kernel.SumFloat[float32](b, s, v)
		require.ErrorIs(t, err, vmm.ErrInvalid)
		require.ErrorIs(t, b.FillPattern(s, v, kernel.Pattern{}), vmm.ErrInvalid)
		require.NoError(t, b.Close())
	}
}

// TestBoundConfig: a vector that grows needs more threads.
func TestBoundConfig(t *testing.T) {
	dev := open(t)
	v, s := vector[float32](t, dev), stream(t, dev)
	f := function(t, load(t, dev, kernel.Host{"f": func(th kernel.Threads, x []float32) { x[0] = float32(th.Count()) }}), "f")
	b, err := f.Bind(kernel.Over(v.Len(), 256), v)
	require.NoError(t, err)
	require.NoError(t, b.Launch(s), "over nothing")
	require.NoError(t, v.Append(make([]float32, 1000)...))
	b.SetConfig(kernel.Over(v.Len(), 256))
	require.NoError(t, b.Launch(s))
	require.NoError(t, s.Sync())
	require.EqualValues(t, 1024, contents(t, v)[0])
}
