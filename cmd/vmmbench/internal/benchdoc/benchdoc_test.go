package benchdoc

import (
	"bytes"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/stat"
	"github.com/cuvmm/cuvmm/internal/testing/testgate"
)

var update = flag.Bool("update", false, "write docs/benchmarks.md, its data and its pictures")

// docs/benchmarks.md and its pictures are what the reports in docs/benchmarks make. make
// benchmarks-doc writes them.
func TestDocument(t *testing.T) {
	const docs = "../../../../docs"
	if _, err := os.Stat(docs); err != nil {
		t.Skip("needs the module's sources")
	}
	if *update {
		require.NoError(t, write(docs))
	}
	testgate.Long(t) // TestBlocks and TestFigures check small documents
	require.NoError(t, check(docs))
	page, err := os.ReadFile(filepath.Join(docs, "benchmarks.md"))
	require.NoError(t, err)
	require.LessOrEqual(t, strings.Count(string(page), "\n"), 300, "it is for a person to read")
}

// changed are the files of dir that are not as the reports make them. A picture or page that is
// not made any more is nil.
func changed(dir string) (map[string][]byte, error) {
	made, err := files(dir)
	if err != nil {
		return nil, err
	}
	list := map[string][]byte{}
	for _, pattern := range []string{"images/bench-*.svg", dataDir + "*.html"} {
		old, err := fs.Glob(os.DirFS(dir), pattern)
		if err != nil {
			return nil, err
		}
		for _, name := range old {
			list[name] = nil
		}
	}
	for name, text := range made {
		list[name] = text
		if old, err := os.ReadFile(filepath.Join(dir, name)); err == nil && bytes.Equal(old, text) {
			delete(list, name)
		}
	}
	return list, nil
}

// write makes the files as the reports make them.
func write(dir string) error {
	list, err := changed(dir)
	if err != nil {
		return err
	}
	for name, text := range list {
		file := filepath.Join(dir, name)
		if text == nil {
			err = os.Remove(file)
		} else {
			err = os.WriteFile(file, text, 0o666)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// check returns an error that names what write would change.
func check(dir string) error {
	list, err := changed(dir)
	if err != nil || len(list) == 0 {
		return err
	}
	return fmt.Errorf("not as the reports in docs/%s make them: %s; run make benchmarks-doc", dataDir, strings.Join(slices.Sorted(maps.Keys(list)), ", "))
}

// number makes a pointer, as optional figures are.
func number(x float64) *float64 { return &x }

// grown is a small report: growth in place is faster than a copy and slower than mremap.
func grown() *report.Report {
	r := report.New(report.Run{
		Command: "grow", Args: []string{"grow", "--size", "1G", "-o", "/tmp/x.json", "--progress=off", "--order", "fixed"},
		Version: "4b1d2ef", Started: "2026-11-22T13:28:49Z",
	}, report.Host{OS: "linux", Kernel: "6.18.4-x", CPU: "Some CPU", CPUs: 4})
	r.Devices = append(r.Devices, report.Device{Open: "cuda:0", Name: "Some GPU", Driver: "CUDA 13.0", State: &report.DeviceState{DriverVersion: "580.1"}})
	for _, c := range []struct {
		mem string
		ms  float64
	}{{"vmm", 10}, {"mmap-copy", 80}, {"mremap", 5}} {
		step := c.ms / 4 * 1e6
		samples := make([]float64, 6)
		steps := make([][]float64, 6)
		for i := range samples {
			samples[i], steps[i] = c.ms*1e6, []float64{step, step, step, step}
		}
		r.Cases = append(r.Cases, report.Case{
			ID: "grow/1GiB/" + c.mem, Unit: "ms", Bytes: 1 << 30, Status: report.Passed, Samples: samples,
			Axes: report.Axes{{Name: "size", Value: uint64(1 << 30)}, {Name: "step", Value: uint64(256 << 20)}, {Name: "mem", Value: c.mem}},
			Stats: &report.Stats{
				N: 6, Loops: 1, Median: c.ms * 1e6, Value: c.ms, Low: number(c.ms * 0.9e6), High: number(c.ms * 1.1e6),
				Growth: &report.Growth{Steps: 4, StepP50: step, StepP99: &step, StepMax: step, Copied: 3 << 28, Peak: 1 << 30, Moves: 3, Samples: steps},
			},
		})
	}
	for _, c := range []struct {
		against string
		ratio   float64
		verdict stat.Verdict
	}{{"mmap-copy", 0.125, stat.Faster}, {"mremap", 2, stat.Slower}} {
		r.Comparisons = append(r.Comparisons, report.Comparison{
			ID: "grow/1GiB: vmm against " + c.against, A: "grow/1GiB/" + c.against, B: "grow/1GiB/vmm",
			Ratio: number(c.ratio), Low: number(c.ratio * 0.8), High: number(c.ratio * 1.25), Margin: 0.02, Verdict: c.verdict,
		})
	}
	return r
}

// docs is a folder with a document that shows r, before it is filled.
func docs(t *testing.T, r *report.Report, text string) string {
	t.Helper()
	dir := t.TempDir()
	for _, sub := range []string{"benchmarks", "images", "coming-from"} {
		require.NoError(t, os.Mkdir(filepath.Join(dir, sub), 0o755))
	}
	f, err := os.Create(filepath.Join(dir, "benchmarks", "gpu.json"))
	require.NoError(t, err)
	require.NoError(t, report.Output{W: f, Format: report.JSON}.Finished(r))
	require.NoError(t, f.Close())
	change(t, dir, "benchmarks.md", func(string) string { return text })
	return dir
}

// change replaces a file by what f makes of it.
func change(t *testing.T, dir, name string, f func(string) string) {
	t.Helper()
	old, err := os.ReadFile(filepath.Join(dir, name))
	if !os.IsNotExist(err) {
		require.NoError(t, err)
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(f(string(old))), 0o644))
}

// empty is an empty block.
func empty(words string) string { return "<!-- bench " + words + " -->\n<!-- /bench -->\n" }

func TestBlocks(t *testing.T) {
	dir := docs(t, grown(), "# By hand\n\n"+empty("reports")+"\nAlso by hand.\n\n"+empty("table gpu.json rows=mem column=size")+
		empty("slower")+"\n![x](images/bench-gpu-growth-1gib.svg)\nThe end.\n")
	require.ErrorContains(t, check(dir), "benchmarks.md, benchmarks/gpu.html, benchmarks/gpu.json, images/bench-gpu-growth-1gib.svg; run make benchmarks-doc")
	require.NoError(t, write(dir))
	require.NoError(t, check(dir))
	text, err := os.ReadFile(filepath.Join(dir, "benchmarks.md"))
	require.NoError(t, err)
	for _, want := range []string{
		"version 4b1d2ef · 2026-11-22 · Some GPU, driver 580.1 (CUDA 13.0):\n\n- [gpu.json](benchmarks/gpu.json), [page](benchmarks/gpu.html): vmmbench grow --size 1G --order fixed\n",
		"| mem | 1GiB |\n| --- | --- |\n| vmm | 10 ms |\n", "| mmap-copy | 80 ms (8) |\n", "| mremap | 5 ms (0.5) |\n",
		"Of 2 comparisons memory that grows is slower in 1. In 0 more its ratio is above the margin too, but the verdict is not firm.\n",
		"- [gpu.json](benchmarks/gpu.json): grow/1GiB: vmm against mremap takes 2 times as long (1.6 to 2.5)\n",
		"<!-- /bench -->\n\n![Growth, 1GiB: vmm 10 ms, mmap-copy 80 ms, mremap 5 ms. Line chart: ", "](images/bench-gpu-growth-1gib.svg)\nThe end.\n",
	} {
		require.Contains(t, string(text), want)
	}
	require.NotContains(t, string(text), "x.json")
	html, err := os.ReadFile(filepath.Join(dir, "benchmarks/gpu.html"))
	require.NoError(t, err)
	require.Contains(t, string(html), "<h2 id=\"r0-title\">grow: gpu.json</h2>")
	drawn, err := os.ReadFile(filepath.Join(dir, "images/bench-gpu-growth-1gib.svg"))
	require.NoError(t, err)
	require.Contains(t, string(drawn), "vmmbench grow --size 1G --order fixed")

	// Whatever is not what the reports make is found, and made anew.
	data := func(old string) string {
		return strings.Replace(old, `"median_ns":10000000`, `"median_ns":11000000`, 1)
	}
	for _, made := range []struct {
		name string
		f    func(string) string
	}{
		{"benchmarks.md", func(old string) string { return strings.Replace(old, "| 10 ms", "| 9 ms", 1) }},
		{"images/bench-gpu-growth-1gib.svg", func(old string) string { return old + " " }},
		{"images/bench-gone-growth-1gib.svg", func(string) string { return "" }},
		{"benchmarks/gpu.html", func(old string) string { return old + " " }},
		{"benchmarks/gone.html", func(string) string { return "" }},
		{"benchmarks/gpu.json", func(old string) string { return data(old) + " " }},
	} {
		change(t, dir, made.name, made.f)
		require.ErrorContains(t, check(dir), made.name)
		require.NoError(t, write(dir))
		require.NoError(t, check(dir), made.name)
	}
	text, err = os.ReadFile(filepath.Join(dir, "benchmarks.md"))
	require.NoError(t, err)
	require.Contains(t, string(text), "| vmm | 11 ms |", "new data, new text")
}

func TestBlocksRefuse(t *testing.T) {
	for text, want := range map[string]string{
		empty("cake"):                                               "cake: want reports, slower, or table FILE",
		empty("table gpu.json rows=mem"):                            "or table FILE rows=AXIS,AXIS column=AXIS",
		empty("table none.json rows=mem column=size"):               "it is not in docs/benchmarks",
		empty("table gpu.json rows=mem column=size only=grow/1MiB"): "there is nothing of that",
		empty("table"):                                              "want reports",
		"![x](images/bench-gpu-cake.svg)":                           "has the picture gpu-cake",
		"![x](images/bench-none-cake.svg)":                          "has the picture none-cake",
		"<!-- bench slower -->\n":                                   "1 comments of 0 blocks",
		"<!-- bench slower -->\n" + empty("reports"):                "3 comments of 1 blocks",
		"<!-- /bench -->\n":                                         "1 comments of 0 blocks",
		empty("table gpu.json rows=mem column=size only=grow/1GiB"): "",
	} {
		dir := docs(t, grown(), text)
		if err := write(dir); want == "" {
			require.NoError(t, err, text)
		} else {
			require.ErrorContains(t, err, want, text)
		}
	}
}

// A figure in a text is what the report has, and what looks like one is linked.
func TestFigures(t *testing.T) {
	const shown = "<!-- bench reports -->\n<!-- /bench -->\n"
	link := func(text, what string) string { return "[" + text + "](benchmarks/gpu.json \"" + what + "\")" }
	texts := map[string]string{
		"time of grow/1GiB/vmm":                         "10 ms",
		"value of grow/1GiB/mremap":                     "5 ms",
		"moves of grow/1GiB/vmm":                        "3",
		"peak_bytes of grow/1GiB/vmm":                   "1.0 GiB",
		"bytes_copied of grow/1GiB/vmm per byte":        "0.75",
		"ratio of grow/1GiB/mmap-copy to grow/1GiB/vmm": "8",
		"comparisons of grow":                           "2",
		"slower of grow":                                "1",
		"too noisy of grow":                             "0",
	}
	figures, others := shown, ""
	for what := range texts {
		figures += link("x", what) + "\n"
		others += "takes " + link("9", what) + "\n"
	}
	dir := docs(t, grown(), figures)
	change(t, dir, "coming-from/others.md", func(string) string { return others })
	require.NoError(t, write(dir))
	require.NoError(t, check(dir))
	for what, want := range texts {
		for _, name := range []string{"benchmarks.md", "coming-from/others.md"} {
			text, err := os.ReadFile(filepath.Join(dir, name))
			require.NoError(t, err)
			require.Contains(t, string(text), link(want, what))
		}
	}
	for what, want := range testgate.Effort(map[string]string{"time of grow/1GiB/vmm": "10 ms"}, texts, texts) {
		was := ""
		change(t, dir, "coming-from/others.md", func(old string) string {
			was = old
			return strings.Replace(old, link(want, what), link(want+"1", what), 1)
		})
		require.ErrorContains(t, check(dir), "coming-from/others.md", what)
		change(t, dir, "coming-from/others.md", func(string) string { return was })
	}
	for text, want := range map[string]string{
		link("x", "grow/1GiB/vmm"):                                                     "there is no such case or verdict",
		link("x", "cake of grow/1GiB/vmm"):                                             "grow/1GiB/vmm has no cake",
		link("x", "time of grow/none"):                                                 "there is no such case or verdict",
		link("x", "cake of grow"):                                                      "there is no such case or verdict",
		link("x", "ratio of grow/1GiB/vmm to x"):                                       "there is no such case or verdict",
		link("x", "cake of grow/1GiB/mremap to grow/1GiB/vmm"):                         "there is no such case or verdict",
		link("x", "ratio of grow/1GiB/mremap to grow/1GiB/mmap-copy"):                  "there is no such case or verdict",
		`[x](benchmarks/none.json "time of x")`:                                        "none.json: time of x: there is no such figure",
		`[x](benchmarks/programs/c.json "time")`:                                       "programs/c.json: time: there is no such figure",
		"It takes 10 ms.":                                                              `"It takes 10 ms." has a figure that is no link to the data`,
		"It takes `10 ms`.\n\n    10 ms\n```\n10 ms\n```\n## Figures of others\n10 ms": "",
	} {
		dir := docs(t, grown(), shown+text)
		if err := write(dir); want == "" {
			require.NoError(t, err, text)
		} else {
			require.ErrorContains(t, err, want, text)
		}
	}
}

// Figures of other programs say what, where and how they were measured.
func TestPrograms(t *testing.T) {
	dir := docs(t, grown(), "<!-- bench reports -->\n<!-- /bench -->\n[x](benchmarks/programs/c.json \"loop\")\n")
	require.NoError(t, os.Mkdir(filepath.Join(dir, "benchmarks", "programs"), 0o755))
	const file = "benchmarks/programs/c.json"
	change(t, dir, file, func(string) string {
		return `[{"name":"loop","unit":"ms","value":2.5,"meaning":"a","machine":"b","commit":"c"}]`
	})
	require.ErrorContains(t, write(dir), `"loop" does not say what, where and how`)
	change(t, dir, file, func(string) string { return `{` })
	require.ErrorContains(t, write(dir), "c.json: ")
	change(t, dir, file, func(string) string {
		return `[{"name":"loop","unit":"ms","value":2.5,"meaning":"a","machine":"b","commit":"c","command":"d"}]`
	})
	require.NoError(t, write(dir))
	text, err := os.ReadFile(filepath.Join(dir, "benchmarks.md"))
	require.NoError(t, err)
	require.Contains(t, string(text), `[2.5 ms](benchmarks/programs/c.json "loop")`)
}

// A report is kept without the names of the files that the run has written.
func TestEncode(t *testing.T) {
	r := grown()
	text, err := encode(r)
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(string(text), "\n"))
	require.Equal(t, []string{"grow", "--size", "1G", "--order", "fixed"}, r.Run.Args)
	require.Equal(t, []string{"bw", "--size", "1M"}, report.Run{Args: []string{"bw", "-o", "a", "-ob.json", "--output=c", "--size", "1M", "--resume", "d"}}.Flags())
}
