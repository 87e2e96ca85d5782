//go:build cgo && linux

package cuda_test

import (
	"encoding/binary"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/exp/stats"

	"github.com/cuvmm/cuvmm/growable"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/kernel"
)

// A program appends rows to a table, and searches it after each step. The table grows in place, or as Expand of
// cuvs/go does it: it allocates, copies old rows and new ones, and frees.
const rowWidth = 768

// nearest finds the row of the largest inner product with the query: a warp for each row. The result is that
// product, which is no negative number, and the complement of the row's number.
const nearestCode = `
typedef unsigned long long u64;

extern "C" __global__ void nearest(const float *rows, u64 n, const float *query, u64, u64 *best)
{
	u64 warps = (u64)gridDim.x * blockDim.x / 32, lane = threadIdx.x % 32;
	for (u64 i = ((u64)blockIdx.x * blockDim.x + threadIdx.x) / 32; i < n; i += warps) {
		const float4 *row = (const float4 *)(rows + i * 768);
		float sum = 0;
		for (u64 j = lane; j < 768 / 4; j += 32) {
			float4 r = row[j], q = ((const float4 *)query)[j];
			sum += r.x * q.x + r.y * q.y + r.z * q.z + r.w * q.w;
		}
		for (int k = 16; k > 0; k /= 2)
			sum += __shfl_down_sync(~0u, sum, k);
		if (lane == 0 && sum > 0)
			atomicMax(best, (u64)__float_as_uint(sum) << 32 | (unsigned)~i);
	}
}
`

// rowTable is the rows that are appended step by step, and what a search must find after each of them.
type rowTable struct {
	*rivals
	step, steps int
	rows        []float32 // those of one step; first elements differ by step
	base        []float32 // each row's inner product without its first element
	best        uint64

	search *kernel.Func // nil: none
	query  *growable.Vector[float32]
	result *growable.Vector[uint64]
	s      *vmm.Stream
}

func (v *rivals) rowTable(step, steps int) *rowTable {
	w := &rowTable{rivals: v, step: step, steps: steps, rows: make([]float32, step*rowWidth), base: make([]float32, step)}
	for i := range w.rows { // small whole numbers, so that sums are exact in any order
		w.rows[i] = float32((i*7+i/rowWidth)%5 - 2)
	}
	for i := range w.base {
		for j := 1; j < rowWidth; j++ {
			w.base[i] += w.rows[i*rowWidth+j] * w.queryAt(j)
		}
	}
	return w
}

func (w *rowTable) queryAt(j int) float32 { return float32(j%3 - 1 + 2*(1-min(j, 1))) }

// searching adds the search to what is done after each step.
func (w *rowTable) searching() {
	mod, err := kernel.Load(w.dev, kernel.Code{CUDA: nearestCode})
	require.NoError(w, err)
	w.Cleanup(func() { require.NoError(w, mod.Close()) })
	w.search, err = mod.Func("nearest")
	require.NoError(w, err)
	w.query, err = growable.New[float32](w.dev, growable.Options{MaxLen: rowWidth})
	require.NoError(w, err)
	w.Cleanup(func() { require.NoError(w, w.query.Close()) })
	w.result, err = growable.New[uint64](w.dev, growable.Options{MaxLen: 1})
	require.NoError(w, err)
	w.Cleanup(func() { require.NoError(w, w.result.Close()) })
	for j := range rowWidth {
		require.NoError(w, w.query.Append(w.queryAt(j)))
	}
	require.NoError(w, w.result.Append(0))
	w.s, err = w.dev.NewStream()
	require.NoError(w, err)
	w.Cleanup(func() { require.NoError(w, w.s.Close()) })
}

// next makes the rows of a step.
func (w *rowTable) next(step int) {
	if step == 0 {
		w.best = 0
	}
	for i := range w.step {
		at := step*w.step + i
		first := float32(at * 7919 % 100_003 / 16)
		w.rows[i*rowWidth] = first
		if product := w.base[i] + first*w.queryAt(0); product > 0 {
			w.best = max(w.best, uint64(math.Float32bits(product))<<32|uint64(^uint32(at)))
		}
	}
}

// find searches n rows at p, and checks what is found.
func (w *rowTable) find(p vmm.Ptr, n int) (took time.Duration) {
	if w.search == nil {
		return 0
	}
	var found [1]uint64
	_, err := w.result.WriteAt(found[:], 0)
	require.NoError(w, err)
	took = w.timed(func() error {
		if err := w.search.Launch(w.s, kernel.Config{Grid: vmm.Dim{X: 132 * 8}, Block: vmm.Dim{X: 256}},
			p, uint64(n), w.query, kernel.Pointer(w.result)); err != nil {
			return err
		}
		return w.s.Sync()
	})
	_, err = w.result.ReadAt(found[:], 0)
	require.NoError(w, err)
	require.Equal(w, w.best, found[0], "after %d rows", n)
	return took
}

// rowRun is what one table took.
type rowRun struct {
	grow, search time.Duration
	moves        int
	peak         float64 // bytes over those of the rows
}

// ours appends to Rows. They know nothing of how many rows come.
func (w *rowTable) ours() (run rowRun) {
	rows, err := growable.NewRows[float32](w.dev, rowWidth, growable.RowsOptions{})
	require.NoError(w, err)
	defer func() { require.NoError(w, rows.Close()) }()
	w.dev.ResetPeaks()
	before := w.dev.Stats().Committed
	p := rows.Ptr()
	for i := range w.steps {
		w.next(i)
		run.grow += w.timed(func() error { return rows.Append(w.rows...) })
		if rows.Ptr() != p {
			p, run.moves = rows.Ptr(), run.moves+1
		}
		run.search += w.find(p, rows.Len())
	}
	run.peak = float64(w.dev.Stats().PeakCommitted-before) / float64(w.bytes())
	return run
}

// c expands memory by the driver's calls.
func (w *rowTable) c() (run rowRun) {
	var p, peak, n uint64
	more := make([]byte, 4*len(w.rows))
	for i := range w.steps {
		w.next(i)
		_, err := binary.Encode(more, binary.NativeEndian, w.rows)
		require.NoError(w, err)
		moved, took, err := w.loop.Expand(p, n, more)
		require.NoError(w, err)
		run.grow += took
		peak = max(peak, n+n+uint64(len(more)))
		if moved != p && i > 0 {
			run.moves++
		}
		p, n = moved, n+uint64(len(more))
		run.search += w.find(vmm.Ptr(p), w.step*(i+1))
	}
	require.NoError(w, w.loop.FreePlain(p))
	run.peak = float64(peak) / float64(w.bytes())
	return run
}

func (w *rowTable) bytes() int { return 4 * rowWidth * w.step * w.steps }

// compare runs both ways in turn.
func (w *rowTable) compare(rounds int) {
	var ratios []float64
	for range rounds {
		ours := w.ours()
		c := w.c()
		w.Logf("%d rows of %d float32 by %d: Append %v, search %v, %d moves, peak %.3f of the data; "+
			"Expand's calls in C %v, search %v, %d moves, peak %.3f", w.step*w.steps, rowWidth, w.step,
			ours.grow, ours.search, ours.moves, ours.peak, c.grow, c.search, c.moves, c.peak)
		require.Zero(w, ours.moves)
		ratios = append(ratios, float64(ours.grow)/float64(c.grow))
	}
	w.Logf("Append takes %.4f times as long (median of %d)", stats.Quantiles(ratios, 0.5)[0], rounds)
}

// TestRowsAgainstExpand appends 10 million rows, on a device that has room for them and for a copy.
func TestRowsAgainstExpand(t *testing.T) {
	v := newRivals(t, device(t), "libcuda.so.1")
	const step = 10_000
	w := v.rowTable(step, int(min(v.free()/4/(4*rowWidth*step), 1000)))
	w.searching()
	w.compare(3)
}

func TestRowsAgainstExpandOnFake(t *testing.T) {
	v, _ := rivalsOnFake(t)
	v.rowTable(100, 20).compare(2)
}
