package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"runtime/debug"
	"strings"
	"sync/atomic"
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

// TestMain has garbage collected seldom: what lives is little.
func TestMain(m *testing.M) {
	debug.SetGCPercent(400)
	os.Exit(m.Run())
}

// testClock is a clock that does not follow the time, so no test depends on how fast the
// machine is. Each look at it takes a nanosecond, or a step that is set, and an hour once it is over.
type testClock struct {
	at   atomic.Int64
	step time.Duration
	over atomic.Bool
}

func (c *testClock) now() time.Time {
	step := max(c.step, time.Nanosecond)
	if c.over.Load() {
		step = time.Hour
	}
	return time.Unix(0, c.at.Add(int64(step)))
}

// testSettings are those of most tests: samples are short, nothing is warmed up, no time
// limit is over before its work is done, and the host checks.
func testSettings() *settings {
	set := userSettings()
	set.warmTime, set.warmPairs, set.minTime, set.now = 0, 2*mixedLive, 0, new(testClock).now
	set.gateTimeout, set.peerGateTimeout = time.Hour, 2*time.Hour
	set.freeMemory, set.collect = func() {}, func() {} // they are slow, and what tests need is little
	set.checksOnDevice = func(device) bool { return false }
	set.ownArgs = testReader
	return set
}

// kernelSettings have the host's devices fill and check by kernels, as GPUs do, also those
// of processes that read.
func kernelSettings() *settings {
	set := testSettings()
	set.checksOnDevice = func(device) bool { return true }
	set.ownArgs = func(args ...string) (argv, env []string) {
		argv, env = testReader(args...)
		return argv, append(env, kernelsEnv+"=yes")
	}
	return set
}

// byHostAndDevice runs a test with checks by the host, and by the device.
func byHostAndDevice(t *testing.T, test func(*testing.T, *settings)) {
	t.Helper()
	t.Run("host", func(t *testing.T) { test(t, testSettings()) })
	t.Run("device", func(t *testing.T) { test(t, kernelSettings()) })
}

// Variables of a process that runs this test's program.
const (
	mainEnv    = "VMMBENCH_TEST_MAIN"    // its arguments as vmmbench
	kernelsEnv = "VMMBENCH_TEST_KERNELS" // not empty: it checks by kernels
)

// testReader has a process that reads run this test's program.
func testReader(args ...string) (argv, env []string) {
	return []string{"-test.run=^TestMainProcess$"}, []string{mainEnv + "=" + strings.Join(args, " ")}
}

// bench runs the command and returns what it wrote. Tests of p2p by it are not parallel: peer
// access belongs to the driver, which the process has once for all of them.
func bench(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	return benchWith(t, testSettings(), args...)
}

func benchWith(t *testing.T, set *settings, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, err bytes.Buffer
	code = run(t.Context(), set, args, &out, &err)
	return code, out.String(), err.String()
}

// parsed is a report as a reader of the JSON gets it. Axes of any shape do.
type parsed struct {
	report.Report
	Cases []struct {
		report.Case
		Axes map[string]any `json:"axes"`
	} `json:"cases"`
}

func parse(t *testing.T, text string) parsed {
	t.Helper()
	var r parsed
	d := json.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields()
	require.NoError(t, d.Decode(&r))
	require.False(t, d.More(), "stdout is one object and nothing else")
	return r
}

// interrupter cancels at the n-th line of progress.
type interrupter struct {
	n      int
	cancel func()
}

func (i *interrupter) Write(b []byte) (int, error) {
	if i.n--; i.n == 0 {
		i.cancel()
	}
	return len(b), nil
}

// openDriver opens a device of a driver. The caller closes it.
func openDriver(t *testing.T, drv driver.Driver, ordinal int) device {
	t.Helper()
	dev, err := vmm.OpenDriver(drv, ordinal)
	require.NoError(t, err)
	d, err := withRaw(testSettings(), dev)
	require.NoError(t, err)
	return d
}

// smallPage is the granularity of drivers in tests that use memory of many of its pages.
const smallPage = 64 << 10

// hookedDevice is a small host device with a hook before each of its calls.
func hookedDevice(t *testing.T, hook func(drivertest.Call) error) device {
	t.Helper()
	return hookedDeviceOf(t, host.Config{Devices: 1, Memory: 1 << 30}, hook)
}

// hookedDeviceOf is hookedDevice with a host driver of another kind.
func hookedDeviceOf(t *testing.T, config host.Config, hook func(drivertest.Call) error) device {
	t.Helper()
	dev := openDriver(t, drivertest.Inject(host.New(config), hook), 0)
	t.Cleanup(func() { require.NoError(t, dev.Close(), "nothing may be left open") })
	return dev
}

// newRunner is a runner for measureGroups, which writes its report nowhere.
func newRunner() *runner {
	set := testSettings()
	return &runner{
		app: &app{settings: set, stdout: io.Discard, stderr: io.Discard}, to: &outputFlags{format: report.JSON},
		flags: &measureFlags{
			settings: set, samples: 2, maxTime: time.Minute, verify: verify.Full, margin: 0.02, corrupt: -1,
			progress: "off",
		},
		report: report.New(report.Run{}, report.Host{}),
	}
}

// run measures on a device what is planned for it.
func (r *runner) run(ctx context.Context, t *testing.T, dev device, p plan) {
	t.Helper()
	groups, err := p.groups([]device{dev}, r.flags.seed)
	require.NoError(t, err)
	r.measureGroups(ctx, groups)
}
