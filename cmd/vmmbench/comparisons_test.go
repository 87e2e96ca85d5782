package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/stat"
)

// A comparison is waived if this machine cannot do a side. If a side was wrong, it was
// not measured, and the table shows that.
func TestComparisonOfAFailedCase(t *testing.T) {
	args := []string{"bw", "--device", "host", "--direction", "d2d", "--size", "64K", "--samples", "1", "--corrupt", "0", "--progress", "off"}
	code, out, _ := bench(t, append(args, "--format", "json")...)
	require.Equal(t, report.ExitMismatch, code)
	for _, c := range parse(t, out).Comparisons {
		require.Equal(t, stat.NotMeasured, c.Verdict, c.ID)
		require.Contains(t, string(c.Reason), ": failed", c.ID)
	}
	_, out, _ = bench(t, args...)
	require.Contains(t, out, "not measured")

	_, out, _ = bench(t, "bw", "--device", "host", "--direction", "h2d", "--host", "staging", "--size", "64K", "--samples", "1", "--format", "json", "--progress", "off")
	list := parse(t, out).Comparisons
	require.NotEmpty(t, list)
	for _, c := range list {
		require.Equal(t, stat.Waived, c.Verdict, c.ID)
		require.Contains(t, string(c.Reason), ": waived", c.ID)
	}
}
