package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
)

// A run that was interrupted goes on where it stopped: what it has measured is taken over
// as it is, and the rest is measured.
func TestResume(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	file := filepath.Join(t.TempDir(), "run.ndjson")
	args := []string{"bw", "--device", "host", "--size", "64K,256K", "--direction", "h2d,d2d", "--samples", "7", "-o", file, "--resume", file, "--format", "json"}
	var out bytes.Buffer
	code := run(ctx, append(args, "--progress", "plain"), &out, &interrupter{n: 3, cancel: cancel})
	require.Equal(t, report.ExitInterrupted, code)
	first := parse(t, out.String())
	cancel()

	// A killed run leaves half a line, which does not matter.
	f, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = f.WriteString(`{"case":{"id":"bw/`)
	require.NoError(t, err)
	require.NoError(t, f.Close())

	code, text, _ := bench(t, append(args, "--progress", "off")...)
	require.Equal(t, report.ExitPassed, code)
	second := parse(t, text)
	require.Len(t, second.Cases, len(first.Cases))
	require.Len(t, second.Comparisons, len(first.Comparisons))
	taken := 0
	for i, c := range second.Cases {
		require.Equal(t, first.Cases[i].ID, c.ID)
		if first.Cases[i].Status == report.Passed {
			taken++
			require.Contains(t, c.Flags, resumedFlag)
			require.Equal(t, first.Cases[i].Samples, c.Samples)
		} else {
			require.NotContains(t, c.Flags, resumedFlag)
		}
		require.Equal(t, report.Passed, c.Status)
	}
	require.Equal(t, 4, taken, "two groups of two")

	// The file is whole, and so there is nothing left to measure.
	whole, err := loadReport(file)
	require.NoError(t, err)
	require.Len(t, whole.Cases, len(second.Cases))
	require.False(t, whole.Run.Interrupted)

	for _, other := range [][]string{{"--seed", "2"}, {"--samples", "8"}, {"--device", "host:1"}, {"--verify", "off"}} {
		before, err := os.ReadFile(file)
		require.NoError(t, err)
		code, _, stderr := bench(t, append(args, other...)...)
		require.Equal(t, report.ExitUsage, code, other)
		require.Contains(t, stderr, "that run had other")
		after, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Equal(t, before, after, "the file is left alone")
	}

	// The same names with other axes are measured again.
	code, text, _ = bench(t, append(args, "--streams", "1", "--control", "--progress", "off")...)
	require.Equal(t, report.ExitPassed, code)
	for _, c := range parse(t, text).Cases {
		require.NotContains(t, c.Flags, resumedFlag, c.ID)
	}
}
