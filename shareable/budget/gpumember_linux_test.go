package budget_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/shareable/budget"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/kernel"
)

// gpuState is what testdata/gpumember.py says after each command.
type gpuState struct {
	Err     string
	Took    float64 // seconds
	Blocks  uint64
	Pressed int
	Lease   uint64
}

func (s gpuState) failed() string { return s.Err }

// TestHandOverWithPython: a member in Go and one that computes with PyTorch, or with CuPy, hand memory over to and fro: what
// the library has cached, and what the program gives up. All bytes of both are verified after each step, and a graph that
// PyTorch has captured is replayed.
func TestHandOverWithPython(t *testing.T) {
	if os.Getenv("VMM_TEST_DRIVER") != "cuda" {
		t.Skip("needs a GPU")
	}
	for _, library := range []string{"torch", "cupy"} {
		t.Run(library, func(t *testing.T) {
			if out, err := exec.CommandContext(t.Context(), "python3", "-c", "import "+library).CombinedOutput(); err != nil {
				t.Skipf("needs python3 with %s: %v\n%s", library, err, out)
			}
			dev, err := vmm.Open("cuda:0")
			require.NoError(t, err)
			defer func() { require.NoError(t, dev.Close()) }()
			handOverWithPython(t, dev, library, 1<<30)
		})
	}
}

// handOverWithPython has a budget of 25 units. The last one is for what Python keeps.
func handOverWithPython(t *testing.T, dev *vmm.Device, library string, unit uint64) {
	path := filepath.Join(t.TempDir(), "b.sock")
	s, err := budget.Serve(path, budget.ServeOptions{Budgets: []budget.Budget{{Device: dev, Bytes: 25 * unit}}})
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	p := startChild[gpuState](t, exec.CommandContext(t.Context(), "python3", "-B", "testdata/gpumember.py", path, library, fmt.Sprint(unit/4)))
	m, err := budget.Join(t.Context(), path, dev, budget.JoinOptions{Name: "go"})
	require.NoError(t, err)
	defer func() { require.NoError(t, m.Close()) }()
	h := &handed{}
	h.g, err = dev.NewRange(vmm.RangeOptions{Max: 32 * unit, Chunk: unit / 16})
	require.NoError(t, err)
	defer func() { require.NoError(t, h.g.Close()) }()
	h.k, err = kernel.LoadBuiltins(dev)
	require.NoError(t, err)
	defer func() { require.NoError(t, h.k.Close()) }()
	h.s, err = dev.NewStream()
	require.NoError(t, err)
	defer func() { require.NoError(t, h.s.Close()) }()
	remove := dev.OnPressure(h.give)
	defer remove()

	check := func() (s gpuState) {
		t.Helper()
		s = p.do("verify", 0)
		require.NoError(t, h.verify())
		all, err := budget.Reports(t.Context(), path, dev, shareable.AttachOptions{})
		require.NoError(t, err)
		require.Zero(t, all[0].Counts.Expired)
		lent := uint64(0)
		for _, m := range all[0].Members {
			require.LessOrEqual(t, m.Created, m.Lease+unit/16, "%s: reductions take a little unasked", m.Name)
			lent += m.Lease
		}
		require.LessOrEqual(t, lent, all[0].Budget)
		return s
	}
	grow := func(to uint64) time.Duration {
		t.Helper()
		begin := time.Now()
		require.NoError(t, h.g.Grow(to-h.g.Len()))
		took := time.Since(begin)
		require.NoError(t, h.resize(to))
		return took
	}
	shrink := func(to uint64) {
		t.Helper()
		require.NoError(t, h.g.SetLen(to))
		require.NoError(t, h.g.Clip())
		require.NoError(t, h.resize(to))
	}
	rounds := 10
	if testing.Short() {
		rounds = 2
	}
	var cached, pressed, back times
	for range rounds {
		p.do("grow", 16*unit)
		check()
		was := check().Pressed
		pressed = append(pressed, int64(grow(12*unit))) // more than its share
		s := check()
		require.Greater(t, s.Pressed, was)
		require.Less(t, s.Blocks*unit/4, 16*unit)
		p.do("drop", 8*unit)
		was = check().Pressed
		cached = append(cached, int64(grow(18*unit)))
		require.Equal(t, was, check().Pressed, "the cache is enough")
		back = append(back, int64(p.do("grow", 11*unit).Took*1e9))
		check()
		require.Less(t, h.g.Cap(), 18*unit, "Go has given")
		shrink(6 * unit)
		check()
	}
	t.Logf("Go gets what %s uses: %v; what it has cached: %v; %s gets some back: %v", library, pressed, cached, library, back)
}
