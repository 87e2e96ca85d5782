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
	code, _, stderr := bench(t, "grow", "--device", "host", "--size", "1M", "--step", "256K", "--mem", "vmm,plain", "--samples", "10",
		"--progress", "off", "-o", file)
	require.Equal(t, report.ExitPassed, code, stderr)
	return file
}

func TestReportPictures(t *testing.T) {
	t.Parallel()
	file, dir := measured(t), filepath.Join(t.TempDir(), "new", "folder")
	code, out, stderr := bench(t, "report", file, "--pictures", dir)
	require.Equal(t, report.ExitPassed, code, stderr)
	require.Empty(t, stderr)
	require.Equal(t, filepath.Join(dir, "growth-1mib.svg")+"\n", out)
	for name := range strings.FieldsSeq(out) {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		require.Contains(t, string(text), "prefers-color-scheme:dark", name)
		require.Contains(t, string(text), "vmmbench grow --device host", "the command stands below: "+name)
	}

	// With several reports, names begin with those of their files. A page can be made as well.
	page := filepath.Join(dir, "page.html")
	code, out, stderr = bench(t, "report", file, file, "--only", "grow/1MiB/vmm", "--pictures", dir, "-o", page)
	require.Equal(t, report.ExitPassed, code, stderr)
	require.Equal(t, filepath.Join(dir, "1-small-growth-1mib.svg")+"\n"+filepath.Join(dir, "2-small-growth-1mib.svg")+"\n", out)
	require.FileExists(t, page)

	// To draw nothing is an error.
	code, _, stderr = bench(t, "info", "--device", "host", "-o", filepath.Join(dir, "info.json"))
	require.Equal(t, report.ExitPassed, code, stderr)
	code, out, stderr = bench(t, "report", filepath.Join(dir, "info.json"), "--pictures", dir)
	require.Equal(t, report.ExitError, code)
	require.Empty(t, out)
	require.Contains(t, stderr, "nothing to draw in "+filepath.Join(dir, "info.json"))
}

func TestReport(t *testing.T) {
	file, page := measured(t), filepath.Join(t.TempDir(), "page.html")
	code, out, stderr := bench(t, "report", file, file, "-o", page)
	require.Equal(t, report.ExitPassed, code, stderr)
	require.Empty(t, out)
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	require.Contains(t, string(text), "vmmbench: 2 reports")
	require.Contains(t, string(text), "Growth in place (grow/1MiB/vmm) takes ")
}

// A report can be written in each format later on, and some cases of it.
func TestReportFormats(t *testing.T) {
	t.Parallel()
	file, dir := measured(t), t.TempDir()
	for suffix, want := range map[string]string{
		"txt": "vmm", "csv": "grow/1MiB/vmm", "bench": "mem=vmm", "ndjson": `{"comparison":`, "json": `"comparisons": [`,
	} {
		out := filepath.Join(dir, "report."+suffix)
		code, stdout, stderr := bench(t, "report", file, "-o", out)
		require.Equal(t, report.ExitPassed, code, stderr)
		require.Empty(t, stdout)
		text, err := os.ReadFile(out)
		require.NoError(t, err)
		require.Contains(t, string(text), want, suffix)
	}
	whole, err := loadReport(file)
	require.NoError(t, err)
	for _, suffix := range []string{"json", "ndjson"} {
		again, err := loadReport(filepath.Join(dir, "report."+suffix))
		require.NoError(t, err)
		require.Equal(t, whole, again, suffix)
	}

	part := filepath.Join(dir, "part.json")
	code, _, stderr := bench(t, "report", file, "--only", "grow/1MiB/vmm,bw", "-o", part)
	require.Equal(t, report.ExitPassed, code, stderr)
	got, err := loadReport(part)
	require.NoError(t, err)
	require.Len(t, got.Cases, 1)
	require.Equal(t, "grow/1MiB/vmm", got.Cases[0].ID)
	require.Empty(t, got.Comparisons, "the other side is left out")
	code, _, stderr = bench(t, "report", file, "--only", "grow", "-o", part)
	require.Equal(t, report.ExitPassed, code, stderr)
	got, err = loadReport(part)
	require.NoError(t, err)
	require.Equal(t, whole, got)
}

func TestReportRefuses(t *testing.T) {
	dir := t.TempDir()
	wrong := filepath.Join(dir, "wrong.json")
	require.NoError(t, os.WriteFile(wrong, []byte(`{"schema":"vmmbench/0"}`), 0o600))
	file := measured(t)
	for _, c := range []struct {
		code int
		want string
		args []string
	}{
		{report.ExitUsage, "want the JSON files of reports", []string{"report"}},
		{report.ExitUsage, "want the JSON files of reports", []string{"report", "-o", "x.html"}},
		{report.ExitUsage, "-o FILE.html", []string{"report", file}},
		{report.ExitUsage, "the suffix must be", []string{"report", file, "-o", "x.pdf"}},
		{report.ExitUsage, "only an HTML page has several", []string{"report", file, file, "-o", "x.csv"}},
		{report.ExitUsage, "no case is called gro, bw", []string{"report", file, "--only", "gro,bw", "-o", filepath.Join(dir, "x.csv")}},
		{report.ExitUsage, "unknown command", []string{"plot", file}},
		{report.ExitError, "no such file", []string{"report", filepath.Join(dir, "none.json"), "--pictures", dir}},
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
