package main

import (
	"strings"
	"testing"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/stretchr/testify/require"
)

// Memory that grows by steps has the chunks that appends would have made.
func TestCopiesOfMemoryThatGrewBySteps(t *testing.T) {
	code, out, _ := bench(t, "bw", "--device", "host", "--size", "32M", "--direction", "d2d", "--step", "0,1M", "--chunk", "0,4M",
		"--samples", "1", "--progress", "off", "--format", "json")
	require.Equal(t, report.ExitPassed, code)
	r := parse(t, out)
	var ids []string
	for _, c := range r.Cases {
		require.Equal(t, report.Passed, c.Status)
		ids = append(ids, strings.TrimPrefix(c.ID, "bw/d2d/none/32MiB/"))
	}
	require.Equal(t, []string{"vmm", "vmm-by-1MiB", "vmm-4MiB", "vmm-4MiB-by-1MiB", "mmap"}, ids)
	require.Equal(t, "whole", r.Cases[0].Axes["step"])
	require.Equal(t, "1MiB", r.Cases[1].Axes["step"])

	dev, raw := device(t, nil)
	appended, err := dev.NewRange(vmm.RangeOptions{Max: 32 << 20})
	require.NoError(t, err)
	defer appended.Close()
	for range 32 {
		require.NoError(t, appended.Append(make([]byte, 1<<20)))
	}
	b, err := deviceBuffer(dev, raw, memVMM, shape{size: 32 << 20, step: 1 << 20})
	require.NoError(t, err)
	defer func() { require.NoError(t, b.free()) }()
	require.Equal(t, chunkStarts(appended), b.chunks)
	require.Greater(t, len(b.chunks), 4)
	whole, err := deviceBuffer(dev, raw, memVMM, shape{size: 32 << 20})
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
