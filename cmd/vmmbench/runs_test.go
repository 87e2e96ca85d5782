package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
)

// otherProgram is another vmmbench: a script that starts this test's program, and notes that it has.
func otherProgram(t *testing.T) (program, log string) {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	dir := t.TempDir()
	program, log = filepath.Join(dir, "old"), filepath.Join(dir, "log")
	argv, env := testReader("$*")
	script := fmt.Sprintf("#!/bin/sh\necho run >>%s\n%s exec %s '%s'\n", log, strings.Replace(env[0], "$*", `"$*"`, 1), self, argv[0])
	require.NoError(t, os.WriteFile(program, []byte(script), 0o700))
	return program, log
}

// TestRunsInTurn: both programs measure so often, each time anew, and what is compared are all runs.
func TestRunsInTurn(t *testing.T) {
	t.Parallel()
	program, log := otherProgram(t)
	file := filepath.Join(t.TempDir(), "out.json")
	args := []string{"bw", "--device", "host", "--direction", "d2d", "--mem", "vmm", "--size", "64K", "--samples", "10", "--min-time", "0s",
		"--baseline", program, "--margin", "90%", "--fail-on", "missing,failed", "-o", file, "--format", "json"}
	code, out, stderr := bench(t, append(args, "--runs", "2")...)
	require.Equal(t, report.ExitPassed, code, stderr)
	require.Equal(t, 4, strings.Count(stderr, "of 4: "), stderr)
	r := parse(t, out)
	require.Equal(t, []int{2, 2}, []int{r.Baseline.OldRuns, r.Baseline.NewRuns})
	require.Len(t, r.Comparisons, 1)
	require.NotNil(t, r.Comparisons[0].Ratio)
	begun, err := os.ReadFile(log)
	require.NoError(t, err)
	require.Equal(t, "run\nrun\n", string(begun))
	saved, err := os.ReadFile(file)
	require.NoError(t, err)
	require.JSONEq(t, out, string(saved))

	for _, name := range []string{"new1", "new2", "old1", "old2"} {
		_, err := loadReport(strings.TrimSuffix(file, ".json") + "-" + name + ".json")
		require.NoError(t, err, name)
	}

	// Of a report there are as many new runs, and the same one twice is none of two.
	old := filepath.Join(t.TempDir(), "old.json")
	code, _, stderr = bench(t, "bw", "--device", "host", "--direction", "d2d", "--mem", "vmm", "--size", "64K", "--samples", "10", "--min-time", "0s", "-o", old)
	require.Equal(t, report.ExitPassed, code, stderr)
	code, out, stderr = bench(t, "bw", "--device", "host", "--direction", "d2d", "--mem", "vmm", "--size", "64K", "--samples", "10", "--min-time", "0s",
		"--baseline", old, "--runs", "2", "--progress", "off", "--format", "json")
	require.Equal(t, report.ExitPassed, code, stderr)
	require.Empty(t, stderr)
	r = parse(t, out)
	require.Equal(t, []int{1, 2}, []int{r.Baseline.OldRuns, r.Baseline.NewRuns})
	code, _, stderr = bench(t, "compare", old+","+old, old)
	require.Equal(t, report.ExitUsage, code)
	require.Contains(t, stderr, "is given twice")
}

func TestRunsThatCannotBe(t *testing.T) {
	for args, want := range map[string]string{
		"bw --runs 2":                                "--runs is for --baseline",
		"bw --runs 0 --baseline x.json":              "want 1 or more",
		"bw --runs 2 --baseline x --at-least bw/*=1": "are for one run",
		"bw --runs 2 --baseline x --resume r":        "are for one run",
		"bw --runs 2 --baseline x --format gobench":  "--runs compares runs",
		"bw --at-least bw":                           "want CASE=RATE",
		"bw --at-least bw=0":                         "want a rate",
		"bw --at-least bw=Inf":                       "want a rate",
		"bw --at-least [=1":                          "syntax error in pattern",
		"bw --device host --at-least bw/none=1":      "no case is called so",
		"grow --device host --at-least grow/*/vmm=1": "its figure is a time",
	} {
		code, _, stderr := bench(t, strings.Fields(args)...)
		require.Equal(t, report.ExitUsage, code, args)
		require.Contains(t, stderr, want, args)
	}
	code, _, stderr := bench(t, "bw", "--device", "host", "--baseline", "none.json", "--runs", "2")
	require.Equal(t, report.ExitError, code)
	require.Contains(t, stderr, "none.json")

	// What cannot be compared is measured once, and a run that can do nothing says so.
	dir := t.TempDir()
	old := filepath.Join(dir, "old.json")
	code, _, stderr = bench(t, "bw", "--device", "host", "--direction", "d2d", "--size", "4K", "--samples", "1", "--min-time", "0s", "-o", old)
	require.Equal(t, report.ExitPassed, code, stderr)
	text, err := os.ReadFile(old)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(old, []byte(strings.Replace(string(text), `"driver": "`, `"driver": "other `, 1)), 0o600))
	code, _, stderr = bench(t, "bw", "--device", "host", "--direction", "d2d", "--size", "4K", "--samples", "1", "--min-time", "0s", "--baseline", old, "--runs", "5")
	require.Equal(t, report.ExitUsage, code, stderr)
	require.Contains(t, stderr, "--any-driver")
	require.Equal(t, 1, strings.Count(stderr, "of 5: "), stderr)
	require.NoError(t, os.WriteFile(old, text, 0o600))
	code, _, stderr = bench(t, "bw", "--device", "host", "--direction", "h2d", "--host", "staging", "--size", "4K", "--samples", "1", "--min-time", "0s", "--baseline", old, "--runs", "2")
	require.Equal(t, report.ExitWaived, code, stderr)

	// A program that makes no report is named, with what it says. It is found where it is, not in PATH.
	t.Chdir(dir)
	require.NoError(t, os.WriteFile("old", []byte("#!/bin/sh\nexit 7\n"), 0o700))
	code, _, stderr = bench(t, "bw", "--device", "host", "--direction", "d2d", "--size", "4K", "--samples", "1", "--min-time", "0s", "--baseline", "old")
	require.Equal(t, report.ExitError, code)
	require.Contains(t, stderr, filepath.Join(dir, "old"))
	require.Contains(t, stderr, "exit status 7")
	require.NoError(t, os.WriteFile("old", []byte("#!/bin/sh\nexit 2\n"), 0o700))
	code, _, stderr = bench(t, "bw", "--device", "host", "--direction", "d2d", "--size", "4K", "--samples", "1", "--min-time", "0s", "--baseline", "old")
	require.Equal(t, report.ExitUsage, code)
	require.Contains(t, stderr, "refuses the command line")

	// An interrupt ends the run.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out, errs bytes.Buffer
	require.Equal(t, report.ExitInterrupted, run(ctx, testSettings(), []string{"bw", "--device", "host", "--baseline", "old.json", "--runs", "2"}, &out, &errs), errs.String())
}

// TestAtLeast: a floor is compared with the median, and one that is missed is an exit code.
func TestAtLeast(t *testing.T) {
	t.Parallel()
	args := []string{"bw", "--device", "host", "--direction", "d2d", "--size", "64K", "--samples", "10", "--min-time", "0s", "--format", "json", "--progress", "off"}
	code, out, stderr := bench(t, append(args, "--at-least", "bw/d2d/none/*/vmm=0.001")...)
	require.Equal(t, report.ExitPassed, code, stderr)
	require.NoError(t, conforms(t, strictSchema(t, ""), []byte(out)))
	r := parse(t, out)
	require.Len(t, r.Run.AtLeast, 1)
	require.Equal(t, "bw/d2d/none/64KiB/vmm", r.Run.AtLeast[0].Case)
	require.False(t, r.Run.AtLeast[0].Missed())
	require.Len(t, r.Cases[0].At, 10, "when each sample was taken")

	code, out, _ = bench(t, append(args, "--at-least", "bw/d2d/none/*/*=1e9")...)
	require.Equal(t, report.ExitWorse, code)
	require.Len(t, parse(t, out).Run.AtLeast, 2)
	code, out, _ = bench(t, "bw", "--device", "host", "--direction", "d2d", "--size", "64K", "--samples", "10", "--min-time", "0s", "--at-least", "bw/d2d/none/64KiB/vmm=1e9")
	require.Equal(t, report.ExitWorse, code)
	require.Regexp(t, `bw/d2d/none/64KiB/vmm .* below its floor`, out)
}

// TestReportReplacesWhole: where a page cannot be written, the old one stays.
func TestReportReplacesWhole(t *testing.T) {
	run := filepath.Join(t.TempDir(), "run.json")
	code, _, stderr := bench(t, "bw", "--device", "host", "--direction", "d2d", "--size", "4K", "--samples", "1", "--min-time", "0s", "-o", run)
	require.Equal(t, report.ExitPassed, code, stderr)
	dir := t.TempDir()
	page := filepath.Join(dir, "page.html")
	require.NoError(t, os.WriteFile(page, []byte("old"), 0o644))
	link := filepath.Join(dir, "link.html")
	require.NoError(t, os.Symlink("page.html", link))
	code, _, stderr = bench(t, "report", run, "-o", link)
	require.Equal(t, report.ExitPassed, code, stderr)
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	require.Contains(t, string(text), "<html", "what the link leads to")
	list, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, list, 2, "and nothing beside them")
	code, _, _ = bench(t, "report", run, "-o", filepath.Join(dir, "none", "page.html"))
	require.Equal(t, report.ExitError, code)
	require.Error(t, writeFile("/dev/full", make([]byte, 1<<16)))
}

// TestFolderThatCannotTakeAFile: a name that is too long beside the file is an error, and the old file stays.
// Only a folder that refuses a new file has it written in place.
func TestFolderThatCannotTakeAFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), strings.Repeat("x", 250)+".html") // 255 at most, and the one beside has more
	require.NoError(t, os.WriteFile(file, []byte("old"), 0o600))
	require.Error(t, writeFile(file, []byte("new")))
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, "old", string(text))
}
