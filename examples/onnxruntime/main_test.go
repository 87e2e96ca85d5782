package main

import (
	"cmp"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	ort "github.com/yalue/onnxruntime_go"

	"github.com/cuvmm/cuvmm/growable"
	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/vmm"
)

// A process loads ONNX Runtime once, and all tests use it.
var started = sync.OnceValue(func() error { return start(context.Background()) })

func TestMain(m *testing.M) {
	code := m.Run()
	if ort.IsInitialized() {
		if err := ort.DestroyEnvironment(); err != nil {
			panic(err)
		}
	}
	os.Exit(code)
}

func needsRuntime(t *testing.T) {
	t.Helper()
	testgate.Require(t, "onnxruntime", started())
}

// table is empty rows on host memory in pieces of a page, and a search of them.
func table(t *testing.T) (*growable.Rows[float32], *Search) {
	t.Helper()
	needsRuntime(t)
	dev, err := vmm.Open("host?page=4K")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, dev.Close()) })
	rows, err := growable.NewRows[float32](dev, width, growable.RowsOptions{MaxRows: 1 << 20})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, rows.Close()) })
	search, err := NewSearch(rows)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, search.Close()) })
	return rows, search
}

// top is what Search.Top has to return, in plain Go. Of equal products the first comes first, as
// ONNX says.
func top(all, query []float32, k int) (indices []int64, scores []float32) {
	products := make([]float32, len(all)/width)
	for i := range products {
		for j, x := range all[i*width : (i+1)*width] {
			products[i] += x * query[j]
		}
		indices = append(indices, int64(i))
	}
	slices.SortStableFunc(indices, func(a, b int64) int { return cmp.Compare(products[b], products[a]) })
	indices = indices[:min(k, len(indices))]
	for _, i := range indices {
		scores = append(scores, products[i])
	}
	return indices, scores
}

func TestRun(t *testing.T) {
	needsRuntime(t)
	var out strings.Builder
	require.NoError(t, run(&out))
	require.Regexp(t, `^( *\d+ rows, the same address: true, best: row \d+, product \d+\n){4}$`, out.String())
}

// ONNX Runtime's telemetry writes files to the user's cache when it starts.
func TestNoTelemetry(t *testing.T) {
	path, err := library(t.Context())
	testgate.Require(t, "onnxruntime", err)
	if !testgate.InChild(t) {
		return
	}
	cache := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", cache)
	require.NoError(t, load(path))
	require.NoError(t, run(io.Discard))
	left, err := os.ReadDir(cache)
	require.NoError(t, err)
	require.Empty(t, left)
}

// The model runs over all rows so far, at an address that stays.
func TestSearchFollowsGrowth(t *testing.T) {
	rows, search := table(t)
	random := rand.New(rand.NewPCG(3, 4))
	query, address := numbers(random, 1), rows.Ptr()
	indices, scores, err := search.Top(query, 3)
	require.NoError(t, err)
	require.Empty(t, indices)
	require.Empty(t, scores)

	var all []float32
	for _, n := range []int{1, 1, 3, 100, 1000, 20_000} {
		more := numbers(random, n)
		all = append(all, more...)
		require.NoError(t, rows.Append(more...))
		indices, scores, err := search.Top(query, 10)
		require.NoError(t, err)
		wantIndices, wantScores := top(all, query, 10)
		require.Equal(t, wantIndices, indices)
		require.Equal(t, wantScores, scores)
		require.Equal(t, address, rows.Ptr())
	}
}

// A tensor is the rows and no copy: its data begin at their address, and a run sees what was
// written to them after the tensor was made.
func TestTensorIsTheRows(t *testing.T) {
	rows, search := table(t)
	random := rand.New(rand.NewPCG(5, 6))
	query := numbers(random, 1)
	require.NoError(t, rows.Append(numbers(random, 1000)...))
	tensor, release, err := view(rows, 1000)
	require.NoError(t, err)
	defer func() { require.NoError(t, release()) }()
	require.Equal(t, uintptr(rows.Ptr()), reflect.ValueOf(tensor.GetData()).Pointer())

	for _, i := range []int{999, 0, 500} {
		best := make([]float32, width)
		for j := range best {
			best[j] = 1000 * query[j]
		}
		_, err := rows.WriteAt(best, i)
		require.NoError(t, err)
		indices, _, err := search.run(tensor, query, 1)
		require.NoError(t, err)
		require.Equal(t, []int64{int64(i)}, indices)
		_, err = rows.WriteAt(make([]float32, width), i)
		require.NoError(t, err)
	}
}

// Rows are appended while the model runs over those before them.
func TestAppendDuringRun(t *testing.T) {
	rows, search := table(t)
	random := rand.New(rand.NewPCG(7, 8))
	query, all := numbers(random, 1), numbers(random, 20_000)
	require.NoError(t, rows.Append(all...))
	tensor, release, err := view(rows, 20_000)
	require.NoError(t, err)
	defer func() { require.NoError(t, release()) }()
	wantIndices, wantScores := top(all, query, 10)

	ctx, stop := context.WithCancel(t.Context())
	appended := make(chan error, 1)
	go func() {
		more := make([]float32, width)
		for ctx.Err() == nil {
			if err := rows.Append(more...); err != nil && !errors.Is(err, vmm.ErrFull) {
				appended <- err
				return
			}
		}
		appended <- nil
	}()
	for grown := false; !grown; {
		before := rows.Len()
		indices, scores, err := search.run(tensor, query, 10)
		grown = rows.Len() > before
		require.NoError(t, err)
		require.Equal(t, wantIndices, indices)
		require.Equal(t, wantScores, scores)
		require.Less(t, before, rows.MaxLen())
	}
	stop()
	require.NoError(t, <-appended)
}

// While a tensor is there, its rows cannot be dropped or unmapped.
func TestTensorHoldsRows(t *testing.T) {
	rows, _ := table(t)
	require.NoError(t, rows.Append(numbers(rand.New(rand.NewPCG(9, 10)), 1000)...))
	_, release, err := view(rows, 500)
	require.NoError(t, err)

	require.ErrorIs(t, rows.SetLen(499), vmm.ErrBusy)
	require.ErrorIs(t, rows.Close(), vmm.ErrBusy)
	require.NoError(t, rows.SetLen(500))
	require.NoError(t, rows.Clip())
	require.NoError(t, rows.Append(make([]float32, width)...))

	require.NoError(t, release())
	require.NoError(t, rows.SetLen(0))
	require.NoError(t, rows.Clip())
	_, _, err = view(rows, 1)
	require.Error(t, err)
}
