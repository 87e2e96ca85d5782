package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
)

// measured is a report of a small run on the host.
func measured(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "small.json")
	code, _, stderr := bench(t, "grow", "--device", "host", "--size", "1M", "--step", "256K", "--mem", "vmm,plain", "--samples", "6",
		"--progress", "off", "-o", file)
	require.Equal(t, report.ExitPassed, code, stderr)
	return file
}

func TestPlot(t *testing.T) {
	file, dir := measured(t), filepath.Join(t.TempDir(), "new", "folder")
	code, out, stderr := bench(t, "plot", file, "-o", dir)
	require.Equal(t, report.ExitPassed, code, stderr)
	require.Empty(t, stderr)
	names := strings.Fields(out)
	require.Len(t, names, 4, "growth, steps, ratio, samples")
	for _, name := range names {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		require.Contains(t, string(text), "#FFFFFF", name)
		require.Contains(t, string(text), "vmmbench grow --device host", "the command stands below: "+name)
	}

	// A single picture, its format by its name, in the other theme.
	single := filepath.Join(dir, "growth.svg")
	code, out, stderr = bench(t, "plot", file, "--kind", "growth", "--theme", "dark", "-o", single)
	require.Equal(t, report.ExitPassed, code, stderr)
	require.Equal(t, single+"\n", out)
	text, err := os.ReadFile(single)
	require.NoError(t, err)
	require.Contains(t, string(text), "#0D1117")
	code, out, stderr = bench(t, "plot", file, file, "--kind", "growth", "--format", "png", "-o", dir)
	require.Equal(t, report.ExitPassed, code, stderr)
	require.Equal(t, filepath.Join(dir, "1-small-growth-1mib.png")+"\n"+filepath.Join(dir, "2-small-growth-1mib.png")+"\n", out)
	text, err = os.ReadFile(filepath.Join(dir, "2-small-growth-1mib.png"))
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(string(text), "\x89PNG"))

	// What has no picture is no error, unless it is the only one asked for.
	code, out, stderr = bench(t, "plot", file, "--kind", "peers", "-o", dir)
	require.Equal(t, report.ExitPassed, code)
	require.Empty(t, out)
	require.Contains(t, stderr, "not drawn: peers")
}

func TestReport(t *testing.T) {
	file, page := measured(t), filepath.Join(t.TempDir(), "page.html")
	code, out, stderr := bench(t, "report", file, file, "-o", page)
	require.Equal(t, report.ExitPassed, code, stderr)
	require.Empty(t, out)
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	require.Contains(t, string(text), "vmmbench: 2 reports")
	require.Contains(t, string(text), "Growing in place to 1MiB by 256KiB took")
}

func TestPlotAndReportRefuse(t *testing.T) {
	dir := t.TempDir()
	wrong := filepath.Join(dir, "wrong.json")
	require.NoError(t, os.WriteFile(wrong, []byte(`{"schema":"vmmbench/0"}`), 0o600))
	file := measured(t)
	for _, c := range []struct {
		code int
		want string
		args []string
	}{
		{report.ExitUsage, "no report", []string{"plot"}},
		{report.ExitUsage, "no report", []string{"report", "-o", "x.html"}},
		{report.ExitUsage, "-o FILE.html", []string{"report", file}},
		{report.ExitUsage, "-o FILE.html", []string{"report", file, "-o", "x.pdf"}},
		{report.ExitUsage, "want one of", []string{"plot", file, "--theme", "blue"}},
		{report.ExitUsage, "want a list of", []string{"plot", file, "--kind", "cake"}},
		{report.ExitUsage, "4 pictures", []string{"plot", file, "-o", filepath.Join(dir, "x.svg")}},
		{report.ExitUsage, "0 pictures", []string{"plot", file, "--kind", "calls", "-o", filepath.Join(dir, "x.svg")}},
		{report.ExitUsage, "--format is for a folder", []string{"plot", file, "--format", "png", "-o", filepath.Join(dir, "x.svg")}},
		{report.ExitError, "no such file", []string{"plot", filepath.Join(dir, "none.json")}},
		{report.ExitError, "wrong.json", []string{"plot", wrong, "-o", dir}},
		{report.ExitError, "wrong.json", []string{"report", wrong, "-o", filepath.Join(dir, "x.html")}},
	} {
		code, out, stderr := bench(t, c.args...)
		require.Equal(t, c.code, code, "%v: %s", c.args, stderr)
		require.Contains(t, stderr, c.want, c.args)
		require.Empty(t, out, c.args)
	}
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, left, 1, "nothing was written")
}
