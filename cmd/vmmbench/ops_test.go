package main

import (
	"context"
	"encoding/csv"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cmd/internal/size"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
)

func TestOps(t *testing.T) {
	code, out, progress := bench(t, "ops", "--device", "host", "--size", "2M,8M", "--total", "20M", "--samples", "3", "--format", "json")
	require.Equal(t, report.ExitPassed, code, progress)
	require.Regexp(t, "(?m)^4 of 4: ops/8MiB/busy-1$", progress)
	r := parse(t, out)
	require.Len(t, r.Cases, 2*2*len(newOpsPlan().ops.of))
	require.Empty(t, r.Comparisons)
	require.Equal(t, "off", string(r.Run.Measure.Verify))
	for _, c := range r.Cases {
		if c.Status == report.Waived {
			require.Contains(t, []any{"mallocAsync", "freeAsync"}, c.Axes["op"])
			continue
		}
		require.Equal(t, report.Passed, c.Status, "%s: %s", c.ID, c.Reason)
		require.Len(t, c.Samples, 3, c.ID)
		require.Equal(t, "us", c.Unit)
		require.InDelta(t, c.Stats.Median/1e3, c.Stats.Value, 1e-9)
		require.Positive(t, slices.Min(c.Samples), c.ID)
		n := uint64(c.Axes["size"].(float64))
		switch {
		case c.Axes["op"] != "grow" && c.Axes["op"] != "regrow":
			require.Equal(t, n, c.Bytes)
		case n == 8<<20:
			require.Equal(t, uint64(16<<20), c.Bytes, "whole chunks")
		default:
			require.Equal(t, uint64(20<<20), c.Bytes)
		}
	}
}

func TestOpsAsCSV(t *testing.T) {
	_, out, _ := bench(t, "ops", "--device", "host", "--size", "2M", "--op", "create", "--samples", "1", "--busy", "2", "--progress", "off", "--format", "csv")
	lines, err := csv.NewReader(strings.NewReader(out)).ReadAll()
	require.NoError(t, err)
	require.Len(t, lines, 2)
	require.Contains(t, lines[1][slices.Index(lines[0], "axes")], "busy=2")
	require.Equal(t, "ops/2MiB/busy-2/create", lines[1][slices.Index(lines[0], "id")])
}

// opsPlanOf is a short plan of these operations.
func opsPlanOf(ops ...string) *opsPlan {
	p := newOpsPlan()
	p.ops.values, p.sizes, p.total, p.busy = ops, size.List{2 << 20}, 6<<20, counts{0}
	return p
}

// Whichever call fails, the case says so, the others go on, and all that was
// taken goes back.
func TestOpsThatFailGiveBack(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ call, op string }{
		{"Reserve", "map"}, {"Create", "map"}, {"Map", "setaccess"}, {"SetAccess", "unmap"},
		{"Create", "export"}, {"Export", "export"}, {"Import", "export"},
		{"AllocPlain", "plain-free"},
		{"Reserve", "grow"}, {"Create", "grow"}, {"Map", "grow"}, {"SetAccess", "grow"},
		{"Reserve", "regrow"}, {"Create", "regrow"}, {"Map", "regrow"}, {"SetAccess", "regrow"},
	} {
		for n := 1; n <= 3; n++ {
			drv := drivertest.Inject(host.New(host.Config{Devices: 1, Memory: 1 << 30}), nil)
			failing := drivertest.Inject(drv, drivertest.FailNth(c.call, n, vmm.ErrOutOfMemory))
			dev := openDriver(t, failing, 0)
			s := newRunner()
			s.run(t.Context(), t, dev, opsPlanOf(c.op))
			require.Equal(t, report.Error, s.report.Cases[0].Status, "%s, call %d of %s", c.op, n, c.call)
			require.NoError(t, dev.Close())
			require.NoError(t, drv.Balanced(), "%s, call %d of %s", c.op, n, c.call)
		}
	}
}

func TestOpsInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	calls := 0
	dev := hookedDevice(t, func(c drivertest.Call) error {
		if c.Name == "Create" {
			if calls++; calls == 3 { // the first is the warm-up's
				cancel()
			}
		}
		return nil
	})
	s := newRunner()
	s.flags.samples = 9
	s.run(ctx, t, dev, opsPlanOf("create"))
	require.Equal(t, report.Interrupted, s.report.Cases[0].Status)
	require.Len(t, s.report.Cases[0].Samples, 2)
	require.Equal(t, 3, calls)
}

func TestOpsSizesThatFit(t *testing.T) {
	dev := hookedDevice(t, nil) // 1 GiB
	names := func(p *opsPlan) (list []string) {
		groups, err := p.groups([]device{dev}, 1)
		require.NoError(t, err)
		for _, g := range groups {
			list = append(list, g.name)
		}
		return list
	}
	p := newOpsPlan()
	p.busy = counts{0}
	require.Equal(t, []string{"ops/2MiB", "ops/32MiB", "ops/128MiB"}, names(p))
	p.sizes = opsSizes
	require.Len(t, names(p), 5, "what was asked for is tried")
}

// A stream has work when a sample begins, and whatever becomes of it there is
// nothing left.
func TestBusyStreams(t *testing.T) {
	dev := hookedDevice(t, nil)
	l := &busyStreams{dev: dev, n: 2}
	undo, err := l.setup(t.Context())
	require.NoError(t, err)
	for range 10 {
		l.waitQueued(t.Context())
	}
	require.NoError(t, undo())
	l.waitQueued(t.Context()) // nothing to wait for
}

func TestBusyStreamThatFails(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		call string
		n    int
	}{{"Reserve", 1}, {"Create", 1}, {"NewStream", 1}, {"NewStream", 2}, {"NewEvent", 1}, {"NewEvent", 6}, {"Copy", 1}, {"Copy", 10}, {"Record", 2}, {"SyncEvent", 3}} {
		var hook func(drivertest.Call) error
		dev := hookedDeviceOf(t, host.Config{Memory: 64 << 20, Granularity: smallPage}, func(call drivertest.Call) error {
			if hook == nil {
				return nil
			}
			return hook(call)
		})
		hook = drivertest.FailNth(c.call, c.n, vmm.ErrOutOfMemory)
		p := opsPlanOf("plain-alloc") // which makes none of these calls
		p.busy = counts{2}
		s := newRunner()
		s.flags.samples = 20
		s.run(t.Context(), t, dev, p)
		got := s.report.Cases[0]
		require.Equal(t, report.Error, got.Status, "%+v", c)
		require.Contains(t, string(got.Reason), "busy stream", "%+v", c)
	}
}

// The device's pool keeps what it kept before, whichever operations were measured.
func TestOpsLeaveThePoolAsItWas(t *testing.T) {
	dev := hookedDevice(t, nil)
	pooler := dev.raw.(driver.Pooler)
	h, err := pooler.CurrentPool()
	require.NoError(t, err)
	require.NoError(t, pooler.SetPoolAttribute(h, driver.PoolReleaseThreshold, 12345))
	s := newRunner()
	s.run(t.Context(), t, dev, opsPlanOf("async-alloc", "async-free"))
	require.Equal(t, report.Passed, s.report.Cases[0].Status, s.report.Cases[0].Reason)
	kept, err := pooler.PoolAttribute(h, driver.PoolReleaseThreshold)
	require.NoError(t, err)
	require.Equal(t, uint64(12345), kept)
}
