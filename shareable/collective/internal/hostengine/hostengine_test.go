package hostengine

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cgo/nccl"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// rank is a member with a stream, and memory of 64 KiB.
type rank struct {
	*Member
	t    testing.TB
	dev  *vmm.Device
	st   *vmm.Stream
	mem  *vmm.Range
	base uint64
}

const memorySize = 64 << 10

// reports are what a world reports.
type reports struct {
	mu  sync.Mutex
	all []string
}

func (r *reports) add(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, fmt.Sprintf(format, args...))
}

// take returns the reports so far and forgets them.
func (r *reports) take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	defer func() { r.all = nil }()
	return r.all
}

// group is the members of a world. What is not freed at the end of the test is aborted.
func group(t testing.TB, n int, o Options) []*rank {
	t.Helper()
	if o.Report == nil {
		o.Report = t.Errorf
	}
	w, err := NewWorld(n, o)
	require.NoError(t, err)
	ranks := make([]*rank, n)
	for i := range ranks {
		ranks[i] = newRank(t, w, i, vmmtest.Device(t))
	}
	return ranks
}

func newRank(t testing.TB, w *World, i int, dev *vmm.Device) *rank {
	t.Helper()
	m, err := w.Join(i, dev)
	require.NoError(t, err)
	r := &rank{Member: m, t: t, dev: dev}
	t.Cleanup(func() {
		if !r.Freed() {
			require.NoError(t, r.Abort())
			require.NoError(t, r.Free())
		}
		require.NoError(t, r.st.Close())
		require.NoError(t, r.mem.Close())
	})
	r.st, err = dev.NewStream()
	require.NoError(t, err)
	r.mem, err = dev.NewRange(vmm.RangeOptions{Max: memorySize})
	require.NoError(t, err)
	require.NoError(t, r.mem.Grow(memorySize))
	require.NoError(t, r.mem.SetLen(memorySize))
	r.base = uint64(r.mem.Ptr())
	return r
}

// all is all memory of the rank.
func (r *rank) all() []driver.Span {
	return []driver.Span{{Addr: r.mem.Ptr(), Size: memorySize, Access: driver.AccessReadWrite}}
}

// queue queues calls whose addresses count from the start of the memory.
func (r *rank) queue(calls ...nccl.Call) error {
	for i := range calls {
		calls[i].Src += r.base
		calls[i].Dst += r.base
	}
	st, _, release, err := r.st.Hold()
	if err != nil {
		return err
	}
	defer release()
	return r.Run(st, r.all(), calls)
}

// sync waits until the stream is done or the engine fails.
func (r *rank) sync() error {
	for {
		done, err := r.st.Done()
		if err != nil || done {
			return err
		}
		if err := r.Err(); err != nil {
			return err
		}
		runtime.Gosched()
	}
}

func (r *rank) put(at uint64, b []byte) {
	r.t.Helper()
	require.NoError(r.t, r.dev.CopyIn(r.mem.Ptr()+vmm.Ptr(at), b))
}

func (r *rank) get(at, n uint64) []byte {
	r.t.Helper()
	b := make([]byte, n)
	require.NoError(r.t, r.dev.CopyOut(b, r.mem.Ptr()+vmm.Ptr(at)))
	return b
}

// together runs f for all ranks at once.
func together(ranks []*rank, f func(*rank)) {
	var wg sync.WaitGroup
	for _, r := range ranks {
		wg.Add(1)
		go func() {
			defer wg.Done()
			f(r)
		}()
	}
	wg.Wait()
}

// end closes and frees the group.
func end(t testing.TB, ranks []*rank) {
	t.Helper()
	errs := make([]error, len(ranks))
	together(ranks, func(r *rank) {
		errs[r.rank] = errors.Join(r.Close(), r.Free())
	})
	require.NoError(t, errors.Join(errs...))
}

var allKinds = []nccl.Kind{
	nccl.Int8, nccl.Uint8, nccl.Int32, nccl.Uint32, nccl.Int64, nccl.Uint64,
	nccl.Float16, nccl.Float32, nccl.Float64, nccl.BFloat16, nccl.Float8E4M3, nccl.Float8E5M2,
}

var allReductions = []nccl.Reduction{nccl.Sum, nccl.Product, nccl.Max, nccl.Min, nccl.Mean}

// encoded is small whole numbers as elements of a kind, each of which has all of them exactly.
func encoded(k nccl.Kind, xs ...int) (b []byte) {
	le := binary.LittleEndian
	for _, x := range xs {
		switch k {
		case nccl.Int8, nccl.Uint8:
			b = append(b, byte(x))
		case nccl.Int32, nccl.Uint32:
			b = le.AppendUint32(b, uint32(x))
		case nccl.Int64, nccl.Uint64:
			b = le.AppendUint64(b, uint64(x))
		case nccl.Float32:
			b = le.AppendUint32(b, math.Float32bits(float32(x)))
		case nccl.Float64:
			b = le.AppendUint64(b, math.Float64bits(float64(x)))
		case nccl.Float16: // 1 to 16 as bits: an exponent and a mantissa
			b = le.AppendUint16(b, float16.encode(float32(x)))
		case nccl.BFloat16:
			b = le.AppendUint16(b, uint16(math.Float32bits(float32(x))>>16))
		case nccl.Float8E4M3:
			b = append(b, byte(float8e4m3.encode(float32(x))))
		case nccl.Float8E5M2:
			b = append(b, byte(float8e5m2.encode(float32(x))))
		}
	}
	return b
}

// reduced is the reduction of xs.
func reduced(red nccl.Reduction, xs []int) int {
	x := xs[0]
	for _, y := range xs[1:] {
		switch red {
		case nccl.Product:
			x *= y
		case nccl.Max:
			x = max(x, y)
		case nccl.Min:
			x = min(x, y)
		default:
			x += y
		}
	}
	if red == nccl.Mean {
		x /= len(xs)
	}
	return x
}

// TestReductions: all kinds and reductions, with roots and parts, beside each other and in
// place. Of kinds with few bits only results that they can have are chosen.
func TestReductions(t *testing.T) {
	const n = 2
	for _, size := range []int{1, 2, 4} {
		ranks := group(t, size, Options{})
		for _, k := range allKinds {
			for _, red := range allReductions {
				e := k.Size()
				value := func(rank, i int) int { return 1 + (rank+i)%2 } // the sum of 4 is 6
				if red == nccl.Mean {
					value = func(_, i int) int { return 2 + i%2 }
				}
				want := make([]int, n*size)
				for i := range want {
					xs := make([]int, size)
					for rank := range xs {
						xs[rank] = value(rank, i)
					}
					want[i] = reduced(red, xs)
				}
				root := int(e) % size
				const away = 4096
				together(ranks, func(r *rank) {
					mine := make([]int, n*size)
					for i := range mine {
						mine[i] = value(r.rank, i)
					}
					b := encoded(k, mine...)
					for i := range uint64(6) {
						r.put(i*away, b)
						r.put((6+i)*away, make([]byte, len(b)))
					}
					all, part := uint64(n*size), uint64(n)
					call := func(op nccl.Operation, src, dst, count uint64) nccl.Call {
						return nccl.Call{Operation: op, Kind: k, Reduction: red, Peer: root, Src: src * away, Dst: dst * away, Count: count}
					}
					inPlace := call(nccl.ReduceScatter, 3, 3, part)
					inPlace.Dst += uint64(r.rank) * n * e
					if err := r.queue(call(nccl.AllReduce, 0, 6, all), call(nccl.AllReduce, 1, 1, all),
						call(nccl.ReduceScatter, 2, 7, part), inPlace, call(nccl.Reduce, 4, 8, all), call(nccl.Reduce, 5, 5, all)); err != nil {
						t.Errorf("rank %d: %v", r.rank, err)
					}
					if err := r.sync(); err != nil {
						t.Errorf("rank %d: %v", r.rank, err)
					}
				})
				for _, r := range ranks {
					what := fmt.Sprintf("%d ranks, %v, %v, rank %d", size, k, red, r.rank)
					all, part := encoded(k, want...), encoded(k, want[r.rank*n:(r.rank+1)*n]...)
					require.Equal(t, all, r.get(6*away, uint64(len(all))), what)
					require.Equal(t, all, r.get(1*away, uint64(len(all))), what)
					require.Equal(t, part, r.get(7*away, uint64(len(part))), what)
					require.Equal(t, part, r.get(3*away+uint64(r.rank*len(part)), uint64(len(part))), what)
					if r.rank == root {
						require.Equal(t, all, r.get(8*away, uint64(len(all))), what)
						require.Equal(t, all, r.get(5*away, uint64(len(all))), what)
					} else {
						require.Equal(t, make([]byte, len(all)), r.get(8*away, uint64(len(all))), what)
					}
				}
			}
		}
		end(t, ranks)
	}
}

// TestIntegersWrapAndMeansAreTruncated.
func TestIntegersWrapAndMeansAreTruncated(t *testing.T) {
	for _, c := range []struct {
		kind nccl.Kind
		red  nccl.Reduction
		xs   []int
		want int
	}{
		{nccl.Int8, nccl.Sum, []int{100, 100}, -56},
		{nccl.Uint8, nccl.Sum, []int{200, 100}, 44},
		{nccl.Int8, nccl.Mean, []int{-3, 0}, -1},
		{nccl.Int32, nccl.Mean, []int{-7, 0}, -3},
		{nccl.Int8, nccl.Min, []int{-1, 1}, -1},
		{nccl.Uint8, nccl.Min, []int{255, 1}, 1},
		{nccl.Int64, nccl.Max, []int{-1, 1}, 1},
		{nccl.Uint64, nccl.Max, []int{-1, 1}, -1},
	} {
		dst := make([]byte, c.kind.Size())
		reduce([][]byte{dst}, [][]byte{encoded(c.kind, c.xs[0]), encoded(c.kind, c.xs[1])}, c.kind, c.red)
		require.Equal(t, encoded(c.kind, c.want), dst, "%v %v %v", c.kind, c.red, c.xs)
	}
}

// TestFormats: every number is what it was after it was made a float32 and back, and what is
// between two goes to the nearer, or to the even one.
func TestFormats(t *testing.T) {
	for name, f := range map[string]format{"float16": float16, "bfloat16": bfloat16, "e4m3": float8e4m3, "e5m2": float8e5m2} {
		bits := 1 + f.exponent + f.mantissa
		for x := range 1 << bits {
			v := f.decode(uint16(x))
			if v != v {
				got := f.decode(f.encode(v))
				require.True(t, got != got, "%s %#x", name, x)
				continue
			}
			if f.saturates && math.IsInf(float64(v), 0) {
				continue
			}
			require.Equal(t, uint16(x), f.encode(v), "%s %#x is %v", name, x, v)
		}
		for x := range 1<<(bits-1) - 2 {
			a, b := float64(f.decode(uint16(x))), float64(f.decode(uint16(x+1)))
			if math.IsInf(b, 0) || b != b {
				break
			}
			middle := float32((a + b) / 2)
			require.Equal(t, uint16(x+x&1), f.encode(middle), "%s between %#x and the next", name, x)
			require.Equal(t, uint16(x), f.encode(math.Nextafter32(middle, 0)), "%s", name)
			require.Equal(t, uint16(x+1), f.encode(math.Nextafter32(middle, float32(b))), "%s", name)
		}
	}
	for _, c := range []struct {
		f    format
		x    float32
		bits uint16
	}{
		{float16, 1, 0x3c00}, {float16, 65504, 0x7bff}, {float16, 65520, 0x7c00}, {float16, -2, 0xc000},
		{float16, float32(math.Ldexp(1, -24)), 1}, {float16, float32(math.Ldexp(1, -25)), 0},
		{bfloat16, 1, 0x3f80}, {bfloat16, math.MaxFloat32, 0x7f80},
		{float8e4m3, 1, 0x38}, {float8e4m3, 448, 0x7e}, {float8e4m3, 1e9, 0x7e}, {float8e4m3, float32(math.Inf(-1)), 0xfe},
		{float8e5m2, 1, 0x3c}, {float8e5m2, 57344, 0x7b}, {float8e5m2, 1e9, 0x7b},
	} {
		require.Equal(t, c.bits, c.f.encode(c.x), "%v", c.x)
	}
	require.Equal(t, uint16(0x7f), float8e4m3.encode(float32(math.NaN()))&0x7f)
}
