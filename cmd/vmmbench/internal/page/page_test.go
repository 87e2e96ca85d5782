package page

import (
	"bytes"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/plot"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
)

func load(t *testing.T) *report.Report {
	t.Helper()
	f, err := os.Open("../plot/testdata/gpu.json")
	require.NoError(t, err)
	defer f.Close()
	r, err := report.Read(f)
	require.NoError(t, err)
	return r
}

func write(t *testing.T, reports ...*report.Report) string {
	t.Helper()
	var b bytes.Buffer
	names := make([]string, len(reports))
	for i := range names {
		names[i] = "gpu.json"
	}
	require.NoError(t, Write(&b, names, reports))
	return b.String()
}

func TestPage(t *testing.T) {
	page := write(t, load(t))
	require.Less(t, len(page), 1_500_000)
	require.Contains(t, page, `<html lang="en">`)
	require.Contains(t, page, "Growth in place (grow/8GiB/vmm) takes ", "what was found")
	require.Less(t, strings.Index(page, "What was found"), strings.Index(page, "<svg"), "comes first")
	for _, heading := range []string{"Machine", "Pictures", "All figures"} {
		require.Contains(t, page, "<h3>"+heading+"</h3>")
	}
	require.Regexp(t, `from \\ to</th>\s+<th scope="col">cuda:0</th>\s+<th scope="col">cuda:1</th>`, page, "pairs of devices are a table")
	require.Contains(t, page, "<dt>median</dt><dd>", "words are explained")
	require.Empty(t, outside(page), "the page loads nothing")
	require.Equal(t, []string{"https://example.com/x.js", "//example.com", "x.png"},
		outside(`<script src="https://example.com/x.js"></script><a href="//example.com">x</a><style>a{background:url(x.png)}</style>`))

	// Headings are in order, and an id names one element.
	level := 0
	for _, m := range regexp.MustCompile(`<h([1-6])`).FindAllStringSubmatch(page, -1) {
		next := int(m[1][0] - '0')
		require.LessOrEqual(t, next, level+1, m[0])
		level = next
	}
	ids := map[string]bool{}
	for _, m := range regexp.MustCompile(` id="([^"]*)"`).FindAllStringSubmatch(page, -1) {
		require.False(t, ids[m[1]], m[1])
		ids[m[1]] = true
	}
	for _, m := range regexp.MustCompile(`(?:href="#|aria-labelledby=")([^"]*)"`).FindAllStringSubmatch(page, -1) {
		for id := range strings.FieldsSeq(m[1]) {
			require.True(t, ids[id], "nothing has the id %s", id)
		}
	}
	require.Equal(t, page, write(t, load(t)), "twice the same")
}

// outside are the addresses that a page refers to, but for its own parts, data in it, and
// the name of SVG.
func outside(page string) (list []string) {
	for _, m := range regexp.MustCompile(`(?:src|srcset|href|action|data)="([^"]*)"|url\(([^)]*)\)|@import ([^;]*)`).FindAllStringSubmatch(page, -1) {
		at := m[1] + m[2] + m[3]
		if !strings.HasPrefix(at, "#") && !strings.HasPrefix(at, "data:") {
			list = append(list, at)
		}
	}
	return list
}

// A picture's colors are names, which the page defines once for light and for dark.
func TestThemes(t *testing.T) {
	page := write(t, load(t))
	body := page[strings.Index(page, "<body>"):]
	require.Equal(t, 1, strings.Count(page, plot.Style))
	require.NotRegexp(t, `<style|style=`, body)
	require.NotRegexp(t, `#[0-9A-F]{6}`, body)
}

// What comes from a report is text, wherever it is shown.
func TestHostileReport(t *testing.T) {
	const hostile = `"><script>alert(1)</script><img src=x onerror=alert(1)>`
	r := load(t)
	r.Run.Command, r.Run.Args, r.Run.Version, r.Run.Error = hostile, []string{hostile}, hostile, hostile
	r.Run.Interrupted = true
	r.Host.CPU = hostile
	r.Host.State = &report.HostState{Governors: []string{hostile}}
	r.Devices[0].Name, r.Devices[0].Driver = hostile, hostile
	for i := range r.Cases {
		r.Cases[i].ID += hostile
		r.Cases[i].Flags = []string{hostile}
	}
	for i := range r.Comparisons {
		r.Comparisons[i].ID += hostile
		r.Comparisons[i].Verdict = hostile
	}
	r.Cases[0].Status = report.Failed
	page := write(t, r)
	require.Contains(t, page, "Cases whose data were wrong: 1.")
	require.NotContains(t, page, "<script")
	require.NotContains(t, page, "<img")
	require.Contains(t, page, "&lt;script&gt;")
	require.Contains(t, page, "The run was interrupted")
	require.Contains(t, page, "ended with an error")
}

func TestSeveralReports(t *testing.T) {
	empty := report.New(report.Run{Command: "info"}, report.Host{OS: "linux"})
	page := write(t, load(t), empty)
	require.Contains(t, page, "<h1>vmmbench: 2 reports</h1>")
	require.Contains(t, page, `<a href="#r1">info: gpu.json</a>`)
	require.NotContains(t, page[strings.Index(page, `<section id="r1"`):], "<svg")
	require.NotContains(t, write(t, load(t)), "<nav")
}

// The state of the machine stands as it was at the start beside the end. What is not known
// is left out.
func TestStates(t *testing.T) {
	watts := 71.25
	r := report.New(report.Run{}, report.Host{
		State:    &report.HostState{Time: "a", Load: []float64{0.5, 1}},
		StateEnd: &report.HostState{Time: "b", Load: []float64{2, 1}, Governors: []string{"performance"}},
	})
	r.Devices = []report.Device{{Open: "host:0"}, {Open: "cuda:0", State: &report.DeviceState{Power: &watts, Throttle: []string{}}}}
	states := report.States(r)
	require.Len(t, states, 2)
	for i, want := range []string{
		"what,start,end\ntime,a,b\nload,\"0.5, 1\",\"2, 1\"\ngovernors,,performance",
		"what,start\npower w,71.25\nthrottle,nothing",
	} {
		require.Equal(t, []string{"State of the host", "State of cuda:0"}[i], states[i].Heading)
		require.Equal(t, want, states[i].Table.RenderCSV())
	}
}
