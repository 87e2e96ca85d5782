package benchdoc

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
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
		require.NoError(t, Write(docs))
	}
	testgate.Long(t) // TestBlocks and TestFigures check small documents
	require.NoError(t, Check(docs))
	page, err := os.ReadFile(filepath.Join(docs, "benchmarks.md"))
	require.NoError(t, err)
	require.LessOrEqual(t, strings.Count(string(page), "\n"), 300, "it is for a person to read")
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

// block is an empty block.
func block(words string) string { return "<!-- bench " + words + " -->\n<!-- /bench -->\n" }

func TestBlocks(t *testing.T) {
	dir := docs(t, grown(), "# By hand\n\n"+block("reports *")+"\nAlso by hand.\n\n"+block("findings gpu.json")+
		block("table gpu.json rows=mem column=size")+block("slower *")+block("picture:growth gpu.json only=grow/1GiB")+"The end.\n")
	require.ErrorContains(t, Check(dir), "benchmarks.md, benchmarks/gpu.html, benchmarks/gpu.json, images/bench-gpu-growth-1gib-dark.svg, images/bench-gpu-growth-1gib-light.svg, images/bench-gpu-growth-1gib-narrow-dark.svg, images/bench-gpu-growth-1gib-narrow-light.svg; run make benchmarks-doc")
	require.NoError(t, Write(dir))
	require.NoError(t, Check(dir))
	text, err := os.ReadFile(filepath.Join(dir, "benchmarks.md"))
	require.NoError(t, err)
	for _, want := range []string{
		"- Some GPU, driver 580.1 (CUDA 13.0), 4 CPUs, Linux 6.18, commit 4b1d2ef, 2026-11-22: [gpu.json](benchmarks/gpu.json), [page](benchmarks/gpu.html)\n",
		"- Growth in place (grow/1GiB/vmm) takes 10 ms; mmap-copy takes 8 times as long (95 % 6.4 to 10); mremap takes 0.5 times as long (95 % 0.4 to 0.625). The peak is 1.0 GiB; the pointer stays.",
		"| mmap-copy | 80 ms (8) |\n", "| mremap | 5 ms (0.5) |\n",
		"Of 2 comparisons memory that grows is slower in 1.\n",
		"- [grow/1GiB](benchmarks/gpu.json): 2 times as long as mremap (95 % 1.6 to 2.5)\n",
		`<source media="(prefers-color-scheme: dark)" srcset="images/bench-gpu-growth-1gib-dark.svg">`,
		`<source media="(max-width: 500px) and (prefers-color-scheme: light)" srcset="images/bench-gpu-growth-1gib-narrow-light.svg">`,
		"<!-- /bench -->\nThe end.\n",
	} {
		require.Contains(t, string(text), want)
	}
	require.NotContains(t, string(text), "x.json")
	html, err := os.ReadFile(filepath.Join(dir, "benchmarks/gpu.html"))
	require.NoError(t, err)
	require.Contains(t, string(html), "<h2 id=\"r1-title\">grow on Some GPU</h2>")
	drawn, err := os.ReadFile(filepath.Join(dir, "images/bench-gpu-growth-1gib-dark.svg"))
	require.NoError(t, err)
	require.Contains(t, string(drawn), "Some GPU, driver 580.1 (CUDA 13.0)")

	// Whatever is not what the reports make is found, and made anew.
	data := func(old string) string {
		return strings.Replace(old, `"median_ns":10000000`, `"median_ns":11000000`, 1)
	}
	for _, made := range []struct {
		name string
		f    func(string) string
	}{
		{"benchmarks.md", func(old string) string { return strings.Replace(old, "vmm) takes 10 ms", "vmm) takes 9 ms", 1) }},
		{"images/bench-gpu-growth-1gib-light.svg", func(old string) string { return old + " " }},
		{"images/bench-gone-growth-1gib-light.svg", func(string) string { return "" }},
		{"benchmarks/gpu.html", func(old string) string { return old + " " }},
		{"benchmarks/gone.html", func(string) string { return "" }},
		{"benchmarks/gpu.json", func(old string) string { return data(old) + " " }},
	} {
		change(t, dir, made.name, made.f)
		require.ErrorContains(t, Check(dir), made.name)
		require.NoError(t, Write(dir))
		require.NoError(t, Check(dir), made.name)
	}
	text, err = os.ReadFile(filepath.Join(dir, "benchmarks.md"))
	require.NoError(t, err)
	require.Contains(t, string(text), "vmm) takes 11 ms", "new data, new text")
}

func TestBlocksRefuse(t *testing.T) {
	shown := block("findings gpu.json")
	for text, want := range map[string]string{
		"by hand\n":                                                         "no block shows gpu.json",
		block("slower *"):                                                   "no block shows gpu.json",
		shown + block("cake gpu.json"):                                      `line 3: <!-- bench cake gpu.json -->: "cake" is none of [`,
		shown + block("findings"):                                           "want what to show",
		shown + block("findings none.json"):                                 "no none.json in docs/benchmarks",
		shown + block("findings gpu.json only=bw"):                          "gpu.json has no such cases",
		shown + block("table gpu.json rows=mem"):                            "want rows=AXIS,AXIS and column=AXIS",
		shown + block("picture:cake gpu.json"):                              "want picture:KIND",
		shown + block("picture:matrix gpu.json"):                            "the report has no figures for it",
		shown + "<!-- bench findings gpu.json -->\n":                        "line 3: the block has no end",
		"<!-- bench findings gpu.json -->\n" + shown:                        "line 1: the block has no end",
		shown + "<!-- /bench -->\n":                                         "line 3: the end of a block that has no start",
		shown + block("table gpu.json rows=mem column=size only=grow/1GiB"): "",
	} {
		dir := docs(t, grown(), text)
		if err := Write(dir); want == "" {
			require.NoError(t, err, text)
		} else {
			require.ErrorContains(t, err, want, text)
		}
	}
	// A report that compares nothing has no such lines.
	alone := grown()
	alone.Comparisons = nil
	require.ErrorContains(t, Write(docs(t, alone, block("table gpu.json rows=mem column=size")+block("slower *"))), "no comparisons")
	alone.Cases = alone.Cases[:1]
	require.ErrorContains(t, Write(docs(t, alone, shown)), "has nothing of that")
}

// A figure in a text is what the report has, and what looks like one is linked.
func TestFigures(t *testing.T) {
	const shown = "<!-- bench reports * -->\n<!-- /bench -->\n"
	link := func(text, what string) string { return "[" + text + "](benchmarks/gpu.json \"" + what + "\")" }
	texts := map[string]string{
		"time of grow/1GiB/vmm":                         "10 ms",
		"value of grow/1GiB/mremap":                     "5 ms",
		"moves of grow/1GiB/vmm":                        "3",
		"peak_bytes of grow/1GiB/vmm":                   "1.0 GiB",
		"bytes_copied of grow/1GiB/vmm per byte":        "0.75",
		"ratio of grow/1GiB/mmap-copy to grow/1GiB/vmm": "8",
		"ratio of grow/1GiB/vmm to grow/1GiB/mmap-copy": "0.125",
		"interval of grow/1GiB/mremap to grow/1GiB/vmm": "0.4 to 0.625",
		"comparisons of grow":                           "2",
		"slower of grow":                                "1",
		"too-noisy of grow":                             "0",
	}
	figures, others := shown, ""
	for what := range texts {
		figures += link("x", what) + "\n"
		others += "takes " + link("9", what) + "\n"
	}
	dir := docs(t, grown(), figures)
	change(t, dir, "coming-from/others.md", func(string) string { return others })
	require.NoError(t, Write(dir))
	require.NoError(t, Check(dir))
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
		require.ErrorContains(t, Check(dir), "coming-from/others.md", what)
		change(t, dir, "coming-from/others.md", func(string) string { return was })
	}
	for text, want := range map[string]string{
		link("x", "grow/1GiB/vmm"):                                                     "want FIGURE of CASE",
		link("x", "cake of grow/1GiB/vmm"):                                             "grow/1GiB/vmm has no cake",
		link("x", "time of grow/none"):                                                 "no case, and no verdicts",
		link("x", "cake of grow"):                                                      "no case, and no verdicts",
		link("x", "ratio of grow/1GiB/vmm to x"):                                       "one is not there",
		link("x", "cake of grow/1GiB/mremap to grow/1GiB/vmm"):                         "no cake of grow/1GiB/mremap",
		link("x", "ratio of grow/1GiB/mremap to grow/1GiB/mmap-copy"):                  "no ratio of",
		`[x](benchmarks/none.json "time of x")`:                                        "no none.json in docs/benchmarks",
		`[x](benchmarks/programs/c.json "time")`:                                       "programs/c.json has no time",
		"It takes 10 ms.":                                                              `"10 ms" is no link to the data`,
		"It takes `10 ms`.\n\n    10 ms\n```\n10 ms\n```\n## Figures of others\n10 ms": "",
	} {
		dir := docs(t, grown(), shown+text)
		if err := Write(dir); want == "" {
			require.NoError(t, err, text)
		} else {
			require.ErrorContains(t, err, want, text)
		}
	}
}

// Figures of other programs say what, where and how they were measured.
func TestPrograms(t *testing.T) {
	dir := docs(t, grown(), "<!-- bench reports * -->\n<!-- /bench -->\n[x](benchmarks/programs/c.json \"loop\")\n")
	require.NoError(t, os.Mkdir(filepath.Join(dir, "benchmarks", "programs"), 0o755))
	const file = "benchmarks/programs/c.json"
	change(t, dir, file, func(string) string {
		return `[{"name":"loop","unit":"ms","value":2.5,"meaning":"a","machine":"b","commit":"c"}]`
	})
	require.ErrorContains(t, Write(dir), `"loop" does not say what, where and how`)
	change(t, dir, file, func(string) string { return `{` })
	require.ErrorContains(t, Write(dir), "c.json: ")
	change(t, dir, file, func(string) string {
		return `[{"name":"loop","unit":"ms","value":2.5,"meaning":"a","machine":"b","commit":"c","command":"d"}]`
	})
	require.NoError(t, Write(dir))
	text, err := os.ReadFile(filepath.Join(dir, "benchmarks.md"))
	require.NoError(t, err)
	require.Contains(t, string(text), `[2.5 ms](benchmarks/programs/c.json "loop")`)
}

// A large report loses the samples of its steps, and its pictures of growth with them.
func TestEncode(t *testing.T) {
	r := grown()
	whole, err := encode(r, maxData)
	require.NoError(t, err)
	require.Contains(t, string(whole), "2500000,2500000")
	require.Equal(t, []string{"grow", "--size", "1G", "--order", "fixed"}, r.Run.Args)
	small, err := encode(r, len(whole)-2)
	require.NoError(t, err)
	require.NotContains(t, string(small), "2500000,2500000")
	require.Contains(t, string(small), `"step_p50_ns":2500000`)
	_, err = encode(r, 100)
	require.ErrorContains(t, err, "over 100")
	require.Equal(t, []string{"bw", "--size", "1M"}, report.Run{Args: []string{"bw", "-o", "a", "-ob.json", "--output=c", "--size", "1M", "--resume", "d"}}.Flags())
}

// A page that would be too large is not kept, and a command that draws it stands in its place.
func TestLargePages(t *testing.T) {
	r := grown()
	for i := range 800 {
		c := r.Cases[0]
		c.Reason = report.Text(strings.Repeat(fmt.Sprint("why ", i, " "), 100))
		c.ID = fmt.Sprintf("ops/%d/vmm", i)
		c.Axes = report.Axes{{Name: "size", Value: uint64(i)}, {Name: "mem", Value: "vmm"}}
		c.Stats = &report.Stats{N: 6, Loops: 1, Median: 1e6, Value: 1}
		r.Cases = append(r.Cases, c)
	}
	html, err := pageOf("gpu.json", r)
	require.NoError(t, err)
	require.Empty(t, string(html[:min(len(html), 100)]))
	f := filler{data: map[string]*report.Report{"gpu.json": r}}
	text, err := f.block([]string{"reports", "*"})
	require.NoError(t, err)
	require.Contains(t, text, ": [gpu.json](benchmarks/gpu.json)")
	r.Run.Version, r.Run.Interrupted = "(devel)", true
	text, err = f.block([]string{"reports", "gpu.json"})
	require.NoError(t, err)
	require.Contains(t, text, "commit unknown, ")
	require.Contains(t, text, ", interrupted: [gpu.json]")
}
