package main

import (
	"context"
	"encoding/csv"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cmd/internal/size"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
	"github.com/cuvmm/cuvmm/internal/testing/nulldriver"
	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
)

func TestPool(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	table, csvFile := filepath.Join(dir, "pool.txt"), filepath.Join(dir, "pool.csv")
	set := testSettings()
	set.minTime = time.Microsecond
	code, out, progress := benchWith(t, set, "pool", "--device", "host", "--peak", "16M", "--samples", "1", "--trace", "4K,mixed,training",
		"--threshold", "8M", "--reuse", "events+opportunistic", "--format", "json", "-o", table, "-o", csvFile)
	require.Equal(t, report.ExitPassed, code, progress)
	require.Contains(t, progress, ": pool/training-0/16MiB/threshold-8MiB/reuse-events+opportunistic")
	require.NoError(t, conforms(t, strictSchema(t, ""), []byte(out)))
	r := parse(t, out)
	require.InDelta(t, 1000, r.Run.Measure.MinTime, 0, "a sample has many pairs")
	require.Len(t, r.Cases, 2*3)
	require.Len(t, r.Comparisons, 3)
	for _, c := range r.Cases {
		require.Equal(t, report.Passed, c.Status, "%s: %s", c.ID, c.Reason)
		require.Contains(t, []any{"pool", "mallocAsync"}, c.Axes["mem"])
		require.Equal(t, "events+opportunistic", c.Axes["reuse"])
		require.InDelta(t, 8<<20, c.Axes["threshold"], 0)
		require.Len(t, c.Samples, 1, c.ID)
		if c.Axes["trace"] != "training" {
			require.Nil(t, c.Stats.Pooled, c.ID)
			require.Equal(t, "us", c.Unit)
			continue
		}
		require.Equal(t, "ms", c.Unit)
		require.Greater(t, c.Stats.Live, uint64(14<<20))
		require.LessOrEqual(t, c.Stats.Live, uint64(16<<20))
		require.Greater(t, c.Stats.Reserved, c.Stats.Live)
		require.Zero(t, c.Stats.Failures)
	}

	text, err := os.ReadFile(table)
	require.NoError(t, err)
	require.Contains(t, string(text), "reserved peak bytes")
	f, err := os.Open(csvFile)
	require.NoError(t, err)
	defer f.Close()
	lines, err := csv.NewReader(f).ReadAll()
	require.NoError(t, err)
	require.Len(t, lines, 1+len(r.Cases))
	require.Contains(t, lines[6][slices.Index(lines[0], "axes")], "reuse=events+opportunistic")
}

// Each threshold is measured with the first policies, and the other policies with the first threshold.
func TestPoolTables(t *testing.T) {
	t.Parallel()
	code, out, stderr := bench(t, "pool", "--device", "host", "--trace", "4K", "--threshold", "all,0,64M,0", "--reuse", "all,none,events+opportunistic,none", "--dry-run")
	require.Equal(t, report.ExitPassed, code, stderr)
	var want []string
	for _, how := range []string{"", "/reuse-none", "/reuse-events+opportunistic", "/threshold-0B", "/threshold-64MiB"} {
		want = append(want, "pool/4K"+how+"/pool", "pool/4K"+how+"/mallocAsync")
	}
	require.Equal(t, want, strings.Fields(out))
}

// Files in RMM's form are replayed, and those in another form are refused.
func TestPoolReplaysFiles(t *testing.T) {
	t.Parallel()
	const text = "Thread,Time,Action,Pointer,Size,Stream\n7,12:00:00.000001,allocate,0x7f0000000000,3000000,0\n" +
		"7,12:00:00.000002,allocate failure,(nil),99,0x5500\n8,12:00:00.000003,free,0x7f0000000000,3000000,0x5500\n"
	plain := filepath.Join(t.TempDir(), "rmm.csv")
	require.NoError(t, os.WriteFile(plain, []byte(text), 0o600))
	code, out, progress := bench(t, "pool", "--device", "host", "--replay", plain, "--samples", "1", "--format", "json")
	require.Equal(t, report.ExitPassed, code, progress)
	r := parse(t, out)
	require.Len(t, r.Cases, 2)
	for _, c := range r.Cases {
		require.Equal(t, "rmm.csv", c.Axes["trace"])
		require.Equal(t, uint64(3_000_000), c.Stats.Live)
		require.Zero(t, c.Stats.Failures)
	}

	bad := filepath.Join(t.TempDir(), "bad.csv")
	require.NoError(t, os.WriteFile(bad, []byte("Action,Pointer,Size,Stream\n"), 0o600))
	for _, file := range []string{bad, filepath.Join(t.TempDir(), "none.csv")} {
		code, _, progress := bench(t, "pool", "--device", "host", "--replay", file, "--samples", "1")
		require.Equal(t, report.ExitUsage, code)
		require.Contains(t, progress, filepath.Base(file))
	}
}

// poolPlanOf is a short plan of one trace.
func poolPlanOf(name string) *poolPlan {
	p := newPoolPlan()
	p.traces.values, p.peak = []string{name}, size.One(1<<26)
	return p
}

// Whichever call fails, the case says so, and all that was taken goes back.
func TestPoolThatFailsGivesBack(t *testing.T) {
	for _, c := range []struct{ call, trace string }{
		{"Reserve", pairMixed}, {"SetAccess", pairMixed}, {"NewStream", pairMixed}, {"Map", pairMixed},
		{"NewStream", "training"}, {"Map", "training"},
	} {
		drv := drivertest.Inject(nulldriver.NewSized(1<<30), nil)
		failing := drivertest.Inject(drv, drivertest.FailNth(c.call, 1, vmm.ErrBusy))
		dev := openDriver(t, failing, 0)
		s := newRunner()
		s.flags.samples = 1
		s.run(t.Context(), t, dev, poolPlanOf(c.trace))
		require.Equal(t, report.Error, s.report.Cases[0].Status, "%s, %s", c.trace, c.call)
		require.NoError(t, dev.Close())
		require.NoError(t, drv.Balanced(), "%s, %s", c.trace, c.call)
	}
}

// Pairs are repeated until a sample is long enough. A trace is replayed once.
func TestLoopsOfPool(t *testing.T) {
	dev := hookedDevice(t, nil)
	for name, most := range map[string]int{pairSmall: 0, pairLarge: 0, pairMixed: 0, "training": 1, "serving": 1, "adversarial": 1} {
		groups, err := poolPlanOf(name).groups([]device{dev}, 1)
		require.NoError(t, err)
		require.Len(t, groups, 1)
		require.Equal(t, most, groups[0].maxLoops, name)
	}
}

// A trace for which there is too little memory is replayed all the same.
func TestPoolWithoutMemory(t *testing.T) {
	t.Parallel()
	dev := openDriver(t, nulldriver.NewSized(64<<20), 0)
	s := newRunner()
	s.flags.samples = 1
	p := poolPlanOf("training")
	p.peak = testgate.Effort[size.One](72<<20, 128<<20, 128<<20)
	s.run(t.Context(), t, dev, p)
	require.Equal(t, report.Passed, s.report.Cases[0].Status, s.report.Cases[0].Reason)
	require.Positive(t, s.report.Cases[0].Stats.Failures)
	require.LessOrEqual(t, s.report.Cases[0].Stats.Reserved, uint64(64<<20))
	require.NoError(t, dev.Close())
}

// An interrupt ends a replay, which leaves nothing behind.
func TestPoolInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	dev := hookedDevice(t, func(c drivertest.Call) error {
		if c.Name == "Map" {
			cancel()
		}
		return nil
	})
	s := newRunner()
	s.run(ctx, t, dev, poolPlanOf("training"))
	require.Equal(t, report.Interrupted, s.report.Cases[0].Status, s.report.Cases[0].Reason)
	require.Empty(t, s.report.Cases[0].Samples)
}

func TestPoolSizes(t *testing.T) {
	dev := hookedDevice(t, nil) // 1 GiB
	groups, err := newPoolPlan().groups([]device{dev}, 1)
	require.NoError(t, err)
	require.Len(t, groups, 6)
	require.True(t, slices.ContainsFunc(groups, func(g group) bool { return strings.HasPrefix(g.name, "pool/training-0/614") }),
		"six tenths of the device's memory")
}
