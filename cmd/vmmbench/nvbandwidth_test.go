package main

import (
	"encoding/binary"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cmd/internal/size"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/verify"
	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
)

const nvTestSize = 1 << 20

// nvGroups are the groups of one case, on these devices.
func nvGroups(t *testing.T, name string, devs ...device) []group {
	t.Helper()
	groups, err := (&nvPlan{size.List{nvTestSize}}).groups(devs, 1)
	require.NoError(t, err)
	return slices.DeleteFunc(groups, func(g group) bool { return !strings.Contains(g.name, "/"+name+"/") })
}

func nvContender(t *testing.T, g group) *copier {
	t.Helper()
	undo, err := g.setup(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, undo()) })
	c, err := g.tasks[0].open(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.close()) })
	return c.(*copier)
}

func hostDevices(t *testing.T, n int) []device {
	t.Helper()
	drv := host.New(host.Config{Devices: n, Memory: 1 << 30})
	var devs []device
	for i := range n {
		devs = append(devs, openDriver(t, drv, i))
	}
	t.Cleanup(func() { require.NoError(t, closeDevices(devs), "nothing may be left open") })
	return devs
}

// Under nvbandwidth's name, a case of both directions has the bandwidth of the stream that is
// measured, whatever its load takes. nvbandwidth reports all of both only for all_to_one and
// one_to_all.
func TestBidirectionalIsTheMeasuredStream(t *testing.T) {
	devs := hostDevices(t, 2)
	for _, name := range []string{
		"host_to_device_bidirectional_memcpy_ce", "device_to_host_bidirectional_memcpy_ce", "all_to_host_bidirectional_memcpy_ce",
		"device_to_device_bidirectional_memcpy_read_ce", "device_to_device_bidirectional_memcpy_write_ce",
	} {
		g := nvGroups(t, name, devs...)[0]
		require.Equal(t, uint64(nvTestSize), g.tasks[0].c.Bytes, name)
		c := nvContender(t, g)
		// The load begins when the measured copy has ended, so it ends later.
		raw := c.timing.raw
		ended, err := c.undo.event(raw, 0)
		require.NoError(t, err)
		first := c.copies[0]
		c.copies[0] = func(s driver.Stream) error { return errors.Join(first(s), raw.Record(ended, s)) }
		for i, load := range c.copies[1:] {
			c.copies[i+1] = func(s driver.Stream) error { return errors.Join(raw.Wait(s, ended), load(s)) }
		}
		longer := false // unless the goroutine of the first stream was held up
		for try := 0; try < 100 && !longer; try++ {
			s, err := c.measure(t.Context(), 1)
			require.NoError(t, err)
			require.Equal(t, s.Parts[0], s.NS, name)
			longer = slices.Max(s.Parts) > s.NS
		}
		require.True(t, longer, name)
	}
	g := nvGroups(t, "all_to_one_write_ce", devs...)[0]
	s, err := nvContender(t, g).measure(t.Context(), 1)
	require.NoError(t, err)
	require.Equal(t, uint64(nvTestSize), g.tasks[0].c.Bytes, "one other device")
	require.Positive(t, s.NS)
}

// All of nvbandwidth's cases run, with data that are checked.
func TestNVBandwidthPreset(t *testing.T) {
	args := []string{"--preset", "nvbandwidth", "--size", "64K", "--samples", "2", "--progress", "off", "--format", "json", "--device"}
	named := []string{"host", "host:0,host:1"}
	for _, devices := range testgate.Effort(named[1:], named, named) {
		code, out, stderr := bench(t, append(args, devices)...)
		require.Equal(t, report.ExitPassed, code, stderr)
		require.NoError(t, conforms(t, strictSchema(t, ""), []byte(out)))
		passed := map[string]int{}
		for _, c := range parse(t, out).Cases {
			require.Equal(t, report.Passed, c.Status, "%s: %s", c.ID, c.Reason)
			require.NotZero(t, c.Verify.Bytes, c.ID)
			require.Equal(t, unitNs == c.Unit, strings.Contains(c.ID, "latency"), c.ID)
			passed[c.Axes["test"].(string)]++
			switch c.Axes["test"] {
			case "host_to_device_bidirectional_memcpy_ce":
				require.Equal(t, uint64(64<<10), c.Bytes)
				require.Equal(t, uint64(3*64<<10), c.Verify.Bytes, "the load has twice the size, so that it lasts")
			case "host_to_device_bidirectional_memcpy_sm":
				require.Equal(t, uint64(32<<10), c.Bytes, "half of one kernel's bytes, each way")
				require.Equal(t, uint64(64<<10), c.Verify.Bytes)
			case "device_to_device_bidirectional_memcpy_write_ce":
				require.InDelta(t, c.Stats.Value, c.Stats.Forward, 1e-9, "the other way stands beside it")
			}
		}
		require.Len(t, passed, len(nvCases))
	}
}

// With one device, what takes two is waived, and the rest is measured.
func TestNVBandwidthOnOneDevice(t *testing.T) {
	code, out, _ := bench(t, "--preset", "nvbandwidth", "--size", "64K", "--samples", "1", "--progress", "off", "--format", "json", "--device", "host:0")
	require.Equal(t, report.ExitPassed, code)
	for _, c := range parse(t, out).Cases {
		name := c.Axes["test"].(string)
		two := strings.Contains(name, "device_to_device") || strings.Contains(name, "one_")
		require.Equal(t, two, c.Status == report.Waived, "%s: %s", c.ID, c.Status)
	}
}

// Wrong data are found in each case.
func TestNVBandwidthChecks(t *testing.T) {
	code, out, _ := bench(t, "--preset", "nvbandwidth", "--size", "64K", "--samples", "1", "--progress", "off", "--format", "json",
		"--device", "host", "--corrupt", "8")
	require.Equal(t, report.ExitMismatch, code)
	for _, c := range parse(t, out).Cases {
		require.Equal(t, report.Failed, c.Status, c.ID)
		require.Equal(t, uint64(8), c.Verify.FirstBad.Offset, c.ID)
	}
}

// The device that nvbandwidth has copy is the one that copies, and the copies reach the
// devices that the name says.
func TestNVBandwidthFlows(t *testing.T) {
	devs := hostDevices(t, 3)
	flows := map[string]string{}
	name := func(d device) string {
		if d.Device == nil {
			return "host"
		}
		return strings.TrimPrefix(d.String(), "host:")
	}
	for _, c := range nvCases {
		var words []string
		for _, f := range flowsOf(c.copies, 1, devs[0], devs[1], devs) {
			words = append(words, name(f.ends[0])+string(f.way)+name(f.ends[1])+"/"+name(f.by)+"*"+size.Format(f.size))
		}
		flows[c.name] = strings.Join(words, " ")
	}
	for name, want := range map[string]string{
		"host_to_device_bidirectional_memcpy_ce":        "host>0/0*1B 0>host/0*2B",
		"device_to_host_bidirectional_memcpy_ce":        "0>host/0*1B host>0/0*2B",
		"device_to_device_memcpy_read_ce":               "1>0/0*1B",
		"device_to_device_memcpy_write_sm":              "0>1/0*1B",
		"device_to_device_bidirectional_memcpy_read_ce": "1>0/0*1B 0>1/1*1B",
		"all_to_host_memcpy_ce":                         "0>host/0*1B 1>host/1*2B 2>host/2*2B",
		"all_to_one_write_ce":                           "1>0/1*1B 2>0/2*1B",
		"one_to_all_read_ce":                            "1>0/0*1B 2>0/0*1B",
		"host_to_all_bidirectional_memcpy_sm":           "host=0/0*1B 1=host/1*1B 2=host/2*1B",
		"host_device_latency_sm":                        "0?host/0*1B",
		"device_local_copy":                             "0>0/0*1B",
	} {
		require.Equal(t, want, flows[name], name)
	}
}

// The latency is a chase: each load needs the one before.
func TestChaseEndsWhereItMust(t *testing.T) {
	devs := hostDevices(t, 2)
	for _, name := range []string{"host_device_latency_sm", "device_to_device_latency_sm"} {
		c := nvContender(t, nvGroups(t, name, devs...)[0])
		r, err := c.verify(t.Context(), verify.Full, -1)
		require.NoError(t, err)
		require.Zero(t, r.Errors)
		last, err := c.chase.in.part(8, 8).view(make([]byte, 8), 0, 8)
		require.NoError(t, err)
		require.Equal(t, uint64(c.chase.in.ptr)+uint64(c.chase.perBlock)*128%chaseSize, binary.NativeEndian.Uint64(last))
	}
}

// Whatever fails, all goes back.
func TestNVBandwidthGivesBack(t *testing.T) {
	t.Parallel()
	for _, call := range []string{"AllocHost", "AllocPlain", "NewStream", "NewEvent", "EnablePeer", "Copy", "Launch", "LoadModule"} {
		var hook func(drivertest.Call) error
		drv := drivertest.Inject(host.New(host.Config{Devices: 2, Memory: 1 << 30}), func(c drivertest.Call) error {
			if hook == nil {
				return nil
			}
			return hook(c)
		})
		devs := []device{openDriver(t, drv, 0), openDriver(t, drv, 1)}
		hook = drivertest.FailNth(call, 3, errors.New("broken"))
		groups, err := (&nvPlan{size.List{64 << 10}}).groups(devs, 1)
		require.NoError(t, err)
		s := newRunner()
		if testing.Short() { // no more groups than one that fails and one after it
			for i := 0; i < len(groups) && s.report.Count()[report.Error] == 0; i++ {
				s.measureGroups(t.Context(), groups[i:min(i+2, len(groups))])
			}
		} else {
			s.measureGroups(t.Context(), groups)
		}
		require.NotZero(t, s.report.Count()[report.Error], call)
		require.NotZero(t, s.report.Count()[report.Passed], call)
		require.NoError(t, closeDevices(devs), call)
		require.NoError(t, drv.Balanced(), call)
	}
}

// On a GPU, every case passes or is waived because it takes two, and a load slows down what is
// measured, if anything.
func TestNVBandwidthOnGPU(t *testing.T) {
	if os.Getenv("VMM_TEST_DRIVER") != "cuda" {
		t.Skip("needs a GPU and VMM_TEST_DRIVER=cuda")
	}
	set := userSettings()
	code, out, stderr := benchWith(t, set, "--preset", "nvbandwidth", "--size", "64M", "--samples", "5", "--max-time", "1s", "--progress", "off", "--format", "json")
	require.Equal(t, report.ExitPassed, code, stderr)
	values := map[string]float64{}
	r := parse(t, out)
	for _, c := range r.Cases {
		if c.Status == report.Waived && len(r.Devices) == 1 {
			continue
		}
		require.Equal(t, report.Passed, c.Status, "%s: %s", c.ID, c.Reason)
		require.NotContains(t, c.Flags, gateTimedOut, c.ID)
		values[c.Axes["test"].(string)] = c.Stats.Value
		t.Logf("%8.2f %s %s", c.Stats.Value, c.Unit, c.ID)
	}
	for loaded, alone := range map[string]string{
		"host_to_device_bidirectional_memcpy_ce": "host_to_device_memcpy_ce",
		"device_to_host_bidirectional_memcpy_ce": "device_to_host_memcpy_ce",
		"host_to_device_bidirectional_memcpy_sm": "host_to_device_memcpy_sm",
	} {
		require.Less(t, values[loaded], 1.1*values[alone], loaded)
		require.Greater(t, values[loaded], 0.2*values[alone], loaded)
	}
	require.Greater(t, values["host_device_latency_sm"], 100.0, "a load from the host takes longer than one from a cache")
	require.Less(t, values["host_device_latency_sm"], 20000.0)
}
