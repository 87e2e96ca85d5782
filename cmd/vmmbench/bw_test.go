package main

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cmd/internal/size"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/stat"
	"github.com/cuvmm/cuvmm/vmm"
)

// Memory that grows by steps has the chunks that appends would have made.
func TestCopiesOfMemoryThatGrewBySteps(t *testing.T) {
	code, out, _ := bench(t, "bw", "--device", "host?page=64K", "--size", "1M", "--direction", "d2d", "--step", "0,64K", "--chunk", "0,128K",
		"--samples", "1", "--progress", "off", "--format", "json")
	require.Equal(t, report.ExitPassed, code)
	r := parse(t, out)
	var ids []string
	for _, c := range r.Cases {
		require.Equal(t, report.Passed, c.Status)
		ids = append(ids, strings.TrimPrefix(c.ID, "bw/d2d/none/1MiB/"))
	}
	require.Equal(t, []string{"vmm", "vmm-by-64KiB", "vmm-128KiB", "vmm-128KiB-by-64KiB", "mmap"}, ids)
	require.Equal(t, "whole", r.Cases[0].Axes["step"])
	require.Equal(t, "64KiB", r.Cases[1].Axes["step"])

	dev := hookedDevice(t, nil)
	appended, err := dev.NewRange(vmm.RangeOptions{Max: 32 << 20})
	require.NoError(t, err)
	defer appended.Close()
	for range 32 {
		require.NoError(t, appended.Append(make([]byte, 1<<20)))
	}
	b, err := newBuffer(dev, memVMM, shape{size: 32 << 20, step: 1 << 20})
	require.NoError(t, err)
	defer func() { require.NoError(t, b.free()) }()
	require.Equal(t, chunkStarts(appended), b.chunks)
	require.Greater(t, len(b.chunks), 4)
	whole, err := newBuffer(dev, memVMM, shape{size: 32 << 20})
	require.NoError(t, err)
	defer func() { require.NoError(t, whole.free()) }()
	require.Len(t, whole.chunks, 1)
}

func TestStagingIsForDevicesWithMemoryOfTheirOwn(t *testing.T) {
	code, out, _ := bench(t, "bw", "--device", "host", "--size", "64K", "--direction", "h2d,d2h", "--host", "staging",
		"--samples", "1", "--progress", "off", "--format", "json")
	require.Equal(t, report.ExitWaived, code)
	for _, c := range parse(t, out).Cases {
		require.Contains(t, string(c.Reason), "copies without staging")
	}
}

// A copy into fresh memory finds no page of it, also when it is checked. What is not copied to
// such memory is there once.
func TestCopiesIntoFreshMemory(t *testing.T) {
	args := []string{"bw", "--device", "host", "--size", "1M", "--direction", "h2d,d2h", "--host", "pageable,pinned", "--into", "fresh,touched",
		"--mem", "vmm", "--samples", "2", "--progress", "off", "--format", "json"}
	code, out, _ := bench(t, args...)
	require.Equal(t, report.ExitPassed, code)
	var ids []string
	for _, c := range parse(t, out).Cases {
		require.Equal(t, report.Passed, c.Status, "%s: %s", c.ID, c.Reason)
		require.Equal(t, c.Bytes, c.Verify.Bytes)
		require.Equal(t, strings.Contains(c.ID, "/fresh/"), c.Axes["into"] == fresh)
		ids = append(ids, strings.TrimSuffix(strings.TrimPrefix(c.ID, "bw/"), "/1MiB/vmm"))
	}
	require.Equal(t, []string{"h2d/pageable", "h2d/pinned", "d2h/pageable/fresh", "d2h/pageable", "d2h/pinned"}, ids)
	code, _, _ = bench(t, append(args, "--corrupt", "1048575", "--filter", "fresh")...)
	require.Equal(t, report.ExitMismatch, code)

	b, err := newBuffer(hookedDevice(t, nil), pageable, shape{size: 1 << 20})
	require.NoError(t, err)
	for range 2 {
		require.NoError(t, b.renew())
		require.Equal(t, make([]byte, 1<<20), b.host)
		b.host[0] = 1
	}
	require.NoError(t, b.free())
}

func TestCopiesByCallAndStreams(t *testing.T) {
	args := []string{"bw", "--device", "host", "--size", "1M", "--direction", "h2d,d2d,both", "--host", "pageable,pinned",
		"--call", "async,sync", "--streams", "1,3", "--mem", "vmm", "--samples", "2", "--progress", "off", "--format", "json"}
	code, out, _ := bench(t, args...)
	require.Equal(t, report.ExitPassed, code)
	passed := map[string]bool{}
	for _, c := range parse(t, out).Cases {
		if c.Status == report.Waived {
			require.Contains(t, string(c.Reason), "done when they return", c.ID)
			continue
		}
		require.Equal(t, report.Passed, c.Status, "%s: %s", c.ID, c.Reason)
		require.Equal(t, c.Bytes, c.Verify.Bytes, "every part is checked")
		passed[strings.TrimSuffix(strings.TrimPrefix(c.ID, "bw/"), "/1MiB/vmm")] = true
	}
	require.Equal(t, map[string]bool{
		"h2d/pageable": true, "h2d/pinned": true, "h2d/pinned/streams-3": true, "h2d/pinned/sync": true,
		"d2d/none": true, "d2d/none/streams-3": true, "d2d/none/sync": true,
		"both/pinned": true, "both/pinned/streams-3": true,
	}, passed)

	// A byte of the last part.
	code, out, _ = bench(t, append(args, "--corrupt", "1048575", "--direction", "d2d")...)
	require.Equal(t, report.ExitMismatch, code)
	for _, c := range parse(t, out).Cases {
		require.NotEqual(t, report.Passed, c.Status, c.ID)
	}
}

func TestPartsOfACopyCoverIt(t *testing.T) {
	dev := hookedDevice(t, nil)
	for _, n := range []uint64{1, 4096, 10000, 1 << 20} {
		src, err := newBuffer(dev, pinned, shape{size: n})
		require.NoError(t, err)
		dst, err := newBuffer(dev, pinned, shape{size: n})
		require.NoError(t, err)
		for i := range src.host {
			src.host[i] = byte(i%251) + 1
		}
		for _, streams := range []int{1, 3, 64} {
			clear(dst.host)
			parts := 0
			eachPart(n, streams, func(off, n uint64) {
				parts++
				require.NoError(t, src.part(off, n).copyTo(dst.part(off, n), dev)(dev.raw.CopyStream()))
			})
			require.NoError(t, dev.raw.SyncStream(dev.raw.CopyStream()))
			require.Equal(t, streams, parts)
			require.Equal(t, src.host, dst.host)
		}
		require.NoError(t, errors.Join(src.free(), dst.free()))
	}
}

// A verdict on memory that is kept needs ten placements of it, and without one there is no ratio.
func TestVerdictNeedsPlacements(t *testing.T) {
	for rounds, want := range map[int]stat.Verdict{6: stat.TooFew, 10: stat.Equal} {
		p := newBWPlan()
		p.directions.values, p.sizes = []string{d2d}, size.List{64 << 10}
		s := newRunner()
		s.flags.samples, s.flags.rounds = 21, rounds
		dev := hookedDevice(t, nil)
		s.run(t.Context(), t, dev, p)
		groups, err := p.groups([]device{dev}, s.flags.seed)
		require.NoError(t, err)
		for i := range s.report.Cases {
			require.Len(t, s.report.Cases[i].Stats.Places, rounds)
			setSamples(&s.report.Cases[i], 1e6) // what was measured may be too noisy for a verdict
		}
		list := s.compare(groups[0], s.report.Cases)
		require.Len(t, list, 1)
		require.Equal(t, want, list[0].Verdict)
		require.Equal(t, want == stat.Equal, list[0].Ratio != nil)
	}
}
