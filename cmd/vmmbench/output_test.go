package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
)

// A run that fails at its very end, as when the device will not close, has
// measured all the same.
func TestErrorAtTheEndKeepsTheReport(t *testing.T) {
	for _, c := range []struct {
		status report.Status
		code   int
	}{
		{report.Passed, report.ExitError},
		{report.Waived, report.ExitError},
		{report.Failed, report.ExitMismatch},
		{report.Interrupted, report.ExitInterrupted},
	} {
		var out, complaints bytes.Buffer
		a := &app{settings: testSettings(), stdout: &out, stderr: &complaints}
		err := a.withReport("bw", &outputFlags{format: report.JSON}, func(s *runner) error {
			require.NoError(t, s.start())
			s.add([]report.Case{{ID: "x", Status: c.status, Samples: []float64{1, 2, 3}}}, nil)
			return errors.New("device lost")
		})
		require.EqualError(t, err, "device lost")
		require.Equal(t, c.code, a.exit(&cobra.Command{Use: "vmmbench"}, err))
		require.Contains(t, complaints.String(), "device lost")
		r := parse(t, out.String())
		require.Equal(t, []float64{1, 2, 3}, r.Cases[0].Samples)
		require.Equal(t, report.Text("device lost"), r.Run.Error)
	}
}

func TestFullDiskLosesNoOtherOutput(t *testing.T) {
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip("needs /dev/full")
	}
	dir := t.TempDir()
	good := filepath.Join(dir, "good.json")
	args := []string{"grow", "--device", "host", "--size", "64K", "--mem", "vmm", "--samples", "1", "--progress", "off", "--format", "json", "-o", good}
	for _, name := range []string{"full.json", "full.ndjson"} { // at the end, at the first line
		full := filepath.Join(dir, name)
		require.NoError(t, os.Symlink("/dev/full", full))
		args = append(args, "-o", full)
	}
	code, out, stderr := bench(t, args...)
	require.Equal(t, report.ExitError, code)
	require.Contains(t, stderr, "no space left on device")
	require.Equal(t, report.Passed, parse(t, out).Cases[0].Status)
	text, err := os.ReadFile(good)
	require.NoError(t, err)
	require.Equal(t, report.Passed, parse(t, string(text)).Cases[0].Status)
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, left, 3, "no temporary file is left")
}

// The report of the last run stays until that of this one is complete.
func TestRunThatCannotStartLeavesTheLastReport(t *testing.T) {
	dir := t.TempDir()
	files := []string{filepath.Join(dir, "last.json"), filepath.Join(dir, "last.ndjson")}
	for _, file := range files {
		require.NoError(t, os.WriteFile(file, []byte("last"), 0o600))
	}
	for _, c := range []struct {
		code int
		args []string
	}{
		{report.ExitUsage, []string{"--device", "gpu"}},
		{report.ExitUsage, []string{"--samples", "0", "--device", "host"}},
		{report.ExitUsage, []string{"grow", "--step", "7", "--device", "host"}},
		{report.ExitUsage, []string{"bw", "--size", "0", "--device", "host"}},
		{report.ExitUsage, []string{"info", "--device", "gpu"}},
		{report.ExitError, []string{"bw", "--device", "host", "-o", filepath.Join(dir, "no", "such", "dir.json")}},
		{report.ExitUsage, []string{"bw", "--device", "host", "-o", "out.xml"}},
	} {
		args := c.args
		for _, file := range files {
			args = append(args, "-o", file)
		}
		code, out, stderr := bench(t, args...)
		require.Equal(t, c.code, code, args)
		require.Contains(t, stderr, "vmmbench:", args)
		require.Empty(t, out, args)
		for _, file := range files {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			require.Equal(t, "last", string(text), args)
		}
	}

	link := filepath.Join(dir, "link.json")
	require.NoError(t, os.Symlink(files[0], link))
	code, _, _ := bench(t, "info", "--device", "host", "-o", link, "-o", files[1])
	require.Equal(t, report.ExitPassed, code)
	text, err := os.ReadFile(files[0])
	require.NoError(t, err)
	require.Equal(t, "info", parse(t, string(text)).Run.Command)
	text, err = os.ReadFile(files[1])
	require.NoError(t, err)
	require.Equal(t, byte('{'), text[0])
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, left, 3, "no temporary file is left")
}

// A link to a file that is not there yet has the file made, and stays a link.
func TestOutputThroughLinks(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(dir, "link.json")
	require.NoError(t, os.Mkdir(filepath.Join(dir, "sub"), 0o700))
	require.NoError(t, os.Symlink("sub/next.json", link))
	require.NoError(t, os.Symlink("../file.json", filepath.Join(dir, "sub", "next.json")))
	code, _, stderr := bench(t, "info", "--device", "host", "-o", link)
	require.Equal(t, report.ExitPassed, code, stderr)
	st, err := os.Lstat(filepath.Join(dir, "file.json"))
	require.NoError(t, err)
	require.True(t, st.Mode().IsRegular())
	to, err := os.Readlink(link)
	require.NoError(t, err)
	require.Equal(t, "sub/next.json", to)

	loop := filepath.Join(dir, "loop.json")
	require.NoError(t, os.Symlink("loop.json", loop))
	code, _, stderr = bench(t, "info", "--device", "host", "-o", loop)
	require.Equal(t, report.ExitError, code)
	require.Contains(t, stderr, "too many")
	to, err = os.Readlink(loop)
	require.NoError(t, err)
	require.Equal(t, "loop.json", to)
}

// A report that replaces another has the same permissions.
func TestOutputKeepsPermissions(t *testing.T) {
	for _, suffix := range []string{"json", "ndjson"} {
		file := filepath.Join(t.TempDir(), "a."+suffix)
		require.NoError(t, os.WriteFile(file, nil, 0o600))
		code, _, stderr := bench(t, "info", "--device", "host", "-o", file)
		require.Equal(t, report.ExitPassed, code, stderr)
		st, err := os.Stat(file)
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), st.Mode().Perm())
		require.NotZero(t, st.Size())
	}
}

func TestHTMLIsMadeByReport(t *testing.T) {
	code, _, stderr := bench(t, "info", "--device", "host", "-o", filepath.Join(t.TempDir(), "a.html"))
	require.Equal(t, report.ExitUsage, code)
	require.Contains(t, stderr, "write FILE.json, then vmmbench report FILE.json -o FILE.html")
}

// A report that cannot take its name is kept, where the error says.
func TestReportThatCannotBeRenamedIsKept(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a.json")
	out, err := openTarget(file)
	require.NoError(t, err)
	_, err = out.W.Write([]byte("measured"))
	require.NoError(t, err)
	require.NoError(t, os.Mkdir(file, 0o700))
	err = out.complete()
	require.ErrorContains(t, err, out.file.Name())
	require.NoError(t, out.drop())
	text, err := os.ReadFile(out.file.Name())
	require.NoError(t, err)
	require.Equal(t, "measured", string(text))
}
