package main

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
)

// opened opens devices of a driver.
func opened(t *testing.T, drv driver.Driver, ordinals ...int) []device {
	t.Helper()
	var devs []device
	for _, n := range ordinals {
		dev := openDriver(t, drv, n)
		t.Cleanup(func() { require.NoError(t, dev.Close(), "nothing may be left open") })
		devs = append(devs, dev)
	}
	return devs
}

// planOn plans for all pairs and returns the rows by "from to".
func planOn(t *testing.T, devs []device) (report.PeerPlan, map[string]report.PeerPair) {
	t.Helper()
	r := newRunner()
	require.NoError(t, r.plan(devs))
	rows := map[string]report.PeerPair{}
	for _, p := range r.report.Plan {
		rows[p.From+" "+p.To] = p
	}
	require.Len(t, r.report.Plan, len(devs)*(len(devs)-1))
	require.Len(t, rows, len(r.report.Plan))
	return r.report.Plan, rows
}

func TestP2PPlan(t *testing.T) {
	code, out, stderr := bench(t, "p2p", "--plan", "--device", "host:0,host:1,host:2", "--format", "json")
	require.Equal(t, report.ExitPassed, code, stderr)
	r := parse(t, out)
	require.Len(t, r.Devices, 3)
	require.Len(t, r.Plan, 6)
	require.Empty(t, r.Cases)
	require.Nil(t, r.Run.Measure, "nothing is measured")
	for _, p := range r.Plan {
		require.True(t, p.Can)
		require.True(t, *p.Access)
		require.Equal(t, report.Text("none"), p.Now)
		require.Equal(t, report.Text("read-write"), p.Then)
		require.Equal(t, report.Text("host"), p.Kind)
		require.Empty(t, p.Why)
	}
	code, out, _ = bench(t, "p2p", "--plan", "--device", "host")
	require.Equal(t, report.ExitPassed, code)
	require.Regexp(t, `none +read-write`, out)
	require.NotContains(t, out, "nofile", "this is not info")
}

// A plan grants nothing, copies nothing and leaves nothing behind.
func TestP2PPlanChangesNothing(t *testing.T) {
	var calls []string
	drv := drivertest.Inject(host.New(host.Config{Devices: 2, Memory: 1 << 30}), func(c drivertest.Call) error {
		calls = append(calls, c.Name)
		return nil
	})
	devs := opened(t, drv, 0, 1)
	calls = nil
	planOn(t, devs)
	require.Contains(t, calls, "CanAccessPeer")
	for _, name := range []string{"SetAccess", "EnablePeer", "Map", "Copy", "Fill"} {
		require.NotContains(t, calls, name)
	}
	for _, dev := range devs {
		require.NoError(t, dev.Close())
	}
	require.NoError(t, drv.Balanced())
}

// What cannot be done is in its row, with the reason, and the others are planned.
func TestP2PPlanWithoutAPath(t *testing.T) {
	drv := host.New(host.Config{Devices: 3, Memory: 1 << 30, NoPeer: [][2]int{{0, 1}}})
	plan, rows := planOn(t, opened(t, drv, 0, 1, 2))
	require.Equal(t, report.ExitError, plan.Exit(), "EnablePeers would refuse all")
	for name, p := range rows {
		none := name == "host:0 host:1" || name == "host:1 host:0"
		require.Equal(t, !none, p.Can, name)
		require.Equal(t, !none, *p.Access, name)
		if none {
			require.Equal(t, report.Text("not supported: no path between them"), p.Why)
			require.Empty(t, p.Then)
		}
	}

	plan, _ = planOn(t, opened(t, drv, 0, 1))
	require.Equal(t, report.ExitWaived, plan.Exit())
}

func TestP2PPlanOfTwoDrivers(t *testing.T) {
	a := opened(t, host.New(host.Config{Devices: 2, Memory: 1 << 30}), 0, 1)
	b := opened(t, host.New(host.Config{Devices: 3, Memory: 1 << 30}), 2)
	plan, rows := planOn(t, slices.Concat(a, b))
	require.Equal(t, report.ExitError, plan.Exit())
	require.True(t, rows["host:0 host:1"].Can)
	p := rows["host:0 host:2"]
	require.False(t, p.Can)
	require.Contains(t, p.Why, "another driver")
	require.Nil(t, p.Access)
	require.NotEmpty(t, p.Reason)
}

// A device that can have no range, or cannot map memory, is named by its pairs.
func TestP2PPlanOfADeviceThatRefuses(t *testing.T) {
	defer vmm.SetAddressLimit(vmm.SetAddressLimit(1 << 40)) // no arenas: each range has a Reserve
	for call, refused := range map[string][]string{
		"Reserve":  {"host:0 host:1"}, // its memory cannot be shared
		"Supports": {"host:1 host:0"}, // it cannot map the other's
	} {
		armed := false
		drv := drivertest.Inject(host.New(host.Config{Devices: 2, Memory: 1 << 30}), func(c drivertest.Call) error {
			if !armed || c.Name != call {
				return nil
			}
			if c.Name == "Supports" && c.Dev != 1 {
				return nil
			}
			armed = c.Name == "Supports" // Reserve has no device: the first is of the first pair
			return fmt.Errorf("%w: made up", vmm.ErrNotSupported)
		})
		devs := opened(t, drv, 0, 1)
		armed = true
		plan, _ := planOn(t, devs)
		armed = false
		for _, p := range plan {
			require.Equal(t, !slices.Contains(refused, p.From+" "+p.To), p.Can, "%s: %s %s", call, p.From, p.To)
			if !p.Can {
				require.Contains(t, p.Why, "made up")
			}
		}
	}
}

func TestP2PPlanUsage(t *testing.T) {
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--device", "host:1"}, report.ExitWaived, "a pair takes two"},
		{[]string{"--device", "host:0,host:99"}, report.ExitWaived, "host:99"},
		{[]string{"--device", "host,host:0"}, report.ExitUsage, "named twice"},
		{[]string{"--device", "host", "--dry-run"}, report.ExitUsage, "measures nothing"},
		{[]string{"--device", "host", "--format", "csv"}, report.ExitUsage, "no cases"},
		{[]string{"--device", "host", "-o", "plan.ndjson"}, report.ExitUsage, "no cases"},
		{[]string{"--device", "host,host?page=4K"}, report.ExitWaived, ""},
	} {
		code, out, stderr := bench(t, append([]string{"p2p", "--plan"}, c.args...)...)
		require.Equal(t, c.code, code, c.args)
		require.Contains(t, stderr, c.want, c.args)
		require.NotContains(t, out, "nofile", c.args)
	}
}
