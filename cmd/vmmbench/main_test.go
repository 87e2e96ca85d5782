package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/stat"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/verify"
	"github.com/cuvmm/cuvmm/internal/freememory"
	"github.com/cuvmm/cuvmm/vmm"
)

func TestTour(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "tour.ndjson")
	code, out, progress := bench(t, "--device", "host", "--size", "256K,1M", "--samples", "10",
		"--min-time", "100us", "--format", "json", "-o", file)
	require.Equal(t, report.ExitPassed, code, progress)
	require.Regexp(t, "(?m)^1 of 11: bw/h2d/pageable/256KiB$", progress)

	r := parse(t, out)
	require.Equal(t, report.Schema, r.Schema)
	require.Equal(t, "host:0", r.Devices[0].Open)
	passed := 0
	for _, c := range r.Cases {
		if c.Status == report.Waived {
			require.NotEmpty(t, c.Reason)
			continue
		}
		passed++
		require.Equal(t, report.Passed, c.Status, "%s: %s", c.ID, c.Reason)
		require.Equal(t, c.Bytes, c.Verify.Bytes, c.ID)
		require.Zero(t, c.Verify.Errors, c.ID)
		require.Len(t, c.Samples, 10, c.ID)
		require.Equal(t, "samples", c.Stats.Stop)
		require.Positive(t, c.Stats.Value)
		require.LessOrEqual(t, *c.Stats.ValueLow, *c.Stats.ValueHigh)
	}
	require.GreaterOrEqual(t, passed, 12)
	require.GreaterOrEqual(t, len(r.Comparisons), 6)
	for _, c := range r.Comparisons {
		if c.Ratio == nil {
			require.NotEmpty(t, c.Reason, c.ID)
			continue
		}
		require.LessOrEqual(t, *c.Low, *c.High)
		require.Contains(t, []stat.Verdict{stat.Equal, stat.Slower, stat.Faster, stat.TooNoisy, stat.AtMargin}, c.Verdict)
	}

	lines, err := os.ReadFile(file)
	require.NoError(t, err)
	count := map[string]int{}
	for line := range strings.Lines(string(lines)) {
		var one map[string]json.RawMessage
		require.NoError(t, json.Unmarshal([]byte(line), &one))
		for key := range one {
			count[key]++
		}
	}
	require.Equal(t, len(r.Cases), count["case"])
	require.Equal(t, len(r.Comparisons), count["comparison"])
	require.Equal(t, 1, count["run"])
	require.Equal(t, 1, count["end"])
}

func TestGrowInPlace(t *testing.T) {
	code, out, _ := bench(t, "grow", "--device", "host?page=64K", "--size", "512K", "--step", "64K", "--chunk", "0,256K",
		"--samples", "2", "--format", "json", "--progress", "off")
	require.Equal(t, report.ExitPassed, code)
	for _, c := range parse(t, out).Cases {
		if c.Status == report.Waived {
			require.Equal(t, "mallocAsync-copy", c.Axes["mem"])
			continue
		}
		require.Equal(t, 8, c.Stats.Steps, c.ID)
		require.Len(t, c.Stats.Growth.Samples, 2)
		require.GreaterOrEqual(t, c.Stats.Peak, c.Bytes)
		if mem, _ := c.Axes["mem"].(string); strings.HasPrefix(mem, "vmm") {
			require.Zero(t, c.Stats.Moves, "the pointer never moves")
			require.Zero(t, c.Stats.Copied)
			require.Equal(t, c.Bytes, c.Stats.Peak, "and no more than Max is ever mapped")
			continue
		}
		if c.Axes["mem"] == "mremap" {
			require.Zero(t, c.Stats.Copied, "pages move, not bytes")
			continue
		}
		require.Positive(t, c.Stats.Moves, c.ID)
		require.Positive(t, c.Stats.Copied, c.ID)
	}
}

// Growing by doubling has a step for each power of two, and growing without writing has
// nothing to check.
func TestGrowDoubling(t *testing.T) {
	t.Parallel()
	args := []string{"grow", "--device", "host", "--size", "8M", "--step", "x2", "--samples", "1", "--format", "json", "--progress", "off"}
	code, out, _ := bench(t, args...)
	require.Equal(t, report.ExitPassed, code)
	for _, c := range parse(t, out).Cases {
		if c.Status != report.Waived {
			require.Equal(t, 3, c.Stats.Steps, c.ID) // 2, 2 and 4 MiB
			require.Equal(t, uint64(8<<20), c.Verify.Bytes)
		}
	}
	code, out, _ = bench(t, append(args, "--write", "none")...)
	require.Equal(t, report.ExitPassed, code)
	for _, c := range parse(t, out).Cases {
		if c.Status == report.Waived {
			continue
		}
		require.Equal(t, 3, c.Stats.Steps, c.ID)
		require.Equal(t, verify.Off, c.Verify.Mode)
		if c.Axes["mem"] == "mmap-copy" {
			require.Equal(t, uint64(6<<20), c.Stats.Copied)
		}
	}
}

// --memory is a share of what is free, in whole steps.
func TestGrowToAShareOfMemory(t *testing.T) {
	dev := hookedDevice(t, nil) // 1 GiB, or less if the machine has less than twice that
	if free, ok := freememory.Bytes("/"); ok && free < 2<<30 {
		t.Skipf("needs 2 GiB of free memory, there are %d bytes", free)
	}
	p := newGrowPlan()
	p.memory, p.step = 0.5, doubling
	target, err := p.memoryTarget(dev)
	require.NoError(t, err)
	require.Equal(t, uint64(256<<20), target)
	p.memory, p.step = 0.99, 100<<20
	target, err = p.memoryTarget(dev)
	require.NoError(t, err)
	require.Equal(t, uint64(500<<20), target)
	p.step = 8 << 30
	_, err = p.memoryTarget(dev)
	require.ErrorAs(t, err, &usageError{})
}

func TestBothDirectionsAtOnce(t *testing.T) {
	code, out, _ := bench(t, "bw", "--device", "host", "--direction", "both", "--size", "1M", "--samples", "2",
		"--format", "json", "--progress", "off")
	require.Equal(t, report.ExitPassed, code)
	r := parse(t, out)
	for _, c := range r.Cases {
		if c.Axes["host"] == "pageable" {
			require.Equal(t, report.Waived, c.Status)
			continue
		}
		require.Equal(t, report.Passed, c.Status)
		require.Equal(t, uint64(2<<20), c.Verify.Bytes, "both ways are verified")
		require.Positive(t, c.Stats.Forward)
		require.Positive(t, c.Stats.Reverse)
	}
}

func TestCorruptByteExitsWith3(t *testing.T) { byHostAndDevice(t, corruptByteExitsWith3) }

func corruptByteExitsWith3(t *testing.T, set *settings) {
	for _, args := range [][]string{
		{"bw", "--size", "128K", "--direction", "h2d,d2h,d2d", "--chunk", "64K"},
		{"bw", "--size", "128K", "--direction", "both", "--host", "pinned", "--verify", "edges", "--chunk", "64K"},
		{"grow", "--size", "128K", "--step", "32K", "--mem", "vmm,plain,double,append", "--chunk", "64K"},
	} {
		args = append(args, "--device", "host?page=64K", "--samples", "1", "--progress", "off", "--format", "json")
		code, _, _ := benchWith(t, set, args...)
		require.Equal(t, report.ExitPassed, code, args)

		const at = 64<<10 + 1 // the second byte of the second chunk
		code, out, _ := benchWith(t, set, append(args, "--corrupt", "65537")...)
		require.Equal(t, report.ExitMismatch, code, args)
		for _, c := range parse(t, out).Cases {
			if c.Axes["chunk"] == "whole" && c.Verify.Mode == "edges" {
				continue // one piece has no edge there
			}
			require.Equal(t, report.Failed, c.Status, c.ID)
			require.NotZero(t, c.Verify.Errors, c.ID)
			require.Equal(t, uint64(at), c.Verify.FirstBad.Offset, c.ID)
			require.Equal(t, c.Verify.FirstBad.Expected^0xff, c.Verify.FirstBad.Got)
			require.Contains(t, string(c.Reason), "offset 65537")
			if c.Axes["chunk"] == "64KiB" {
				require.Equal(t, 1, c.Verify.FirstBad.Chunk)
			}
		}
	}
}

func TestSeedDecidesTheData(t *testing.T) {
	expected := func(command, seed string) (bytes []byte) {
		_, out, _ := bench(t, command, "--device", "host", "--size", "64K", "--samples", "1", "--seed", seed,
			"--corrupt", "0", "--progress", "off", "--format", "json")
		for _, c := range parse(t, out).Cases {
			if c.Verify != nil {
				bytes = append(bytes, c.Verify.FirstBad.Expected)
			}
		}
		return bytes
	}
	for _, command := range []string{"bw", "grow"} {
		require.Equal(t, expected(command, "1"), expected(command, "1"))
		require.NotEqual(t, expected(command, "1"), expected(command, "2"))
	}
}

func TestInterruptLeavesValidResults(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	file := filepath.Join(t.TempDir(), "partial.json")
	var out bytes.Buffer
	code := run(ctx, testSettings(), []string{"--device", "host", "--size", "64K,256K", "--samples", "3", "--min-time", "0", "-o", file, "--progress", "plain"},
		&out, &interrupter{n: 3, cancel: cancel})
	require.Equal(t, report.ExitInterrupted, code)
	require.Contains(t, out.String(), "interrupted, so this is not all")

	text, err := os.ReadFile(file)
	require.NoError(t, err)
	r := parse(t, string(text))
	require.True(t, r.Run.Interrupted)
	for i, c := range r.Cases {
		if i < 4 {
			require.Equal(t, report.Passed, c.Status, c.ID)
			continue
		}
		require.Equal(t, report.Interrupted, c.Status, c.ID)
		require.NotNil(t, c.Samples)
		require.NotEmpty(t, c.Reason)
	}
	require.Len(t, r.Cases, 28, "what was not started is there, and says so")
}

func TestNoCUDAExitsWith77(t *testing.T) {
	if dev, err := vmm.Open("cuda:0"); err == nil {
		require.NoError(t, dev.Close())
		t.Skip("needs a machine without a CUDA device")
	}
	for _, args := range [][]string{{}, {"bw"}, {"grow"}, {"ops"}, {"pool"}, {"p2p"}, {"share"}, {"sleep"}, {"info"}} {
		args = append(args, "--device", "cuda:0", "--format", "json")
		code, out, stderr := bench(t, args...)
		require.Equal(t, report.ExitWaived, code, args)
		require.Contains(t, stderr, "libcuda.so.1", "it says what was looked for")
		r := parse(t, out)
		require.Len(t, r.Cases, 1)
		require.Equal(t, report.Waived, r.Cases[0].Status)
		require.Contains(t, string(r.Cases[0].Reason), "libcuda.so.1")
	}
}

// TestRunThatCannotStartLeavesTheLastReport and TestHintsNameTheCommand have more of them.
func TestUsageExitsWith2(t *testing.T) {
	for _, args := range [][]string{
		{"nosuchcommand"}, {"bw", "extra"}, {"bw", "--size", "lots"}, {"--size", "0"},
		{"grow", "--size", "0"}, {"grow", "--step", "0"}, {"grow", "--min-time", "1ms"},
		{"--max-time", "0s"}, {"--min-time", "-1s"}, {"--margin", "200%"},
		{"--format", "xml"}, {"--verify", "some"}, {"bw", "--mem", "vmm,none"},
		{"info", "--samples", "3"},
		{"info", "--format", "gobench"}, {"info", "--format", "csv"}, {"info", "-o", "out.bench"}, {"info", "-o", "out.xml"},
		{"--dry-run", "--format", "json"}, {"--dry-run", "-o", "out.json"}, {"-o", "a.json", "-o", "./a.json"},
		{"completion", "bash", "extra"}, {"bw", "--control=maybe"},
		{"bw", "--exportable", "maybe"}, {"grow", "--busy", "-1"}, {"grow", "--busy", "1,many"}, {"grow", "--busy", "65"},
		{"ops", "--size", "0"}, {"ops", "--op", "move"}, {"ops", "--verify", "full"}, {"ops", "--min-time", "1ms"}, {"ops", "--busy", ""},
		{"pool", "--trace", "none"}, {"pool", "--reuse", "some"}, {"pool", "--reuse", "all+some"}, {"pool", "--reuse", "all+none"}, {"pool", "--reuse", "none+events"}, {"pool", "--threshold", ",all"}, {"-l"}, {"share", "--how", "mail"}, {"pool", "--verify", "full"},
		{"bw", "--streams", "0"}, {"bw", "--call", "later"}, {"bw", "--into", "none"}, {"sleep", "--size", "0"}, {"sleep", "--min-time", "1ms"},
	} {
		if !slices.Contains(args, "--device") && args[0] != "completion" {
			args = append(args, "--device", "host")
		}
		code, out, stderr := bench(t, args...)
		require.Equal(t, report.ExitUsage, code, args)
		require.Empty(t, out, args)
		require.Contains(t, stderr, "vmmbench:", args)
	}
}

func TestNoSuchHostDeviceIsWaived(t *testing.T) {
	code, _, stderr := bench(t, "bw", "--device", "host:99")
	require.Equal(t, report.ExitWaived, code)
	require.Contains(t, stderr, "host:99")
}

func TestSizesBeyondTheMachineAreErrors(t *testing.T) {
	for _, command := range []string{"bw", "grow", "sleep"} {
		code, out, _ := bench(t, command, "--device", "host", "--size", "64T", "--format", "json")
		require.Equal(t, report.ExitError, code)
		for _, c := range parse(t, out).Cases {
			require.Equal(t, report.Error, c.Status)
			require.Contains(t, string(c.Reason), "bytes of host memory")
		}
	}
}

// Ten samples of each, though the time was over after the first: a ratio with
// fewer has no interval.
func TestTourTakesWhatARatioNeeds(t *testing.T) {
	code, out, _ := bench(t, "--device", "host", "--size", "64K", "--max-time", "1ns", "--min-time", "0",
		"--progress", "off", "--format", "json")
	require.Equal(t, report.ExitPassed, code)
	ratios := 0
	for _, c := range parse(t, out).Comparisons {
		if c.Ratio != nil {
			ratios++
			continue
		}
		require.Contains(t, string(c.Reason), "waived", c.ID)
	}
	require.GreaterOrEqual(t, ratios, 6)
}

func TestTourGrowsAsOftenAsItIsTold(t *testing.T) {
	samples := func(args ...string) int {
		args = append(args, "--device", "host", "--size", "64K", "--min-time", "0", "--verify", "off", "--progress", "off", "--format", "json")
		_, out, _ := bench(t, args...)
		for _, c := range parse(t, out).Cases {
			if strings.HasPrefix(c.ID, "grow/") {
				return len(c.Samples)
			}
		}
		return 0
	}
	require.Equal(t, tourGrowths, samples())
	require.Equal(t, 9, samples("--samples", "9"))
}

func TestExportableMemoryIsACase(t *testing.T) {
	code, out, _ := bench(t, "bw", "--device", "host", "--size", "64K", "--direction", "d2d", "--exportable", "no,yes",
		"--samples", "1", "--progress", "off", "--format", "json")
	require.Equal(t, report.ExitPassed, code)
	r := parse(t, out)
	require.Len(t, r.Cases, 3)
	require.Equal(t, "bw/d2d/none/64KiB/vmm-exportable", r.Cases[1].ID)
	require.Equal(t, "yes", r.Cases[1].Axes["exportable"])
	require.Equal(t, report.Passed, r.Cases[1].Status)
	require.Len(t, r.Comparisons, 2)
}

func TestHelp(t *testing.T) {
	for _, args := range [][]string{{"help"}, {"help", "bw"}, {"help", "completion", "bash"}, {"--help"}} {
		code, out, _ := bench(t, args...)
		require.Equal(t, report.ExitPassed, code, args)
		require.Contains(t, out, "Usage:", args)
	}
}

func TestDryRunEndsAsTheRunWould(t *testing.T) {
	code, out, stderr := bench(t, "--dry-run", "--device", "host:99")
	require.Equal(t, report.ExitWaived, code)
	require.Empty(t, out)
	require.Contains(t, stderr, "host:99")
	code, _, _ = bench(t, "grow", "--dry-run", "--device", "host", "--step", "7")
	require.Equal(t, report.ExitUsage, code)
}

func TestDryRunMeasuresNothing(t *testing.T) {
	code, out, stderr := bench(t, "--device", "host", "--dry-run")
	require.Equal(t, report.ExitPassed, code)
	require.Regexp(t, `^18 cases in 6 groups\n$`, stderr)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	require.Len(t, lines, 18)
	require.Equal(t, "bw/h2d/pageable/16MiB/vmm", lines[0])
}

// Each line of a preset is a command with flags that this program has.
func TestPresets(t *testing.T) {
	for _, p := range presets[1:] {
		code, out, _ := bench(t, "--preset", p.name, "--device", "host", "--dry-run")
		require.Equal(t, report.ExitPassed, code, p.name)
		ids := strings.Fields(out)
		slices.Sort(ids)
		require.Equal(t, slices.Compact(slices.Clone(ids)), ids, "%s: a case is there twice", p.name)
		require.NotEmpty(t, ids, p.name)
	}
	_, out, _ := bench(t, "--preset", "nvbandwidth", "--device", "host", "--dry-run")
	require.Contains(t, out, "nvbandwidth/device_local_copy/")
	require.Contains(t, out, "nvbandwidth/device_to_device_memcpy_read_ce/")
	code, _, stderr := bench(t, "--preset", "full", "--size", "1M", "--dry-run")
	require.Equal(t, report.ExitUsage, code)
	require.Contains(t, stderr, "--preset quick")
}

func TestInfo(t *testing.T) {
	code, out, _ := bench(t, "info", "--device", "host", "--format", "json")
	require.Equal(t, report.ExitPassed, code)
	r := parse(t, out)
	require.Len(t, r.Devices, 1)
	d := r.Devices[0]
	require.Equal(t, "host:0", d.Open)
	require.NotNil(t, d.Granularity)
	require.NotEmpty(t, d.Features)
	for _, f := range d.Features {
		require.True(t, f.Supported != nil || f.Reason != "", f.Name)
	}
	require.Nil(t, r.Run.Measure)
	require.Empty(t, r.Cases)

	code, out, _ = bench(t, "info")
	require.Equal(t, report.ExitPassed, code)
	require.Contains(t, out, "vm.max_map_count")
	require.Contains(t, out, "read-only-map")
}
