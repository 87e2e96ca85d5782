package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cmd/internal/size"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
)

func TestCopiesByEngine(t *testing.T) {
	args := []string{"bw", "--device", "host", "--size", "64K", "--direction", "h2d,d2h,d2d,both", "--host", "pageable,pinned",
		"--engine", "ce,sm", "--streams", "1,3", "--call", "async,sync", "--samples", "2", "--progress", "off", "--format", "json"}
	code, out, stderr := bench(t, args...)
	require.Equal(t, report.ExitPassed, code, stderr)
	require.NoError(t, conforms(t, strictSchema(t, ""), []byte(out)))
	passed := map[string]int{}
	for _, c := range parse(t, out).Cases {
		require.Equal(t, c.Axes["engine"] == engineSM, strings.Contains(c.ID, "/sm/"), c.ID)
		if c.Status == report.Waived {
			continue
		}
		require.Equal(t, report.Passed, c.Status, "%s: %s", c.ID, c.Reason)
		require.Equal(t, c.Bytes, c.Verify.Bytes, c.ID)
		if c.Axes["direction"] == d2d {
			require.InDelta(t, 2*c.Stats.Value, *c.Stats.Traffic, 1e-9, c.ID)
		}
		if c.Axes["engine"] == engineSM {
			passed[strings.TrimPrefix(c.ID, "bw/")]++
		}
	}
	for _, way := range []string{"h2d/pinned", "d2h/pinned", "d2d/none"} {
		for _, how := range []string{"", "/sync", "/streams-3"} {
			for _, mem := range []string{"vmm", "mmap"} {
				require.Equal(t, 1, passed[way+"/sm"+how+"/64KiB/"+mem], "%s %v", way, passed)
			}
		}
	}
	require.Equal(t, 2, passed["both/pinned/sm/64KiB/vmm"]+passed["both/pinned/sm/streams-3/64KiB/vmm"])
	require.Zero(t, passed["h2d/pageable/sm/64KiB/vmm"])

	code, out, _ = bench(t, append(args, "--engine", "sm", "--corrupt", "65535", "--verify", "edges")...)
	require.Equal(t, report.ExitMismatch, code)
	for _, c := range parse(t, out).Cases {
		if c.Status != report.Waived {
			require.Equal(t, report.Failed, c.Status, c.ID)
			require.Equal(t, uint64(64<<10-1), c.Verify.FirstBad.Offset, c.ID)
		}
	}
}

// Each engine makes its copies, and no other does.
func TestEngineThatCopies(t *testing.T) {
	for _, engine := range []string{engineCE, engineSM} {
		var copies, launches atomic.Int64
		dev := hookedDevice(t, func(c drivertest.Call) error {
			switch c.Name {
			case "Copy":
				copies.Add(1)
			case "Launch":
				launches.Add(1)
			}
			return nil
		})
		if engine == engineSM { // loading the kernels copies too
			_, err := dev.kernels.load()
			require.NoError(t, err)
			copies.Store(0)
			launches.Store(0)
		}
		p := newBWPlan()
		p.directions.values, p.sizes, p.engines.values = []string{d2d}, size.List{1 << 20}, []string{engine}
		s := newRunner()
		s.run(t.Context(), t, dev, p)
		require.Equal(t, map[report.Status]int{report.Passed: 2}, s.report.Count())
		require.Equal(t, engine == engineCE, copies.Load() > 0)
		require.Equal(t, engine == engineSM, launches.Load() > 0)
	}
}

func TestP2PByEngine(t *testing.T) {
	args := []string{"p2p", "--device", "host", "--size", "4,64K", "--grants", "0", "--samples", "2", "--progress", "off"}
	code, out, stderr := bench(t, append(args, "--engine", "ce,sm", "--format", "json")...)
	require.Equal(t, report.ExitPassed, code, stderr)
	require.NoError(t, conforms(t, strictSchema(t, ""), []byte(out)))
	count := map[any]int{}
	r := parse(t, out)
	for _, c := range r.Cases {
		require.Equal(t, report.Passed, c.Status, "%s: %s", c.ID, c.Reason)
		require.Equal(t, c.Bytes, c.Verify.Bytes, c.ID)
		require.Equal(t, c.Axes["engine"] == engineSM, strings.Contains(c.ID, "/sm/"), c.ID)
		count[c.Axes["engine"]]++
		if c.Axes["engine"] == engineSM {
			require.NotEqual(t, noPeer, c.Axes["mem"])
		}
	}
	const pairs, ways = 2, 2 + 3
	require.Equal(t, map[any]int{engineCE: pairs * ways * 3, engineSM: pairs * ways * 2}, count)
	for _, c := range r.Comparisons {
		require.Equal(t, strings.Contains(c.A, "/sm/"), strings.Contains(c.B, "/sm/"), "cases of two engines are not compared")
	}

	_, out, _ = bench(t, append(args, "--engine", "ce,sm")...)
	require.Contains(t, out, "write 64KiB vmm, GB/s")
	require.Contains(t, out, "write sm 64KiB vmm, GB/s")

	code, _, stderr = bench(t, append(args, "--engine", "sm", "--mem", "none")...)
	require.Equal(t, report.ExitUsage, code)
	require.Contains(t, stderr, "cannot go through the host")
}

// A kernel that copies from or to a peer runs on the device that reads or writes, with peer
// access on where it is needed.
func TestP2PBySMGivesBack(t *testing.T) {
	t.Parallel()
	for n := 1; n <= 12; n++ {
		var hook func(drivertest.Call) error
		var failed atomic.Bool
		drv := drivertest.Inject(host.New(host.Config{Devices: 2, Memory: 1 << 30}), func(c drivertest.Call) error {
			if hook == nil {
				return nil
			}
			err := hook(c)
			failed.CompareAndSwap(false, err != nil)
			return err
		})
		hook = drivertest.FailNth("Launch", 4*n, errors.New("broken"))
		a, b := openDriver(t, drv, 0), openDriver(t, drv, 1)
		p := newP2PPlan()
		p.sizes, p.grants, p.engines.values = size.List{64 << 10}, nil, []string{engineSM}
		s := newRunner()
		groups, err := p.groups([]device{a, b}, 1)
		require.NoError(t, err)
		s.measureGroups(t.Context(), groups)
		require.NoError(t, closeDevices([]device{a, b}), "nothing may be left open")
		require.NoError(t, drv.Balanced())
		require.True(t, failed.Load())
		require.NotZero(t, s.report.Count()[report.Error])
	}
}

// Two runs by different engines have no case in common.
func TestEnginesAreNotComparedWithEachOther(t *testing.T) {
	dir := t.TempDir()
	file := func(engine string) string { return filepath.Join(dir, engine+".json") }
	for _, engine := range []string{engineCE, engineSM} {
		code, _, _ := bench(t, "bw", "--device", "host", "--direction", "d2d", "--size", "64K", "--samples", "2", "--engine", engine,
			"--progress", "off", "-o", file(engine))
		require.Equal(t, report.ExitPassed, code)
	}
	code, out, stderr := bench(t, "compare", file(engineCE), file(engineSM))
	require.Equal(t, report.ExitError, code)
	require.Empty(t, out)
	require.Contains(t, stderr, "no case")

	// In one report the engine is a part of the name.
	csv := filepath.Join(dir, "both.csv")
	_, out, _ = bench(t, "bw", "--device", "host", "--direction", "d2d", "--size", "64K", "--samples", "2", "--engine", "ce,sm",
		"--progress", "off", "-o", csv)
	require.Contains(t, out, "bw/d2d/none/sm/64KiB/vmm ")
	require.Contains(t, out, "sm: a kernel copies")
	text, err := os.ReadFile(csv)
	require.NoError(t, err)
	require.Contains(t, string(text), " engine=sm ")
}
