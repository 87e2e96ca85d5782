package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/measure"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
)

// One contender that cannot be made or breaks down leaves the others alone,
// and gives back what it had.
func TestOneFailedCaseLeavesTheOthers(t *testing.T) {
	plan := newBWPlan()
	plan.sizes = []uint64{smallPage}
	plan.directions.values = []string{d2d}
	for _, call := range []string{"Create", "AllocPlain", "NewStream", "NewEvent"} {
		for n := 1; n <= 2; n++ {
			// What the device makes for itself when it is opened comes first.
			var hook func(drivertest.Call) error
			dev := hookedDeviceOf(t, host.Config{Memory: 1 << 30, Granularity: smallPage}, func(c drivertest.Call) error {
				if hook == nil {
					return nil
				}
				return hook(c)
			})
			hook = drivertest.FailNth(call, n, vmm.ErrOutOfMemory)
			s := newRunner()
			s.run(t.Context(), t, dev, plan)
			count := s.report.Count()
			require.Equal(t, map[report.Status]int{report.Error: 1, report.Passed: 1}, count, "%s %d", call, n)
			require.Equal(t, report.ExitError, s.report.Exit())
			require.Nil(t, s.report.Comparisons[0].Ratio)
			require.NotEmpty(t, s.report.Comparisons[0].Reason)
		}
	}
}

// A growth that fails at its second step leaves the others alone.
func TestFailedGrowthLeavesTheOther(t *testing.T) {
	t.Parallel()
	plan := newGrowPlan()
	plan.targets, plan.step = []uint64{3 * smallPage}, smallPage
	plan.mems.values = []string{memVMM, memPlain}
	plan.writes.values = []string{upload} // so that no source is made first
	for _, call := range []string{"Create", "Map", "SetAccess", "AllocPlain", "Copy"} {
		dev := hookedDeviceOf(t, host.Config{Memory: 1 << 30, Granularity: smallPage}, drivertest.FailNth(call, 2, vmm.ErrOutOfMemory))
		s := newRunner()
		s.run(t.Context(), t, dev, plan)
		require.Equal(t, map[report.Status]int{report.Error: 1, report.Passed: 1}, s.report.Count(), call)
	}
}

// A queue that is full blocks the caller until the gate opens. The gate opens
// by itself, and the sample says that it was not gated.
func TestGateThatTimesOut(t *testing.T) {
	elapsed := 0
	dev := hookedDevice(t, func(c drivertest.Call) error {
		if c.Name == "Elapsed" {
			elapsed++
		}
		return nil
	})
	if _, ok := gates(dev); !ok {
		t.Skip("needs a device whose streams can wait for a value")
	}
	timer, err := newTimer(dev, 1, true, false)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, timer.close()) })
	require.Equal(t, "gated", timer.flag)
	s, err := timer.time(t.Context(), 1, func(driver.Stream) error { return nil })
	require.NoError(t, err)
	require.Equal(t, "gated", timer.flag)
	require.Less(t, s.NS, float64(timer.gate.timeout))

	timer.gate.timeout = time.Millisecond
	_, err = timer.time(t.Context(), 1, dev.raw.SyncStream)
	require.NoError(t, err)
	require.Equal(t, "gate-timeout", timer.flag)
	require.Nil(t, timer.gate, "it is not tried again")
	elapsed = 0
	_, err = timer.time(t.Context(), 1, dev.raw.SyncStream)
	require.NoError(t, err)
	require.Equal(t, 1, elapsed, "the device still takes the time, as for ungated")
}

// What is odd about the samples of a case is in its flags.
func TestFlagsOfSamples(t *testing.T) {
	times := func(n int, growth float64) (list []measure.Sample) {
		ns := 1000.0
		for range n {
			list = append(list, measure.Sample{NS: ns})
			ns *= growth
		}
		return list
	}
	for name, c := range map[string]struct {
		samples []measure.Sample
		loops   int
		want    []string
	}{
		"nothing":     {times(40, 1), 100, nil},
		"few samples": {times(3, 1), 100, []string{"few-samples"}},
		"as many repetitions as may be, and still short": {times(40, 1), 128, []string{"short-samples"}},
		"each takes longer than the one before it":       {times(40, 1.01), 100, []string{"noisy", "drift"}},
	} {
		s := newRunner()
		s.flags.minTime = time.Millisecond
		outcome := measure.Outcome{Samples: c.samples, Loops: c.loops}
		got := report.Case{Samples: outcome.Times()}
		s.summarize(group{maxLoops: 128}, &got, outcome)
		require.Equal(t, c.want, got.Flags, name)
	}
}
