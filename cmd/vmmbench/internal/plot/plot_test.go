package plot

import (
	"encoding/xml"
	"fmt"
	"math"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/stat"
)

func load(t *testing.T) *report.Report {
	t.Helper()
	f, err := os.Open(gpuReport)
	require.NoError(t, err)
	defer f.Close()
	r, err := report.Read(f)
	require.NoError(t, err)
	return r
}

// UPDATE_GOLDEN=1 writes them.
func TestGolden(t *testing.T) {
	golden := []string{"growth-8gib", "bandwidth-d2d-none"}
	for _, c := range Charts(load(t)) {
		if !slices.Contains(golden, c.Name) {
			continue
		}
		golden = slices.DeleteFunc(golden, func(name string) bool { return name == c.Name })
		file := fmt.Sprintf("testdata/%s.svg", c.Name)
		if os.Getenv("UPDATE_GOLDEN") != "" {
			require.NoError(t, os.WriteFile(file, []byte(c.SVG(Style)), 0o644))
		}
		want, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Equal(t, string(want), c.SVG(Style), file)
	}
	require.Empty(t, golden, "every golden picture was drawn")
}

// What pictures of a large machine are called, and what their titles say.
func TestCharts(t *testing.T) {
	titles := map[string]string{}
	for _, c := range Charts(load(t)) {
		titles[c.Name] = c.Title
		require.NotEmpty(t, c.Alt, c.Name)
	}
	require.Len(t, titles, 3, "pairs of devices stand in tables")
	require.Regexp(t, `^Growth, 8GiB: vmm [\d.]+ ms, cuMemAlloc-copy \d+ ms, mallocAsync-copy [\d.]+ ms$`, titles["growth-8gib"])
	require.Regexp(t, `^Bandwidth, h2d/pinned: vmm [\d.]+ GB/s, cuMemAlloc [\d.]+ GB/s$`, titles["bandwidth-h2d-pinned"])
	require.Regexp(t, `^Bandwidth, d2d/none: `, titles["bandwidth-d2d-none"])
}

// Axes have the quantity and its unit, and growth in place does not lie on an axis.
func TestAxes(t *testing.T) {
	for _, c := range Charts(load(t)) {
		kind, _, _ := strings.Cut(c.Name, "-")
		for _, axis := range map[string][]string{
			"growth":    {"time in total (ms)", "bytes appended so far", "10", "100", "8GiB"},
			"bandwidth": {"bandwidth (GB/s)", "bytes of a copy", "1MiB"},
		}[kind] {
			require.Contains(t, c.SVG(Style), ">"+axis+"</text>", c.Name)
		}
	}
}

// Every picture is an XML document with a title and a description, which loads nothing,
// and every text is inside of it.
func TestSVG(t *testing.T) {
	charts := Charts(load(t))
	for i, c := range Charts(load(t)) {
		got := c.SVG(Style)
		require.Equal(t, got, charts[i].SVG(Style), "twice the same")
		require.NoError(t, complaint(got), c.Name)
		require.Contains(t, got, "@media screen and (prefers-color-scheme:dark)")
		require.NotContains(t, c.SVG(""), "color-scheme", "a page has the style")
		body := got[strings.Index(got, "</style>"):]
		require.NotContains(t, body, "#", "colors have names")
		for _, m := range regexp.MustCompile(`class="([^"]+)"`).FindAllStringSubmatch(body, -1) {
			for class := range strings.FieldsSeq(m[1]) {
				require.True(t, class == "dash-0" || class == "ink" || strings.Contains(Style, ".chart ."+class+"{"), class)
			}
		}
	}

	// The check finds what is wrong.
	good := charts[0].SVG(Style)
	for _, bad := range []string{
		strings.Replace(good, "<title", "<nottitle", 1),
		strings.Replace(good, `<text `, `<text onload="x" href="https://example.com" `, 1),
		strings.Replace(good, `<text class="title" x="12.0"`, `<text class="title" x="600.0"`, 1),
		strings.Replace(good, "</svg>", "", 1),
		regexp.MustCompile(`<text [^>]*>[^<]*</text>`).ReplaceAllString(good, "$0$0"),
	} {
		require.Error(t, complaint(bad))
	}
}

var loads = regexp.MustCompile(`<script|<image|<foreignObject|href=|url\(|@import|onload`)

// box is where a text stands.
type box struct{ left, top, right, bottom float64 }

// boxOf is the box of a text in the widest of the usual fonts.
func boxOf(class, text string, x, y float64) box {
	high := 14.0
	switch class {
	case "title":
		high = 17
	case "foot":
		high = 11
	}
	letter := 0.6
	if class == "title" { // bold
		letter = 0.68
	}
	wide := letter * high * float64(len([]rune(strings.TrimSpace(text))))
	switch {
	case strings.HasSuffix(class, "middle"):
		x -= wide / 2
	case strings.HasSuffix(class, "end"):
		x -= wide
	}
	return box{x, y - 0.7*high, x + wide, y}
}

// complaint says what is wrong with a picture.
func complaint(svg string) error {
	if found := loads.FindString(svg); found != "" {
		return fmt.Errorf("it has %s", found)
	}
	var parsed struct {
		Height float64  `xml:"height,attr"`
		Title  []string `xml:"title"`
		Desc   []string `xml:"desc"`
		Texts  []struct {
			Class string  `xml:"class,attr"`
			X     float64 `xml:"x,attr"`
			Y     float64 `xml:"y,attr"`
			Text  string  `xml:",chardata"`
		} `xml:"text"`
	}
	if err := xml.Unmarshal([]byte(svg), &parsed); err != nil {
		return err
	}
	var boxes []box
	for _, x := range parsed.Texts {
		b := boxOf(x.Class, x.Text, x.X, x.Y)
		if b.left < 0 || b.right > width || b.top < 0 || b.bottom > parsed.Height {
			return fmt.Errorf("%q goes beyond: %v", x.Text, b)
		}
		for _, other := range boxes {
			if b.left < other.right && other.left < b.right && b.top < other.bottom && other.top < b.bottom {
				return fmt.Errorf("texts overlap: %v and %v, %q", b, other, x.Text)
			}
		}
		boxes = append(boxes, b)
	}
	if len(parsed.Title) != 1 || len(parsed.Desc) != 1 {
		return fmt.Errorf("%d titles, %d descriptions", len(parsed.Title), len(parsed.Desc))
	}
	return nil
}

// one is a report of a single case with these samples.
func one(id, unit string, axes report.Axes, samples ...float64) *report.Report {
	r := report.New(report.Run{Command: "bw", Args: []string{"bw"}, Started: "2026-11-20T10:00:00Z"}, report.Host{})
	r.Devices = []report.Device{{Open: "host:0", Name: "<host> & \x01memory"}}
	c := report.Case{ID: id, Axes: axes, Unit: unit, Status: report.Passed, Samples: samples}
	if len(samples) > 0 {
		sum := stat.Summarize(samples)
		c.Stats = &report.Stats{N: sum.N, Median: sum.Median, Min: sum.Min, Max: sum.Max, Value: sum.Median}
	}
	r.Cases = []report.Case{c}
	return r
}

// Reports with next to nothing in them, and with figures that cannot be, are drawn as far
// as they can be and break nothing.
func TestLittleData(t *testing.T) {
	n := report.Axis{Name: "size", Value: uint64(1 << 20)}
	pair := report.Axes{n, {Name: "from", Value: "a"}, {Name: "to", Value: "b"}, {Name: "mem", Value: "vmm"}}
	grown := one("grow/1MiB/vmm", "ms", report.Axes{n}, 3)
	grown.Cases[0].Stats.Growth = &report.Growth{Samples: [][]float64{{1, 2}, {1}}}
	grown.Cases[0].Bytes = 1 << 20
	twice := one("grow/4MiB/vmm", "ms", report.Axes{n}, 3)
	twice.Cases[0].Stats.Growth = &report.Growth{Samples: [][]float64{{1, 2}, {1, 2}}}
	twice.Cases[0].Bytes = 4 << 20
	empty := one("grow/0B/vmm", "ms", report.Axes{n}, 0)
	empty.Cases[0].Stats.Growth = &report.Growth{Samples: [][]float64{{}}}
	sizes := one("bw/h2d/1MiB/vmm", "GB/s", report.Axes{n}, 5)
	sizes.Cases = append(sizes.Cases, one("bw/h2d/2MiB/vmm", "GB/s", report.Axes{{Name: "size", Value: uint64(2 << 20)}}, 5).Cases...)
	long := strings.Repeat("a", 200)
	longNames := one("bw/h2d/1MiB/"+long, "GB/s", report.Axes{n}, 5)
	longNames.Cases = append(longNames.Cases, one("bw/h2d/2MiB/"+long, "GB/s", report.Axes{{Name: "size", Value: uint64(2 << 20)}}, 5).Cases...)
	for name, c := range map[string]struct {
		r    *report.Report
		want string // names of the pictures
	}{
		"one copy":          {one("bw/h2d/1MiB/vmm", "GB/s", report.Axes{n}, 5), ""},
		"two sizes":         {sizes, "bandwidth-h2d"},
		"long names":        {longNames, "bandwidth-h2d"},
		"no bandwidth":      {one("bw/h2d/1MiB/vmm", "GB/s", report.Axes{n}, 0, 0), ""},
		"one call":          {one("ops/1MiB/map", "us", report.Axes{n}, 5), ""},
		"no axes":           {one("x", "GB/s", nil, 1, 2), ""},
		"no name":           {one("", "GB/s", report.Axes{n}, 1), ""},
		"one pair":          {one("p2p/a-b/vmm", "GB/s", pair, 2), ""},
		"one step":          {grown, ""},
		"two steps":         {twice, "growth-4mib"},
		"nothing appended":  {empty, ""},
		"nothing":           {one("bw/x", "GB/s", nil), ""},
		"sizes are strings": {one("bw/h2d/x/vmm", "GB/s", report.Axes{{Name: "size", Value: "x"}}, 1), ""},
	} {
		var names []string
		for _, chart := range Charts(c.r) {
			names = append(names, chart.Name)
			got := chart.SVG(Style)
			require.NoError(t, complaint(got), name)
			require.NotContains(t, got, "NaN", name)
			require.NotContains(t, got, "Inf", name)
			require.Contains(t, got, "&lt;host&gt; &amp; \uFFFDmemory", name)
		}
		require.Equal(t, c.want, strings.Join(names, " "), name)
	}
}

// A growth that doubles has its points at 2 MiB, 4 MiB and so on, and ends at its target. One
// of very many steps has about a hundred.
func TestCumulative(t *testing.T) {
	r := one("grow/12MiB/vmm", "ms", report.Axes{{Name: "step", Value: "x2"}}, 10)
	r.Cases[0].Bytes = 12 << 20
	r.Cases[0].Stats.Growth = &report.Growth{Samples: [][]float64{{1, 2, 3, 4}}}
	var x []float64
	for _, p := range cumulative(r.Cases[0]) {
		x = append(x, p.x/(1<<20))
	}
	require.Equal(t, []float64{2, 4, 8, 12}, x)

	r.Cases[0].Axes = report.Axes{{Name: "step", Value: uint64(1 << 10)}}
	r.Cases[0].Stats.Growth.Samples[0] = slices.Repeat([]float64{1e6}, 12<<10)
	points := cumulative(r.Cases[0])
	require.InDelta(t, 97, len(points), 1)
	require.InDelta(t, 12<<10, points[len(points)-1].y, 0.01)
}

// Contenders have the order of their styles, and more contenders than colors differ in marks.
func TestSeries(t *testing.T) {
	var cases []report.Case
	for i := range 10 {
		cases = append(cases, one(fmt.Sprintf("x/c%d", i), "ms", nil, 1).Cases...)
	}
	for _, mem := range []string{"vmm-kept", "cuMemAlloc", "vmm"} {
		cases = append(cases, one("x/"+mem, "ms", nil, 1).Cases...)
	}
	lines := diagram{unit: "ms", values: func(report.Case) []value { return []value{newValue(1, 1, nil, nil)} }}.series(cases)
	for i, label := range []string{"vmm 1 ms", "cuMemAlloc 1 ms", "vmm-kept 1 ms", "c0 1 ms"} {
		require.Equal(t, label, lines[i].label)
	}
	seen := map[[2]string]bool{}
	for i := range 7 * len(marks) {
		look := [2]string{colorOf(i), marks[i%len(marks)]}
		require.False(t, seen[look], i)
		seen[look] = true
	}
}

func TestWrap(t *testing.T) {
	require.Equal(t, []string{"host_to_device_", "memcpy_ce h2d ", "pinned/512MiB"}, wrap("host_to_device_memcpy_ce h2d pinned/512MiB", 14))
	require.Equal(t, []string{"aaaa", "aaaa", "aa ", "bb"}, wrap(strings.Repeat("a", 10)+" bb", 4))
	require.Empty(t, wrap("", 75))
}

func TestTicks(t *testing.T) {
	of := func(low, high, to float64) scale { return scale{math.Log10(low), math.Log10(high), 0, to} }
	require.Equal(t, []float64{4 << 10, 64 << 10, 1 << 20}, of(4000, 2<<20, 150).binary())
	require.Equal(t, []float64{1, 2, 5, 10, 20}, of(0.9, 25, 0).decimal())
	require.InDeltaSlice(t, []float64{0.01, 0.1, 1, 10}, of(0.009, 11, 0).decimal(), 1e-9)
	require.InDeltaSlice(t, []float64{0.97, 0.98, 0.99, 1, 1.01, 1.02, 1.03, 1.04, 1.05}, of(0.9699, 1.0501, 0).decimal(), 1e-9)
	require.InDeltaSlice(t, []float64{1, 2, 3}, of(0.5, 3.5, 0).decimal(), 1e-9)
	require.Equal(t, "0.985", decimal(0.97+3*0.005))
}
