package kernel_test

import (
	"bytes"
	"cmp"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/growable"
	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/kernel"
)

// raw is the built-in kernels as they are, on the host or on a GPU.
type raw struct {
	t   *testing.T
	dev *vmm.Device
	mod *kernel.Module
	s   *vmm.Stream
}

func newRaw(t *testing.T) raw {
	t.Helper()
	dev := open(t)
	m, err := kernel.Load(dev, kernel.Code{Image: kernel.BuiltinPTX(), Host: kernel.HostBuiltins()})
	return raw{t, dev, ends(t, m, err), stream(t, dev)}
}

// run runs a kernel with that many blocks.
func (r raw) run(name string, blocks uint64, args ...any) {
	r.t.Helper()
	require.NoError(r.t, function(r.t, r.mod, name).Launch(r.s, kernel.Over(blocks*kernel.BuiltinThreads, kernel.BuiltinThreads), args...), name)
	require.NoError(r.t, r.s.Sync(), name)
}

// mixed is n numbers that look random. Of floats every fifth is a NaN where nan says so.
func mixed[T kernel.Number](n int, nan bool) []T {
	v := make([]T, n)
	for i := range v {
		x := int64(kernel.Pattern{Seed: 7}.Word(uint64(i))>>33) - 1<<30 //nolint:gosec // 31 bits
		v[i] = T(x)
		if nan && i%5 == 2 {
			v[i] = T(math.NaN())
		}
	}
	return v
}

func TestBuiltinPattern(t *testing.T) {
	r := newRaw(t)
	p := kernel.Pattern{Seed: 42}
	for _, size := range []uint64{0, 1, 7, 8, 9, 4096, 16384, 100003} {
		for _, off := range []uint64{0, 8} {
			v := vector(t, r.dev, bytes.Repeat([]byte{0xee}, int(off+size+64))...)
			want := contents(t, v)
			p.Fill(want[off : off+size])
			at := v.Ptr() + vmm.Ptr(off)
			r.run("cuvmm_fill_pattern", 3, at, size, p.Seed)
			require.Equal(t, want, contents(t, v), "%d bytes at %d", size, off)

			result := vector(t, r.dev, uint64(math.MaxUint64), 0)
			r.run("cuvmm_verify_pattern", 5, at, size, p.Seed, result.Ptr())
			require.Equal(t, []uint64{math.MaxUint64, 0}, contents(t, result))
			if size == 0 {
				continue
			}
			for _, bad := range []uint64{size - 1, size / 2, 0} { // each is added to the last
				require.NoError(t, v.Set(int(off+bad), want[off+bad]^0x10))
			}
			count := uint64(len(slices.Compact([]uint64{0, size / 2, size - 1})))
			r.run("cuvmm_verify_pattern", 5, at, size, p.Seed, result.Ptr())
			require.Equal(t, []uint64{0, count}, contents(t, result))
			require.NoError(t, v.Set(int(off), want[off]))
			require.NoError(t, result.Set(0, math.MaxUint64))
			r.run("cuvmm_verify_pattern", 5, at, size, p.Seed, result.Ptr())
			if size > 1 {
				require.Equal(t, []uint64{size / 2, 2*count - 1}, contents(t, result), "the count goes on")
				require.NoError(t, result.Set(0, 0))
				r.run("cuvmm_verify_pattern", 5, at, size, p.Seed, result.Ptr())
				require.Zero(t, contents(t, result)[0], "something earlier was wrong before")
			}
		}
	}
}

func counted[T kernel.Number](t *testing.T, r raw, name string, start, step T, want func(i uint64) T) {
	t.Helper()
	for _, n := range []uint64{0, 1, 5000} {
		for _, off := range []int{0, 1, 3} {
			v := vector(t, r.dev, mixed[T](int(n)+off+5, false)...)
			expect := contents(t, v)
			for i := range n {
				expect[uint64(off)+i] = want(i)
			}
			r.run("cuvmm_iota_"+name, 3, v.PtrAt(off), n, start, step)
			require.Equal(t, expect, contents(t, v), "%s: %d from %d", name, n, off)
		}
	}
}

func TestBuiltinIota(t *testing.T) {
	r := newRaw(t)
	counted(t, r, "u32", math.MaxUint32-10, 3, func(i uint64) uint32 { return uint32(math.MaxUint32 - 10 + 3*i) }) //nolint:gosec // wraps around
	counted(t, r, "u64", 7, math.MaxUint64, func(i uint64) uint64 { return 7 - i })
	counted(t, r, "f32", 0.1, 0.7, func(i uint64) float32 {
		return float32(math.FMA(float64(i), float64(float32(0.7)), float64(float32(0.1))))
	})
	counted(t, r, "f64", 0.1, -0.7, func(i uint64) float64 { return math.FMA(float64(i), -0.7, 0.1) })
}

// reduced checks sum, minimum and maximum. The sums are of whole numbers, which doubles add
// exactly in any order.
func reduced[T, S kernel.Number](t *testing.T, r raw, name string, nan bool) {
	t.Helper()
	scratch := vector(t, r.dev, make([]uint64, 64)...)
	ticket, partials := scratch.Ptr()+64, scratch.Ptr()+128
	for _, n := range []int{1, 2, 255, 4097, 50003} {
		for _, off := range []int{0, 1, 3} {
			all := mixed[T](n+off, false)
			if nan {
				all[off+n/2] = T(math.NaN())
			}
			v := vector(t, r.dev, all...)
			all = all[off:]
			var sum S
			for _, x := range all {
				sum += S(x)
			}
			least, greatest := slices.Min(all), slices.Max(all) // a NaN is both
			at := v.PtrAt(off)
			for _, blocks := range []uint64{1, 3, 40} {
				got := func(op string) vmm.Ptr {
					r.run("cuvmm_"+op+"_"+name, blocks, at, uint64(n), partials, ticket, scratch.Ptr())
					return scratch.Ptr()
				}
				require.Equal(t, fmt.Sprint(sum), fmt.Sprint(read[S](t, r, got("sum"))), "sum of %d %s", n, name)
				require.Equal(t, fmt.Sprint(least), fmt.Sprint(read[T](t, r, got("min"))), "min of %d %s", n, name)
				require.Equal(t, fmt.Sprint(greatest), fmt.Sprint(read[T](t, r, got("max"))), "max of %d %s", n, name)
			}
		}
	}
}

// read is the element at p.
func read[T any](t *testing.T, r raw, p vmm.Ptr) T {
	t.Helper()
	v := vector(t, r.dev, make([]T, 1)...)
	r.run("cuvmm_copy", 1, v.Ptr(), p, argOf(v).Stride)
	return contents(t, v)[0]
}

func TestBuiltinReductions(t *testing.T) {
	r := newRaw(t)
	reduced[int32, int64](t, r, "i32", false)
	reduced[uint32, uint64](t, r, "u32", false)
	reduced[int64, int64](t, r, "i64", false)
	reduced[uint64, uint64](t, r, "u64", false)
	for _, nan := range []bool{false, true} {
		reduced[float32, float64](t, r, "f32", nan)
		reduced[float64, float64](t, r, "f64", nan)
	}
}

// Words of a cursor.
const (
	reserved   = 0
	written    = 1
	unfinished = 2
	wrongSize  = 3
	capacity   = 16
	data       = 17
	items      = 18
	limit      = 19
	todo       = 20
	todoCount  = 21
	elemSize   = 22
)

// appended has launch append want, in any order, into memory that has too little room at
// first, as cuvmm_append.cuh says that it goes on.
func appended[T kernel.Number](r raw, what string, want []T, tiles uint64, launch func(c *growable.Vector[uint64], items uint64)) {
	t := r.t
	t.Helper()
	const poison = 99
	n := uint64(len(want))
	for _, first := range []uint64{n, n / 2, 0} {
		out := vector(t, r.dev, slices.Repeat([]T{poison}, len(want)+100)...)
		lists := [2]*growable.Vector[uint64]{vector(t, r.dev, make([]uint64, tiles)...), vector(t, r.dev, make([]uint64, tiles)...)}
		words := [23]uint64{capacity: first, data: uint64(out.Ptr()), limit: tiles, elemSize: argOf(out).Stride}
		length, todoItems := uint64(0), tiles
		for pass := 0; ; pass++ {
			words[items] = uint64(lists[pass%2].Ptr())
			c := vector(t, r.dev, words[:]...)
			launch(c, todoItems)
			got := contents(t, c)
			require.Equal(t, n, got[reserved], "%s: what is needed is counted", what)
			fit := got[reserved] <= got[capacity]
			require.Equal(t, fit, got[unfinished] == 0, what)
			now := got[reserved]
			if !fit {
				now = got[written]
			}
			require.LessOrEqual(t, now, got[capacity], what)
			require.GreaterOrEqual(t, now, length, what)
			length = now
			for _, x := range contents(t, out)[length:] {
				if x != T(poison) { // require takes long even for what is right
					require.Equal(t, T(poison), x, "%s: nothing is written beyond %d", what, length)
				}
			}
			if fit {
				break
			}
			todoItems = got[unfinished]
			words = [23]uint64{
				reserved: length, capacity: n, data: words[data], limit: tiles,
				todo: uint64(lists[pass%2].Ptr()), todoCount: todoItems, elemSize: words[elemSize],
			}
			if pass == 0 {
				words[capacity] = length + (n-length)/2
			}
			require.Less(t, pass, 2, what)
		}
		require.Equal(t, n, length, what)
		all := contents(t, out)[:n]
		slices.Sort(all)
		slices.Sort(want)
		if !slices.Equal(want, all) { // of which NaN is one
			require.Equal(t, fmt.Sprint(want), fmt.Sprint(all), what)
		}
	}
}

func tileOf[T kernel.Number](v *growable.Vector[T]) uint64 {
	if argOf(v).Stride == 4 {
		return kernel.CompactTile32
	}
	return kernel.CompactTile64
}

// kept is whether v is to be kept, as naively as can be.
func kept[T kernel.Number](v, value T, keep kernel.Compare) bool {
	return keep&kernel.Less != 0 && v < value || keep&kernel.Equal != 0 && v == value ||
		keep&kernel.Greater != 0 && v > value || keep&kernel.Unordered != 0 && !(v <= value) && !(v > value)
}

func compacted[T kernel.Number](t *testing.T, r raw, name string, value T, keep kernel.Compare) {
	t.Helper()
	for _, n := range []int{1, 4096, 30011} {
		for _, off := range []int{0, 1} {
			if off == n {
				continue
			}
			src := vector(t, r.dev, mixed[T](n, name[0] == 'f')...)
			var want []T
			for _, x := range contents(t, src)[off:] {
				if kept(x, value, keep) {
					want = append(want, x)
				}
			}
			count := uint64(n - off)
			what := fmt.Sprintf("%s of %d from %d, keep %d", name, n, off, keep)
			appended(r, what, want, (count+tileOf(src)-1)/tileOf(src), func(c *growable.Vector[uint64], items uint64) {
				r.run("cuvmm_compact_"+name, items, c.Ptr(), src.PtrAt(off), count, value, uint32(keep))
			})
		}
	}
}

func TestBuiltinCompact(t *testing.T) {
	r := newRaw(t)
	comparisons := []kernel.Compare{0, kernel.Less, kernel.GreaterEqual, kernel.NotEqual, kernel.LessEqual | kernel.Unordered}
	for _, keep := range testgate.Effort([]kernel.Compare{0, kernel.Less}, comparisons, comparisons) {
		compacted(t, r, "i32", int32(0), keep)
		compacted(t, r, "u32", uint32(1<<29), keep)
		compacted(t, r, "i64", int64(0), keep)
		compacted(t, r, "u64", uint64(1<<29), keep)
		compacted(t, r, "f32", float32(0), keep)
		compacted(t, r, "f64", 0.5, keep)
	}
	compacted(t, r, "f32", float32(math.NaN()), kernel.Unordered)
}

func masked[T uint32 | uint64](t *testing.T, r raw, name string) {
	t.Helper()
	const n = 30011
	src := vector(t, r.dev, mixed[T](n, false)...)
	flags := make([]byte, n+1)
	for i := range flags {
		flags[i] = byte(kernel.Pattern{}.Word(uint64(i)) % 3)
	}
	mask := vector(t, r.dev, flags...)
	for off := range 2 {
		for shift := range 2 {
			var want []T
			for i, x := range contents(t, src)[off:] {
				if flags[i+shift] != 0 {
					want = append(want, x)
				}
			}
			count := uint64(n - off)
			appended(r, "mask "+name, want, (count+tileOf(src)-1)/tileOf(src), func(c *growable.Vector[uint64], items uint64) {
				r.run("cuvmm_compact_mask_"+name, items, c.Ptr(), src.PtrAt(off), mask.Ptr()+vmm.Ptr(shift), count)
			})
		}
	}
}

func TestBuiltinCompactMask(t *testing.T) {
	r := newRaw(t)
	masked[uint32](t, r, "32")
	masked[uint64](t, r, "64")
}

// Without the check of room elements lie where there is none.
func TestBuiltinCompactNeedsItsCheck(t *testing.T) {
	if onCUDA {
		t.Skip("the hook is the host's: bench.cu has one for the device")
	}
	r := newRaw(t)
	for _, off := range []bool{false, true} {
		kernel.SetNoCapacityCheck(off)
		t.Cleanup(func() { kernel.SetNoCapacityCheck(false) })
		out, src := vector(t, r.dev, make([]int32, 10)...), vector(t, r.dev, int32(1), 2, 3)
		list := vector(t, r.dev, uint64(0))
		c := vector(t, r.dev, []uint64{capacity: 2, data: uint64(out.Ptr()), items: uint64(list.Ptr()), limit: 1, elemSize: 4}...)
		r.run("cuvmm_compact_i32", 1, c.Ptr(), src.Ptr(), uint64(3), int32(0), uint32(kernel.Greater))
		require.Equal(t, off, contents(t, out)[2] == 3, "the third of two")
		require.Equal(t, off, contents(t, c)[unfinished] == 0)
	}
}

func movedRows[I uint32 | uint64](t *testing.T, r raw, name string, unit uint64) {
	t.Helper()
	const n, rows = 100, 150
	for _, row := range []uint64{1, 3, 40, 300} {
		pitch := row + 3
		src := vector(t, r.dev, mixed[uint64](int(rows*pitch*unit+7)/8, false)...)
		dst := vector(t, r.dev, make([]uint64, src.Len())...)
		idx := make([]I, n)
		for i := range idx {
			idx[i] = I(i * 7 % rows)
		}
		idx[3], idx[n-1] = rows, ^I(0)
		by, bad := vector(t, r.dev, idx...), vector(t, r.dev, uint64(5))
		from := raws(contents(t, src))
		for _, op := range []string{"gather", "scatter"} {
			_, err := dst.WriteAt(make([]uint64, dst.Len()), 0)
			require.NoError(t, err)
			require.NoError(t, bad.Set(0, 5))
			want := make([]byte, len(from))
			for i, j := range idx {
				to, at := uint64(i), uint64(j)
				if op == "scatter" {
					to, at = at, to
				}
				if j < rows {
					copy(want[to*pitch*unit:][:row*unit], from[at*pitch*unit:])
				}
			}
			what := fmt.Sprintf("%s_%d_%s", op, unit, name)
			r.run("cuvmm_"+what, 3, dst.Ptr(), src.Ptr(), by.Ptr(), uint64(n), row, pitch, pitch, uint64(rows), bad.Ptr())
			require.True(t, bytes.Equal(want, raws(contents(t, dst))), "%s: rows of %d", what, row)
			require.Equal(t, []uint64{7}, contents(t, bad), what)
		}
	}
}

// raws is the bytes of words in little-endian order.
func raws(words []uint64) []byte {
	b := make([]byte, 0, 8*len(words))
	for _, w := range words {
		for i := range 8 {
			b = append(b, byte(w>>(8*i)))
		}
	}
	return b
}

func TestBuiltinRows(t *testing.T) {
	r := newRaw(t)
	for _, unit := range []uint64{1, 4, 8, 16} {
		movedRows[uint32](t, r, "u32", unit)
		movedRows[uint64](t, r, "u64", unit)
	}
}

func TestBuiltinCopy(t *testing.T) {
	r := newRaw(t)
	src := make([]byte, 40000)
	kernel.Pattern{Seed: 1}.Fill(src)
	from := vector(t, r.dev, src...)
	to := vector(t, r.dev, src...)
	for _, c := range []struct{ to, from, n int }{
		{0, 0, 0},
		{0, 0, 39000},
		{1, 1, 39000},
		{8, 0, 17000},
		{4, 8, 16384},
		{15, 3, 255},
		{3, 0, 1},
		{12, 12, 2},
	} {
		_, err := to.WriteAt(make([]byte, len(src)), 0)
		require.NoError(t, err)
		r.run("cuvmm_copy", 3, to.Ptr()+vmm.Ptr(c.to), from.Ptr()+vmm.Ptr(c.from), uint64(c.n))
		want := make([]byte, len(src))
		copy(want[c.to:], src[c.from:][:c.n])
		require.True(t, bytes.Equal(want, contents(t, to)), "%v", c)
	}
}

// What is stored late is not there while the kernel runs.
func TestBuiltinDelayStore(t *testing.T) {
	r := newRaw(t)
	v := vector(t, r.dev, uint32(1))
	r.run("cuvmm_delay_store", 1, uint64(1e6), v.Ptr(), uint32(77))
	require.Equal(t, []uint32{77}, contents(t, v))
	r.run("cuvmm_wait_clock", 1, uint64(1))
}

// Kernels and Go functions have the same names, and the parameters lie alike.
func TestBuiltinsMatchTheirKernels(t *testing.T) {
	kernels := kernel.PTXParams(kernel.BuiltinPTX())
	functions := kernel.HostBuiltins()
	var names []string
	for name, f := range functions {
		names = append(names, name)
		params, err := kernel.HostParams(f)
		require.NoError(t, err, name)
		require.Equal(t, kernels[name], params, name)
	}
	var want []string
	for name := range kernels {
		want = append(want, name)
	}
	slices.SortFunc(names, cmp.Compare[string])
	slices.Sort(want)
	require.Equal(t, want, names)
}
