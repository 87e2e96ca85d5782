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

// A run that was interrupted continues where it stopped: what it has measured is taken over
// as it is, and the rest is measured.
func TestResume(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	file := filepath.Join(t.TempDir(), "run.ndjson")
	args := []string{"bw", "--device", "host", "--size", "64K,256K", "--direction", "h2d,d2d", "--samples", "7", "-o", file, "--resume", file, "--format", "json"}
	var out bytes.Buffer
	code := run(ctx, testSettings(), append(args, "--progress", "plain"), &out, &interrupter{n: 3, cancel: cancel})
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

	for _, other := range [][]string{
		{"--seed", "2", "that run had other flags: {Seed:1 "},
		{"--samples", "8", " Samples:7 "},
		{"--device", "host:1", "that run had other devices: [host:0 "},
		{"--verify", "off", " Verify:full "},
	} {
		want := other[2]
		other = other[:2]
		before, err := os.ReadFile(file)
		require.NoError(t, err)
		code, _, stderr := bench(t, append(args, other...)...)
		require.Equal(t, report.ExitUsage, code, other)
		require.Contains(t, stderr, want)
		after, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Equal(t, before, after, "the file is left alone")
	}

	// A group with another case is measured again.
	code, text, _ = bench(t, append(args, "--streams", "1", "--control", "--progress", "off")...)
	require.Equal(t, report.ExitPassed, code)
	for _, c := range parse(t, text).Cases {
		require.NotContains(t, c.Flags, resumedFlag, c.ID)
	}
}

// What is not as this run would have measured it is not taken over.
func TestResumeRefuses(t *testing.T) {
	file := filepath.Join(t.TempDir(), "run.json")
	args := []string{"bw", "--device", "host", "--size", "64K,256K", "--direction", "h2d", "--mem", "vmm", "--host", "pinned", "--samples", "6", "--progress", "off"}
	code, _, stderr := bench(t, append(args, "-o", file)...)
	require.Equal(t, report.ExitPassed, code, stderr)
	args = append(args, "--resume", file, "--format", "json")
	// with runs it with a report that was changed.
	with := func(change func(*report.Report)) (code int, out, stderr string) {
		r, err := loadReport(file)
		require.NoError(t, err)
		was, err := os.ReadFile(file)
		require.NoError(t, err)
		change(r)
		var b bytes.Buffer
		require.NoError(t, report.Output{W: &b, Format: report.JSON}.Write(r))
		require.NoError(t, os.WriteFile(file, b.Bytes(), 0o600))
		code, out, stderr = bench(t, args...)
		require.NoError(t, os.WriteFile(file, was, 0o600))
		return code, out, stderr
	}

	code, _, stderr = with(func(r *report.Report) { r.Host.CPU = "Other One" })
	require.Equal(t, report.ExitUsage, code)
	require.Contains(t, stderr, "that run had other machine: Other One, ")
	code, _, stderr = with(func(r *report.Report) { r.Run.Measure = nil })
	require.Equal(t, report.ExitUsage, code)
	require.Contains(t, stderr, "that run has measured nothing")

	code, out, stderr := with(func(r *report.Report) { r.Cases[0].Status = report.Error })
	require.Equal(t, report.ExitPassed, code, stderr)
	cases := parse(t, out).Cases
	require.Len(t, cases, 2)
	require.NotContains(t, cases[0].Flags, resumedFlag)
	require.Contains(t, cases[1].Flags, resumedFlag)
}
