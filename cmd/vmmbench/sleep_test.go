package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cmd/internal/size"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/verify"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
)

func TestSleep(t *testing.T) { byHostAndDevice(t, sleepKeepsContents) }

func sleepKeepsContents(t *testing.T, set *settings) {
	t.Parallel()
	args := []string{"sleep", "--device", "host", "--size", "256K", "--samples", "10", "--progress", "off", "--format", "json"}
	code, out, stderr := benchWith(t, set, args...)
	require.Equal(t, report.ExitPassed, code, stderr)
	r := parse(t, out)
	var ids []string
	for _, c := range r.Cases {
		require.Equal(t, report.Passed, c.Status, "%s: %s", c.ID, c.Reason)
		require.Equal(t, "ms", c.Unit)
		require.Len(t, c.Samples, 10)
		require.Contains(t, c.Flags, wallClock, "those that are compared are timed alike")
		ids = append(ids, strings.TrimPrefix(c.ID, "sleep/"))
		if c.Axes["mode"] == modeDrop {
			require.Equal(t, "off", string(c.Verify.Mode), c.ID)
			continue
		}
		require.Equal(t, c.Bytes, c.Verify.Bytes, c.ID)
	}
	require.Equal(t, []string{
		"keep/256KiB/first/vmm", "keep/256KiB/first/pinned-copy", "keep/256KiB/second/vmm", "keep/256KiB/second/pinned-copy",
		"keep/256KiB/wake/vmm", "keep/256KiB/wake/pinned-copy", "drop/256KiB/first/vmm", "drop/256KiB/second/vmm", "drop/256KiB/wake/vmm",
	}, ids)
	require.Len(t, r.Comparisons, 3)
	for _, c := range r.Comparisons {
		require.NotNil(t, c.Ratio, c.ID)
		require.Contains(t, c.ID, ": vmm against pinned-copy")
	}

	code, out, _ = benchWith(t, set, append(args, "--corrupt", "262143", "--verify", "edges", "--filter", "keep/.*/vmm")...)
	require.Equal(t, report.ExitMismatch, code)
	for _, c := range parse(t, out).Cases {
		require.Equal(t, report.Failed, c.Status, c.ID)
		require.Equal(t, uint64(262143), c.Verify.FirstBad.Offset)
	}
}

// The table has the bandwidth beside the time, where something is copied.
func TestSleepAsTable(t *testing.T) {
	_, out, _ := bench(t, "sleep", "--device", "host", "--size", "64K", "--samples", "1", "--progress", "off")
	require.Regexp(t, `case .* bandwidth`, out)
	require.Regexp(t, `sleep/drop/64KiB/wake/vmm +[0-9.]+ +off`, out)
}

// The first Sleep is of a new range each time. The others are of one that is awake and full
// before each sample.
func TestSleeperIsReady(t *testing.T) {
	for _, mode := range []string{modeKeep, modeDrop} {
		for _, op := range []string{opFirst, opSecond, opWake} {
			dev := hookedDeviceOf(t, host.Config{Memory: 1 << 30, Granularity: smallPage}, nil)
			s := newSleeper(dev, mode, op, 2*smallPage, verify.Pattern{})
			var last *vmm.Range
			for i := range 3 {
				require.NoError(t, s.awake(t.Context()))
				require.Equal(t, i == 0 || op == opFirst, s.r != last)
				require.Equal(t, s.size, s.r.Len())
				b := make([]byte, s.size)
				_, err := s.r.ReadAt(b, 0)
				require.NoError(t, err)
				require.Equal(t, -1, bytes.IndexByte(b, 0))
				x, err := s.measure(t.Context(), 1)
				require.NoError(t, err)
				require.Positive(t, x.NS)
				last = s.r
				require.Equal(t, op == opFirst, s.r.Cap() == 0, "it sleeps")
			}
			require.NoError(t, s.close())
			require.NoError(t, s.close())
		}
	}
}

// Whichever call fails, the case says so, the others go on, and all that was taken goes back.
func TestSleepThatFailsGivesBack(t *testing.T) {
	t.Parallel()
	p := newSleepPlan()
	p.sizes = size.List{2 * smallPage}
	for _, call := range []string{"Reserve", "Create", "Map", "SetAccess", "Fill", "AllocHost", "AllocPlain"} {
		for n := 1; n <= 3; n++ {
			drv := drivertest.Inject(host.New(host.Config{Devices: 1, Memory: 1 << 30, Granularity: smallPage}), nil)
			dev := openDriver(t, drivertest.Inject(drv, drivertest.FailNth(call, n, vmm.ErrOutOfMemory)), 0)
			s := newRunner()
			s.flags.maxTime = time.Hour
			s.run(t.Context(), t, dev, p)
			require.NotZero(t, s.report.Count()[report.Passed], "%s, call %d", call, n)
			for _, c := range s.report.Cases {
				require.Contains(t, []report.Status{report.Passed, report.Error}, c.Status, "%s, call %d: %s: %s", call, n, c.ID, c.Reason)
			}
			require.NoError(t, dev.Close())
			require.NoError(t, drv.Balanced(), "%s, call %d", call, n)
		}
	}
}
