package main

import (
	"context"
	"encoding/csv"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/size"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
)

func TestPool(t *testing.T) {
	code, out, progress := bench(t, "pool", "--device", "host", "--peak", "1G", "--seeds", "2", "--samples", "3",
		"--trace", "4K,mixed,training", "--threshold", "64M", "--reuse", "events,opportunistic", "--format", "json")
	require.Equal(t, report.ExitPassed, code, progress)
	require.Contains(t, progress, "[4/4] pool/training-1/1GiB/threshold-64MiB/reuse-events,opportunistic")
	r := parse(t, out)
	require.Len(t, r.Cases, 2*4)
	require.Len(t, r.Comparisons, 4)
	for _, c := range r.Cases {
		if c.Status == report.Waived { // the driver's own, on the host
			require.Equal(t, "mallocAsync", c.Axes["mem"])
			continue
		}
		require.Equal(t, report.Passed, c.Status, "%s: %s", c.ID, c.Reason)
		require.Equal(t, "events,opportunistic", c.Axes["reuse"])
		require.InDelta(t, 64<<20, c.Axes["threshold"], 0)
		require.Len(t, c.Samples, 3, c.ID)
		if c.Axes["trace"] != "training" {
			require.Nil(t, c.Stats.Pooled, c.ID)
			require.Equal(t, "us", c.Unit)
			require.Greater(t, c.Stats.Loops, 1, c.ID)
			continue
		}
		require.Equal(t, "ms", c.Unit)
		require.Greater(t, c.Stats.Live, uint64(1<<30/100*99))
		require.LessOrEqual(t, c.Stats.Live, uint64(1<<30))
		require.Greater(t, c.Stats.Reserved, c.Stats.Live)
		require.Zero(t, c.Stats.Failures)
	}
	file := filepath.Join(t.TempDir(), "pool.csv")
	_, out, _ = bench(t, "pool", "--device", "host", "--peak", "1G", "--samples", "1", "--trace", "serving", "--progress", "off", "-o", file)
	require.Contains(t, out, "POOL, what it held")
	require.Contains(t, out, "reserved peak")
	f, err := os.Open(file)
	require.NoError(t, err)
	defer f.Close()
	lines, err := csv.NewReader(f).ReadAll()
	require.NoError(t, err)
	for _, column := range []string{"live_peak_bytes", "reserved_peak_bytes", "failed_allocs"} {
		require.NotEmpty(t, lines[1][slices.Index(lines[0], column)], column)
	}
}

// poolPlanOf is a short plan of one trace.
func poolPlanOf(name string) *poolPlan {
	p := newPoolPlan()
	p.traces.values, p.peak = []string{name}, size.One(1<<28)
	return p
}

// Whichever call fails, the case says so, and all that was taken goes back.
func TestPoolThatFailsGivesBack(t *testing.T) {
	for _, c := range []struct{ call, trace string }{
		{"Reserve", pairMixed}, {"SetAccess", pairMixed}, {"NewStream", pairMixed}, {"Map", pairMixed},
		{"Reserve", "training"}, {"SetAccess", "training"}, {"NewStream", "training"}, {"Map", "training"}, {"Map", "serving"},
	} {
		drv := drivertest.Inject(host.New(host.Config{Devices: 1, Memory: 1 << 30}), nil)
		failing := drivertest.Inject(drv, drivertest.FailNth(c.call, 1, vmm.ErrInvalid))
		dev := openDriver(t, failing, 0)
		s := newRunner()
		s.flags.samples = 1
		s.run(t.Context(), t, dev, poolPlanOf(c.trace))
		require.Equal(t, report.Error, s.report.Cases[0].Status, "%s, %s", c.trace, c.call)
		require.NoError(t, dev.Close())
		require.NoError(t, drv.Balanced(), "%s, %s", c.trace, c.call)
	}
}

// A trace for which there is too little memory is replayed all the same.
func TestPoolWithoutMemory(t *testing.T) {
	dev := openDriver(t, host.New(host.Config{Devices: 1, Memory: 256 << 20}), 0)
	s := newRunner()
	s.flags.samples = 1
	p := poolPlanOf("adversarial")
	p.peak = 512 << 20
	s.run(t.Context(), t, dev, p)
	require.Equal(t, report.Passed, s.report.Cases[0].Status, s.report.Cases[0].Reason)
	require.Positive(t, s.report.Cases[0].Stats.Failures)
	require.LessOrEqual(t, s.report.Cases[0].Stats.Reserved, uint64(256<<20))
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
