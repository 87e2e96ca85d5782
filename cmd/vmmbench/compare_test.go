package main

import (
	"context"
	"encoding/csv"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/stat"
)

// copied is the report of a few copies, measured once.
var copied = sync.OnceValue(func() string {
	var out strings.Builder
	run(context.Background(), testSettings(), []string{"bw", "--device", "host", "--size", "64K", "--direction", "h2d,d2d", "--host", "pinned",
		"--samples", "21", "--min-time", "0", "--progress", "off", "--format", "json"}, &out, io.Discard)
	return out.String()
})

// copies returns that report.
func copies(t *testing.T) *report.Report {
	t.Helper()
	r, err := report.Read(strings.NewReader(copied()))
	require.NoError(t, err)
	return r
}

// save writes a report as JSON or ndjson, by the name's suffix.
func save(t *testing.T, r *report.Report, name string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	format, err := report.FormatOf(name)
	require.NoError(t, err)
	f, err := os.Create(file)
	require.NoError(t, err)
	for _, c := range r.Cases {
		if c.Stats != nil {
			c.Stats.N = len(c.Samples) // tests change samples
		}
	}
	o := report.Output{W: f, Format: format}
	require.NoError(t, o.Started(r))
	for _, c := range r.Cases {
		require.NoError(t, o.Case(c))
	}
	require.NoError(t, o.Finished(r))
	require.NoError(t, f.Close())
	return file
}

// setSamples gives a case samples around a median, in nanoseconds.
func setSamples(c *report.Case, median float64) {
	c.Samples = nil
	for i := range 21 {
		c.Samples = append(c.Samples, median*(1+0.0001*float64(i-10)))
	}
	if c.Stats != nil {
		c.Stats.N = len(c.Samples)
	}
}

// verdictRuns returns an old and a new run, whose four cases are equal, slower, faster,
// and too noisy.
func verdictRuns(t *testing.T) (older, newer *report.Report) {
	older, newer = copies(t), copies(t)
	require.Len(t, older.Cases, 4)
	for i, factor := range []float64{1.001, 1.1, 0.9, 1} {
		setSamples(&older.Cases[i], 1e6)
		setSamples(&newer.Cases[i], 1e6*factor)
	}
	for k := range newer.Cases[3].Samples {
		newer.Cases[3].Samples[k] *= 1 + 0.1*float64(k%5-2)
	}
	return older, newer
}

func TestCompareRuns(t *testing.T) {
	older, newer := verdictRuns(t)
	files := []string{save(t, older, "old.ndjson"), save(t, newer, "new.json")}
	for failOn, want := range map[string]int{"none": report.ExitPassed, "slower": report.ExitWorse, "faster": report.ExitWorse, "different": report.ExitWorse} {
		code, _, stderr := bench(t, append([]string{"compare", "--fail-on", failOn + ",once"}, files...)...)
		require.Equal(t, want, code, "%s: %s", failOn, stderr)
		code, _, stderr = bench(t, append([]string{"compare", "--fail-on", failOn}, files...)...)
		require.Equal(t, report.ExitPassed, code, "one run of each: %s", stderr)
	}
	// With a margin of 50 % nothing is different.
	code, _, _ := bench(t, append([]string{"compare", "--fail-on", "different", "--margin", "50%"}, files...)...)
	require.Equal(t, report.ExitPassed, code)

	code, out, _ := bench(t, append([]string{"compare", "--fail-on", "once", "--format", "json"}, files...)...)
	require.Equal(t, report.ExitPassed, code)
	r, err := report.Read(strings.NewReader(out))
	require.NoError(t, err)
	require.Equal(t, newer.Cases, r.Cases)
	require.Equal(t, older.Run, r.Baseline.Run)
	require.Equal(t, newer.Run, *r.Baseline.New)
	var verdicts []stat.Verdict
	for i, c := range r.Comparisons {
		require.Equal(t, []string{older.Cases[i].ID, newer.Cases[i].ID}, []string{c.A, c.B})
		verdicts = append(verdicts, c.Verdict)
	}
	require.Equal(t, []stat.Verdict{stat.Equal, stat.Slower, stat.Faster, stat.TooNoisy}, verdicts)

	_, out, _ = bench(t, append([]string{"compare"}, files...)...)
	require.Contains(t, strings.Join(strings.Fields(out), " "), "New run against old, within 2 %: 1 equal, 1 too noisy, 2 one run. ")
	_, out, _ = bench(t, append([]string{"compare", "--fail-on", "once"}, files...)...)
	out = strings.Join(strings.Fields(out), " ")
	require.Contains(t, out, " New run against old, within 2 %: 1 equal, 1 slower, 1 faster, 1 too noisy; ")
	require.Greater(t, strings.Index(out, "New run against old"), strings.Index(out, "Words"), "at the end")

	_, out, _ = bench(t, append([]string{"compare", "--format", "csv"}, files...)...)
	lines, err := csv.NewReader(strings.NewReader(out)).ReadAll()
	require.NoError(t, err)
	require.Len(t, lines, 1+4)
	require.Equal(t, "one run", lines[2][len(lines[2])-1])
}

func TestCompareNamesCasesOfOneRun(t *testing.T) {
	older, newer := verdictRuns(t)
	gone, added := older.Cases[0].ID, newer.Cases[1].ID
	older.Cases = append(older.Cases[:1:1], older.Cases[2:]...)
	newer.Cases = newer.Cases[1:]
	old, new := save(t, older, "old.json"), save(t, newer, "new.json")
	_, out, _ := bench(t, "compare", old, new)
	require.Contains(t, out, "Only in the old run: "+gone+".")
	require.Contains(t, out, "Only in the new run: "+added+".")

	newer.Cases = newer.Cases[:1]
	code, out, stderr := bench(t, "compare", old, save(t, newer, "new.json"))
	require.Equal(t, report.ExitError, code)
	require.Empty(t, out)
	require.Contains(t, stderr, "no case is in both")
}

// What --fail-on names makes the exit code, and nothing else does.
func TestFailOn(t *testing.T) {
	equal := func() (older, newer *report.Report) { // all cases are equal
		older, newer = copies(t), copies(t)
		for i := range older.Cases {
			setSamples(&older.Cases[i], 1e6)
			setSamples(&newer.Cases[i], 1e6)
		}
		return older, newer
	}
	for name, c := range map[string]struct {
		change func(older, newer *report.Report)
		fails  []string
	}{
		"equal":   {func(_, _ *report.Report) {}, nil},
		"added":   {func(older, _ *report.Report) { older.Cases = older.Cases[1:] }, nil},
		"missing": {func(_, newer *report.Report) { newer.Cases = newer.Cases[1:] }, []string{"missing"}},
		"failed":  {func(_, newer *report.Report) { newer.Cases[1].Status = report.Error }, []string{"failed"}},
		"failed, a new case": {func(older, newer *report.Report) {
			older.Cases, newer.Cases[3].Status = older.Cases[:3], report.Interrupted
		}, []string{"failed"}},
		"waived now": {func(_, newer *report.Report) { newer.Cases[1].Status = report.Waived }, []string{"failed"}},
		"waived both": {func(older, newer *report.Report) {
			older.Cases[1].Status, newer.Cases[1].Status = report.Waived, report.Waived
		}, nil},
		"failed once": {func(older, _ *report.Report) { older.Cases[1].Status = report.Error }, nil},
		"too noisy": {func(_, newer *report.Report) {
			for _, c := range newer.Cases {
				for k := range c.Samples {
					c.Samples[k] *= 1 + 0.1*float64(k%5-2)
				}
			}
		}, []string{"unproven"}},
		"too few": {func(_, newer *report.Report) {
			for i := range newer.Cases {
				newer.Cases[i].Samples, newer.Cases[i].Stats.Places = newer.Cases[i].Samples[:9], []int{9}
			}
		}, []string{"unproven"}},
		"slower": {func(_, newer *report.Report) { setSamples(&newer.Cases[0], 2e6) }, []string{"slower", "different"}},
		"faster": {func(_, newer *report.Report) { setSamples(&newer.Cases[0], 5e5) }, []string{"faster", "different"}},
	} {
		older, newer := equal()
		c.change(older, newer)
		files := []string{save(t, older, "old.json"), save(t, newer, "new.json")}
		kinds := []string{"none", "slower", "faster", "different", "missing", "failed", "unproven"}
		if testing.Short() { // those that do not fail at once
			kinds = slices.DeleteFunc(kinds, func(kind string) bool { return kind == "none" || slices.Contains(c.fails, kind) })
			kinds = append(slices.Clone(c.fails), strings.Join(kinds, ","))
		}
		for _, kind := range kinds {
			want := report.ExitPassed
			if slices.Contains(c.fails, kind) {
				want = report.ExitWorse
			}
			code, _, stderr := bench(t, append([]string{"compare", "--fail-on", kind + ",once"}, files...)...)
			require.Equal(t, want, code, "%s, --fail-on %s: %s", name, kind, stderr)
		}
		want := report.ExitPassed
		if len(c.fails) > 0 {
			want = report.ExitWorse
		}
		code, _, _ := bench(t, append([]string{"compare", "--fail-on", "different,missing,failed,unproven,once"}, files...)...)
		require.Equal(t, want, code, name)
	}
	// A case that one of several runs lacks is missing.
	older, newer := equal()
	whole := save(t, newer, "1.json")
	newer.Cases = newer.Cases[1:]
	code, _, _ := bench(t, "compare", save(t, older, "old.json"), whole+","+save(t, newer, "2.json"), "--fail-on", "missing")
	require.Equal(t, report.ExitWorse, code)
}

// A case that did not pass has no verdict. Wrong data in the new run are worse than a
// slower one.
func TestCompareOfCasesThatFailed(t *testing.T) {
	older, newer := verdictRuns(t)
	older.Cases[0].Status, newer.Cases[2].Status = report.Failed, report.Waived
	verdicts := func() (list []stat.Verdict, code int) {
		code, out, _ := bench(t, "compare", save(t, older, "old.json"), save(t, newer, "new.json"), "--fail-on", "slower,once", "--format", "json")
		for _, c := range parse(t, out).Comparisons {
			list = append(list, c.Verdict)
		}
		return list, code
	}
	list, code := verdicts()
	require.Equal(t, []stat.Verdict{stat.NotMeasured, stat.Slower, stat.Waived, stat.TooNoisy}, list)
	require.Equal(t, report.ExitWorse, code, "the old run is over")

	newer.Cases[0].Status = report.Failed
	_, code = verdicts()
	require.Equal(t, report.ExitMismatch, code)

	newer.Cases[0].Status, newer.Cases[1].Samples = report.Error, newer.Cases[1].Samples[:3]
	newer.Cases[1].Stats.N = 3
	list, code = verdicts()
	require.Equal(t, []stat.Verdict{stat.NotMeasured, stat.TooFew, stat.Waived, stat.TooNoisy}, list)
	require.Equal(t, report.ExitPassed, code, "that case made the exit code of the run itself")
}

func TestCompareRefusesToMix(t *testing.T) {
	for _, c := range []struct {
		what, want, allowed string
		change              func(*report.Report)
	}{
		{"device", "devices", "--any-device", func(r *report.Report) { r.Devices[0].Name = "another" }},
		{"processor", "devices", "--any-device", func(r *report.Report) { r.Host.CPU = "another" }},
		{"MIG", "devices", "--any-device", func(r *report.Report) { r.Devices[0].MIG = "1g.18gb" }},
		{"number", "devices", "--any-device", func(r *report.Report) { r.Devices = append(r.Devices, r.Devices[0]) }},
		{"driver", "drivers", "--any-driver", func(r *report.Report) { r.Devices[0].Driver = "another" }},
		{"ordinal", "device host:0, and host:1", "--any-device", func(r *report.Report) {
			for i := range r.Cases {
				r.Cases[i].Axes[0].Value = "host:1"
			}
		}},
		{"payload", "bytes", "", func(r *report.Report) { r.Cases[0].Bytes++ }},
		{"unit", "GB/s", "", func(r *report.Report) { r.Cases[0].Unit = "ms" }},
		{"axis", "streams 1, and 2", "", func(r *report.Report) { r.Cases[0].Axes[6].Value = 2 }},
	} {
		older, newer := verdictRuns(t)
		c.change(newer)
		args := []string{"compare", save(t, older, "old.json"), save(t, newer, "new.json")}
		code, out, stderr := bench(t, args...)
		require.Equal(t, report.ExitUsage, code, c.what)
		require.Empty(t, out)
		require.Contains(t, stderr, c.want, c.what)
		for _, flag := range []string{"--any-device", "--any-driver"} {
			want := report.ExitUsage
			if flag == c.allowed {
				want = report.ExitPassed
			}
			code, _, _ := bench(t, append(args, flag)...)
			require.Equal(t, want, code, "%s with %s", c.what, flag)
		}
	}
}

func TestCompareUsage(t *testing.T) {
	older, newer := verdictRuns(t)
	old, new := save(t, older, "old.json"), save(t, newer, "new.json")
	for _, args := range [][]string{
		{}, {old}, {old, new, new}, {old, new, "--fail-on", "worse"}, {old, new, "--margin", "2"},
		{old, new, "--format", "ndjson"}, {old, new, "--format", "gobench"}, {old, new, "-o", "out.xml"},
	} {
		code, out, _ := bench(t, append([]string{"compare"}, args...)...)
		require.Equal(t, report.ExitUsage, code, args)
		require.Empty(t, out)
	}
	// A report that cannot be read is named.
	bad := filepath.Join(t.TempDir(), "bad.json")
	require.NoError(t, os.WriteFile(bad, []byte(`{"schema":"vmmbench/2"}`), 0o600))
	for _, file := range []string{bad, filepath.Join(t.TempDir(), "missing.json")} {
		code, out, stderr := bench(t, "compare", old, file)
		require.Equal(t, report.ExitError, code)
		require.Empty(t, out)
		require.Contains(t, stderr, filepath.Base(file))
	}
	newer.Cases = append(newer.Cases, newer.Cases[0])
	code, _, stderr := bench(t, "compare", old, save(t, newer, "new.json"))
	require.Equal(t, report.ExitError, code)
	require.Contains(t, stderr, "twice")
}

// Every flag of a case is explained where it is printed.
func TestLegendExplainsFlags(t *testing.T) {
	r := copies(t)
	for _, flag := range []string{gated, gateTimedOut, ungated, wallClock, timerCost, cached, resumedFlag, "few-samples", "correlated", "noisy", "drift"} {
		r.Cases[0].Flags = []string{flag}
		var out strings.Builder
		require.NoError(t, report.Output{W: &out, Format: report.Table}.Finished(r))
		require.Contains(t, out.String(), "\n"+flag+": ", flag)
	}
}

// The C++ program in testdata/p2p has the names and payloads of p2p for the same copies.
func TestCPlusPlusProgramHasTheNamesOfP2P(t *testing.T) {
	example, err := loadReport("testdata/p2p/example.ndjson")
	require.NoError(t, err)
	require.False(t, example.Run.Interrupted)
	_, out, _ := bench(t, "p2p", "--device", "host", "--size", "1M", "--grants", "0", "--samples", "1", "--min-time", "0",
		"--progress", "off", "--format", "json")
	r, err := report.Read(strings.NewReader(strings.ReplaceAll(out, "host:", "cuda:")))
	require.NoError(t, err)
	base, list, err := report.Compare([]*report.Report{example}, []*report.Report{r}, report.CompareOptions{Margin: 0.02, AnyDevice: true, AnyDriver: true})
	require.NoError(t, err)
	require.Empty(t, base.OnlyOld)
	require.Empty(t, base.OnlyNew)
	require.Len(t, list, 18)
}

// A run compares itself with an older one.
func TestBaseline(t *testing.T) {
	args := []string{"bw", "--device", "host", "--size", "64K", "--host", "pinned", "--direction", "d2d", "--samples", "21", "--progress", "off", "--format", "json"}
	old := filepath.Join(t.TempDir(), "old.json")
	code, _, _ := bench(t, append(args, "-o", old)...)
	require.Equal(t, report.ExitPassed, code)

	code, out, _ := bench(t, append(args, "--baseline", old)...)
	require.Equal(t, report.ExitPassed, code)
	r := parse(t, out)
	require.NotNil(t, r.Baseline)
	require.Len(t, r.Comparisons, 1+2, "vmm with plain memory, and each with itself")

	// A baseline of a faster machine: every case is slower. What was measured may be too noisy
	// for a verdict, so these runs take over their cases.
	withMedian := func(ns float64) *report.Report {
		r, err := loadReport(old)
		require.NoError(t, err)
		for i := range r.Cases {
			setSamples(&r.Cases[i], ns)
		}
		return r
	}
	now, fast := withMedian(1e6), withMedian(1e4)
	args = append(args, "--resume", save(t, now, "now.json"))
	faster := save(t, fast, "fast.json")
	code, _, _ = bench(t, append(args, "--baseline", faster)...)
	require.Equal(t, report.ExitPassed, code)
	code, _, _ = bench(t, append(args, "--baseline", faster, "--fail-on", "slower,once")...)
	require.Equal(t, report.ExitWorse, code)
	code, _, _ = bench(t, append(args, "--baseline", faster, "--fail-on", "faster,once")...)
	require.Equal(t, report.ExitPassed, code)

	// What cannot be compared is found before anything is measured.
	fast.Devices[0].Name = "another"
	code, out, stderr := bench(t, append(args, "--baseline", save(t, fast, "other.json"))...)
	require.Equal(t, report.ExitUsage, code)
	require.Empty(t, out)
	require.Contains(t, stderr, "--any-device")
	code, _, _ = bench(t, append(args, "--fail-on", "slower")...)
	require.Equal(t, report.ExitUsage, code)
}

// With several runs on a side, a verdict is firm if it is the same for all of them.
func TestCompareOfSeveralRuns(t *testing.T) {
	run := func(factors ...float64) []string { // a report for each, whose times are longer by the factor
		var files []string
		for i, f := range factors {
			r, _ := verdictRuns(t)
			for _, c := range r.Cases {
				for k := range c.Samples {
					c.Samples[k] *= f
				}
			}
			files = append(files, save(t, r, fmt.Sprintf("%d-%g.json", i, f)))
		}
		return files
	}
	compare := func(older, newer []string) (report.Comparison, int) {
		code, out, stderr := bench(t, "compare", strings.Join(older, ","), strings.Join(newer, ","), "--fail-on", "slower,once", "--format", "json")
		require.NotEqual(t, report.ExitUsage, code, stderr)
		r := parse(t, out)
		require.Equal(t, len(older), r.Baseline.OldRuns)
		require.Equal(t, len(newer), r.Baseline.NewRuns)
		return r.Comparisons[0], code
	}
	c, code := compare(run(1), run(1.1))
	require.Equal(t, stat.Slower, c.Verdict)
	require.Equal(t, report.ExitWorse, code)
	// One of three runs was as fast as before: it is the runs that differ.
	c, code = compare(run(1, 1.05, 0.97), run(1.1, 1.02, 1.12))
	require.Equal(t, stat.TooNoisy, c.Verdict)
	require.Equal(t, report.ExitPassed, code)
	require.Less(t, *c.Low, 1.0)
	require.Greater(t, *c.High, 1.1)
	c, code = compare(run(1, 1.01, 0.99), run(1.2, 1.21, 1.19))
	require.Equal(t, stat.Slower, c.Verdict)
	require.Equal(t, report.ExitWorse, code)
	require.InDelta(t, 1.2, *c.Ratio, 0.01)
}

// TestReportOfOthersOnATerminal: no text of a report reaches it as it is, neither directly nor in a file.
func TestReportOfOthersOnATerminal(t *testing.T) {
	t.Parallel()
	r := copies(t)
	const evil = "\x1b[2J"
	r.Devices[0].Name, r.Run.Version, r.Run.Command = evil, evil, evil
	r.Cases[0].Status, r.Cases[0].Reason = report.Failed, evil
	file, dir := save(t, r, "a.json"), t.TempDir()
	_, shown, stderr := bench(t, "compare", file, save(t, r, "b.json"))
	for _, suffix := range []string{"txt", "bench"} {
		name := filepath.Join(dir, "a."+suffix)
		_, _, said := bench(t, "report", file, "-o", name)
		text, err := os.ReadFile(name)
		require.NoError(t, err, said)
		require.Contains(t, string(text), `\u001b[2J`)
		shown += string(text)
	}
	_, _, missing := bench(t, "compare", evil, file)
	require.Contains(t, missing, `\u001b[2J`)
	require.NotContains(t, shown+stderr+missing, "\x1b")
}
