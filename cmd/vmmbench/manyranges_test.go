package main

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
)

func TestManyRanges(t *testing.T) {
	code, out, progress := bench(t, "grow", "--device", "host", "--ranges", "2,3", "--samples", "2", "--format", "json")
	require.Equal(t, report.ExitPassed, code, progress)
	r := parse(t, out)
	require.Len(t, r.Cases, 2*8)
	for _, c := range r.Cases {
		require.Equal(t, report.Passed, c.Status, "%s: %s", c.ID, c.Reason)
		require.Len(t, c.Samples, 2, c.ID)
	}
	require.Equal(t, "grow/3-ranges/next-ahead", r.Cases[12].ID)
	require.EqualValues(t, 3, r.Cases[12].Axes["ranges"])
	for _, n := range []string{"0", "128K"} {
		code, _, progress = bench(t, "grow", "--device", "host", "--ranges", n)
		require.Equal(t, report.ExitUsage, code)
		require.Contains(t, progress, "want 1 to 65536")
	}
	code, _, progress = bench(t, "grow", "--device", "host", "--ranges", "2", "--size", "1M")
	require.Equal(t, report.ExitUsage, code)
	require.Contains(t, progress, "[ranges size] were all set")
}

// What fails in the middle leaves no range.
func TestManyRangesThatFail(t *testing.T) {
	t.Parallel()
	for _, call := range []string{"Create", "Map", "SetAccess"} {
		for n := 1; n <= 12; n++ {
			drv := drivertest.Inject(host.New(host.Config{Devices: 1, Memory: 1 << 30, Granularity: smallPage}), nil)
			dev := openDriver(t, drivertest.Inject(drv, drivertest.FailNth(call, n, errors.New("injected"))), 0)
			s := newRunner()
			p := newGrowPlan()
			p.ranges = []uint64{2}
			s.run(t.Context(), t, dev, p)
			require.NoError(t, dev.Close())
			require.NoError(t, drv.Balanced(), "call %d of %s", n, call)
		}
	}
}
