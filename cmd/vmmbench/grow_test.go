package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
)

func TestGrowUnderLoad(t *testing.T) {
	code, out, _ := bench(t, "grow", "--device", "host", "--size", "4M", "--step", "1M", "--mem", "vmm,ahead,kept", "--busy", "0,1",
		"--samples", "2", "--format", "json", "--progress", "off")
	require.Equal(t, report.ExitPassed, code)
	var ids []string
	for _, c := range parse(t, out).Cases {
		ids = append(ids, c.ID)
		require.Len(t, c.Samples, 2)
		require.Zero(t, c.Verify.Errors)
	}
	require.Equal(t, []string{
		"grow/4MiB/vmm", "grow/4MiB/vmm-ahead", "grow/4MiB/vmm-kept",
		"grow/4MiB/busy-1/vmm", "grow/4MiB/busy-1/vmm-ahead", "grow/4MiB/busy-1/vmm-kept",
	}, ids)
}

func TestDefaultOfAhead(t *testing.T) {
	p := newGrowPlan()
	p.step = 1 << 20
	require.Zero(t, p.options(memVMM, 1<<30, 0).GrowAhead)
	require.Zero(t, p.options("kept", 1<<30, 0).GrowAhead)
	require.Equal(t, uint64(64<<20), p.options("ahead", 1<<30, 0).GrowAhead)
	p.step = 32 << 20
	require.Equal(t, uint64(128<<20), p.options("ahead", 1<<30, 0).GrowAhead)
}
