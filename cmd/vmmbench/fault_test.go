package main

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/verify"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
)

// hookedDevice is a small host device with a hook before each of its calls.
func hookedDevice(t *testing.T, hook func(drivertest.Call) error) device {
	t.Helper()
	drv := host.New(host.Config{Devices: 1, Memory: 1 << 30})
	dev := openDriver(t, drivertest.Inject(drv, hook), 0)
	t.Cleanup(func() { require.NoError(t, dev.Close(), "nothing may be left open") })
	return dev
}

// run measures on a device what is planned for it.
func (r *runner) run(ctx context.Context, t *testing.T, dev device, p plan) {
	t.Helper()
	groups, err := p.groups([]device{dev}, r.flags.seed)
	require.NoError(t, err)
	r.measureGroups(ctx, groups)
}

func newRunner() *runner {
	return &runner{
		app: &app{stdout: io.Discard, stderr: io.Discard}, to: &outputFlags{format: report.JSON},
		flags: &measureFlags{
			samples: 2, maxTime: time.Minute, verify: verify.Full, margin: 0.02, corrupt: -1,
			progress: choice{value: "off"},
		},
		report: report.New(report.Run{}, report.Host{}),
	}
}

// One contender that cannot be made or breaks down leaves the others alone,
// and gives back what it had.
func TestOneFailedCaseLeavesTheOthers(t *testing.T) {
	plan := newBWPlan()
	plan.sizes = []uint64{2 << 20}
	plan.directions.values = []string{d2d}
	for _, call := range []string{"Create", "AllocPlain", "NewStream", "NewEvent"} {
		for n := 1; n <= 2; n++ {
			// What the device makes for itself when it is opened comes first.
			var hook func(drivertest.Call) error
			dev := hookedDevice(t, func(c drivertest.Call) error {
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

func TestGrowthThatBreaksOff(t *testing.T) {
	plan := newGrowPlan()
	plan.targets, plan.step = []uint64{8 << 20}, growStep{bytes: 2 << 20}
	plan.mems.values = []string{growVMM, growPlain}
	plan.writes.values = []string{upload} // so that no source is made first
	for _, call := range []string{"Create", "Map", "SetAccess", "AllocPlain", "Copy"} {
		dev := hookedDevice(t, drivertest.FailNth(call, 2, vmm.ErrOutOfMemory))
		s := newRunner()
		s.run(t.Context(), t, dev, plan)
		require.Equal(t, map[report.Status]int{report.Error: 1, report.Passed: 1}, s.report.Count(), call)
	}
}

// A queue that is full blocks the caller until the gate opens. The gate opens
// by itself, and the sample says that it was not gated.
func TestGateThatTimesOut(t *testing.T) {
	dev := hookedDevice(t, func(drivertest.Call) error { return nil })
	if _, _, ok := gateSupport(dev); !ok {
		t.Skip("needs a device whose streams can wait for a value")
	}
	timer, err := newTimer(dev, 1, true)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, timer.close()) })
	require.Equal(t, "gated", timer.flag)
	s, err := timer.time(t.Context(), 1, func(driver.Stream) error { return nil })
	require.NoError(t, err)
	require.Equal(t, "gated", timer.flag)
	require.Less(t, s.NS, float64(time.Second))

	timer.gate.timeout = time.Millisecond
	_, err = timer.time(t.Context(), 1, dev.raw.SyncStream)
	require.NoError(t, err)
	require.Equal(t, "gate-timeout", timer.flag)
	require.Nil(t, timer.gate, "it is not tried again")
	_, err = timer.time(t.Context(), 1, dev.raw.SyncStream)
	require.NoError(t, err)
}
