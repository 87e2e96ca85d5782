package plot

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"image/png"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/stat"
	"github.com/cuvmm/cuvmm/internal/testing/testgate"
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

func svg(t *testing.T, c *Chart, theme Theme, width int) string {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, c.SVG(&b, theme, width, c.Name))
	return b.String()
}

// UPDATE_GOLDEN=1 writes them.
func TestGolden(t *testing.T) {
	charts, _ := Charts(load(t))
	golden := map[string]Theme{"growth-8gib": Light, "ratios-grow": Dark, "bandwidth-bw-d2d": Light, "matrix-write-512mib": Dark}
	for _, c := range charts {
		theme, ok := golden[c.Name]
		if !ok {
			continue
		}
		delete(golden, c.Name)
		got := svg(t, c, theme, Wide)
		file := fmt.Sprintf("testdata/%s-%s.svg", c.Name, theme.Name)
		if os.Getenv("UPDATE_GOLDEN") != "" {
			require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
		}
		want, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Equal(t, string(want), got, file)
	}
	require.Empty(t, golden, "every golden picture was drawn")
}

// What pictures of a large machine are called, and what their titles say.
func TestCharts(t *testing.T) {
	charts, left := Charts(load(t))
	titles := map[string]string{}
	for _, c := range charts {
		titles[c.Name] = c.Title
		require.NotEmpty(t, c.Alt, c.Name)
	}
	require.Regexp(t, `^Growing to 8GiB: vmm [\d.]+ ms, mallocAsync-copy [\d.]+ ms, cuMemAlloc-copy \d+ ms$`, titles["growth-8gib"])
	require.Equal(t, "grow, 8GiB: 3 compared, 2 faster, 1 slower", titles["ratios-grow"])
	require.Regexp(t, `^bw, vmm against cuMemAlloc: 8 compared, `, titles["ratios-bw"])
	require.Regexp(t, `^write 512MiB between devices: 9\.\d+ to \d+ GB/s$`, titles["matrix-write-512mib"])
	require.Regexp(t, `^bw h2d pinned, 1MiB to 512MiB: vmm [\d.]+ to [\d.]+, cuMemAlloc [\d.]+ to [\d.]+ GB/s$`, titles["bandwidth-bw-h2d-pinned"])
	require.Equal(t, []string{"cases that this machine cannot do: 4"}, left)

	r := load(t)
	r.Cases = slices.DeleteFunc(r.Cases, func(c report.Case) bool { return kindOf(c) != Growth })
	only, left := Charts(r, Matrix, Growth)
	require.Len(t, only, 1)
	require.Equal(t, []string{"matrix: the report has no figures for it"}, left)
}

// Axes have the quantity and its unit, and growth in place does not lie on an axis.
func TestAxes(t *testing.T) {
	charts, _ := Charts(load(t))
	for _, c := range charts {
		for _, row := range c.figure(look{Light, Wide}).plots {
			for _, p := range row {
				if p == nil {
					continue // the last row of matrices is not full
				}
				switch c.Kind {
				case Growth:
					require.Equal(t, "time in total (ms)", p.Y.Label.Text)
					require.Equal(t, "appended so far (bytes)", p.X.Label.Text)
					require.InDelta(t, 3.5, p.Y.Max-p.Y.Min, 1, "powers of ten")
				case Bandwidth:
					require.Equal(t, "bandwidth (GB/s)", p.Y.Label.Text)
					require.Equal(t, "size of a copy (bytes)", p.X.Label.Text)
				case Ratios:
					require.Contains(t, p.X.Label.Text, "time of ")
				case Matrix:
					require.Contains(t, p.Title.Text, "bandwidth (GB/s)")
				}
			}
		}
	}
}

// Comparisons that differ for sure come first, then those that may, and 40 of them at most.
func TestRatiosOrder(t *testing.T) {
	r := load(t)
	r.Comparisons = nil
	for i := range 50 {
		ratio := 1 + float64(i+1)/100
		low, high := ratio-0.001, ratio+0.001
		r.Comparisons = append(r.Comparisons, report.Comparison{ID: fmt.Sprintf("x/%d: a against b", i), Ratio: &ratio, Low: &low, High: &high, Margin: 0.02, Verdict: stat.Slower})
	}
	noisy, low, high := 9.0, 0.5, 99.0
	r.Comparisons = append(r.Comparisons, report.Comparison{ID: "x/noisy: a against b", Ratio: &noisy, Low: &low, High: &high, Margin: 0.02, Verdict: stat.TooNoisy})
	charts, left := Charts(r, Ratios)
	require.Len(t, charts, 1)
	require.Equal(t, []string{"cases that this machine cannot do: 4", "x: the 11 of 51 comparisons that differ least"}, left)
	require.Equal(t, "x, a against b: the 40 of 51 that differ most, 40 slower", charts[0].Title)
	var rows []string
	for _, tick := range charts[0].figure(look{Light, Wide}).plots[0][0].Y.Tick.Marker.Ticks(0, 0) {
		rows = append(rows, tick.Label)
	}
	require.Len(t, rows, maxRows)
	require.Equal(t, []string{"49", "48", "47"}, rows[:3])
	got := svg(t, charts[0], Light, Narrow)
	require.Contains(t, got, ">equal within ±2 %<")
	require.Contains(t, got, ">1.500 slower<")
}

// Every picture is an XML document with a title and a description, which loads nothing,
// and every text is inside of it, for both widths.
func TestSVG(t *testing.T) {
	charts, _ := Charts(load(t))
	for _, c := range charts {
		for _, width := range testgate.Effort([]int{Narrow, Wide}, []int{Narrow, 400, Wide, 1000}, []int{Narrow, 400, Wide, 1000}) {
			got := svg(t, c, Light, width)
			require.Equal(t, got, svg(t, c, Light, width), "twice the same")
			require.NoError(t, complaint(got, width), "%s at %d", c.Name, width)
			require.Contains(t, got, `role="img" aria-labelledby="`+c.Name+`-title `+c.Name+`-desc"`)
		}
	}

	// The check finds what is wrong.
	good := svg(t, charts[0], Light, Wide)
	for _, bad := range []string{
		strings.Replace(good, "<title", "<nottitle", 1),
		strings.Replace(good, `<text `, `<text onload="x" href="https://example.com" `, 1),
		regexp.MustCompile(`<text textLength="[\d.]+"`).ReplaceAllString(good, `<text textLength="900"`),
		strings.Replace(good, "</svg>", "", 1),
		regexp.MustCompile(`<text [^>]*>[^<]*</text>`).ReplaceAllString(good, "$0$0"),
	} {
		require.Error(t, complaint(bad, Wide))
	}
}

var loads = regexp.MustCompile(`<script|<image|<foreignObject|href=|url\(|@import|onload`)

var fontSize = regexp.MustCompile(`font-size:[\d.]+`)

// box is where a text stands.
type box struct{ left, top, right, bottom float64 }

// complaint says what is wrong with a picture.
func complaint(svg string, width int) error {
	if found := loads.FindString(svg); found != "" {
		return fmt.Errorf("it has %s", found)
	}
	d := xml.NewDecoder(strings.NewReader(svg))
	names := map[string]int{}
	var texts []box
	turned := false
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		start, ok := token.(xml.StartElement)
		if !ok {
			continue
		}
		names[start.Name.Local]++
		at, style := map[string]float64{}, ""
		for _, a := range start.Attr {
			switch a.Name.Local {
			case "transform": // the name of the vertical axis is turned
				turned = strings.Contains(a.Value, "rotate") || turned && start.Name.Local == "text"
			case "style":
				style = a.Value
			}
			if v, err := strconv.ParseFloat(a.Value, 64); err == nil {
				at[a.Name.Local] = v
			}
		}
		if start.Name.Local != "text" {
			continue
		}
		if turned {
			turned = false
			continue
		}
		if at["x"] < 0 || at["x"]+at["textLength"] > float64(width)+0.5 {
			return fmt.Errorf("a text goes from %v for %v", at["x"], at["textLength"])
		}
		var high float64
		if _, err := fmt.Sscanf(fontSize.FindString(style), "font-size:%f", &high); err != nil {
			return fmt.Errorf("a text without a size: %s", style)
		}
		b := box{at["x"], at["y"] - 0.7*high, at["x"] + at["textLength"], at["y"]}
		for _, other := range texts {
			if b.left < other.right && other.left < b.right && b.top < other.bottom && other.top < b.bottom {
				return fmt.Errorf("texts overlap: %v and %v", b, other)
			}
		}
		texts = append(texts, b)
	}
	if names["title"] != 1 || names["desc"] != 1 {
		return fmt.Errorf("%d titles, %d descriptions", names["title"], names["desc"])
	}
	return nil
}

func TestWrite(t *testing.T) {
	charts, _ := Charts(load(t), Growth)
	write := func(format string) []byte {
		var b bytes.Buffer
		require.NoError(t, charts[0].Write(&b, format, Dark, Wide))
		return b.Bytes()
	}
	for _, format := range Formats {
		require.Equal(t, write(format), write(format), format)
	}
	require.Equal(t, svg(t, charts[0], Dark, Wide), string(write("svg")))
	im, err := png.Decode(bytes.NewReader(write("png")))
	require.NoError(t, err)
	require.Equal(t, 2*Wide, im.Bounds().Dx())
	for _, y := range []int{0, im.Bounds().Dy() - 1} {
		r, g, blue, _ := im.At(0, y).RGBA()
		require.Equal(t, hex(Dark.Background), fmt.Sprintf("#%02X%02X%02X", r>>8, g>>8, blue>>8))
	}
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
	pair := report.Axes{{Name: "from", Value: "a"}, {Name: "to", Value: "b"}, {Name: "mem", Value: "vmm"}}
	grown := one("grow/1MiB/vmm", "ms", report.Axes{n}, 3)
	grown.Cases[0].Stats.Growth = &report.Growth{Samples: [][]float64{{1, 2}, {1}}}
	grown.Cases[0].Bytes = 1 << 20
	empty := one("grow/0B/vmm", "ms", report.Axes{n}, 0)
	empty.Cases[0].Stats.Growth = &report.Growth{Samples: [][]float64{{}}}
	ratio := one("", "", nil)
	zero, above := 0.0, 1e-9
	ratio.Comparisons = []report.Comparison{{ID: "x", Ratio: &zero}, {ID: "y", Ratio: &above, Low: &zero, High: &above}}
	sizes := one("bw/h2d/1MiB/vmm", "GB/s", report.Axes{n}, 5)
	sizes.Cases = append(sizes.Cases, one("bw/h2d/2MiB/vmm", "GB/s", report.Axes{{Name: "size", Value: uint64(2 << 20)}}, 5).Cases...)
	ratio.Comparisons = append(ratio.Comparisons, report.Comparison{ID: "a long name", Ratio: &above, Verdict: stat.TooFew})
	for name, c := range map[string]struct {
		r    *report.Report
		want string // names of the pictures
	}{
		"one copy":          {one("bw/h2d/1MiB/vmm", "GB/s", report.Axes{n}, 5), ""},
		"two sizes":         {sizes, "bandwidth-bw-h2d"},
		"no bandwidth":      {one("bw/h2d/1MiB/vmm", "GB/s", report.Axes{n}, 0, 0), ""},
		"one call":          {one("ops/1MiB/map", "us", report.Axes{n}, 5), ""},
		"no axes":           {one("x", "GB/s", nil, 1, 2), ""},
		"no name":           {one("", "GB/s", report.Axes{n}, 1), ""},
		"one pair":          {one("p2p/a-b/vmm", "us", pair, 2), "matrix"},
		"a pair without":    {one("p2p/a-b/vmm", "GB/s", pair, 0), ""},
		"one growth":        {grown, "growth-1mib"},
		"nothing appended":  {empty, ""},
		"strange ratios":    {ratio, "ratios-y ratios-a-long-name"},
		"nothing":           {one("bw/x", "GB/s", nil), ""},
		"sizes are strings": {one("bw/h2d/x/vmm", "GB/s", report.Axes{{Name: "size", Value: "x"}}, 1), ""},
	} {
		charts, _ := Charts(c.r)
		var names []string
		for _, chart := range charts {
			names = append(names, chart.Name)
			for _, width := range []int{Wide, Narrow} {
				got := svg(t, chart, Dark, width)
				require.NoError(t, complaint(got, width), name)
				require.NotContains(t, got, "NaN", name)
				require.NotContains(t, got, "Inf", name)
				require.Contains(t, got, "&lt;host&gt; &amp; memory", name)
			}
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

// Memory that grows in place comes first, and more contenders than colors differ in marks.
func TestLines(t *testing.T) {
	var cases []report.Case
	for i := range 10 {
		cases = append(cases, one(fmt.Sprintf("x/c%d", i), "ms", nil, 1).Cases...)
	}
	cases = append(cases, one("x/vmm", "ms", nil, 1).Cases...)
	lines := (&drawing{}).lines(cases, func(report.Case) []point { return []point{newPoint(1, 1, nil, nil)} })
	require.Equal(t, "vmm, c0, c1, c2, c3, c4, c5, c6, c7, c8, c9", names(lines))
	require.Equal(t, Light.color(0), Light.color(7))
	require.NotEqual(t, Light.mark(0).Shape, Light.mark(7).Shape)
}

func TestWrap(t *testing.T) {
	s := look{Light, Wide}.text(smallSize)
	require.Equal(t, "host_to_device_\nmemcpy_ce h2d\npinned 512MiB", wrap(s, "host_to_device_memcpy_ce h2d pinned 512MiB", 75))
	require.Equal(t, "aaa…aaa\nbb", wrap(s, strings.Repeat("a", 100)+" bb", 45))
	require.Empty(t, wrap(s, "", 75))
}

func TestTicks(t *testing.T) {
	require.Equal(t, []float64{4 << 10, 64 << 10, 1 << 20}, binary(4000, 2<<20, 3))
	require.Equal(t, []float64{1, 2, 5, 10, 20}, decades(0.9, 25))
	require.Equal(t, []float64{0.01, 0.1, 1, 10}, decades(0.009, 11))
	require.InDeltaSlice(t, []float64{0.98, 1, 1.02, 1.04}, decades(0.97, 1.05), 1e-9)
	require.InDeltaSlice(t, []float64{0.6, 0.8, 1, 1.2, 1.4, 1.6, 1.8}, decades(0.5, 1.9), 1e-9)
	require.Equal(t, "0.985", decimal(0.97+3*0.005))
}

// Of a report with very many cases the first are drawn, and it says so.
func TestManyCases(t *testing.T) {
	r := one("bw/h2d/1KiB/vmm", "GB/s", report.Axes{{Name: "size", Value: uint64(1 << 10)}}, 5, 6)
	c := r.Cases[0]
	for i := range report.MaxShown {
		c.ID = fmt.Sprintf("ops/%d/map", i)
		r.Cases = append(r.Cases, c)
	}
	one := 1.0
	r.Comparisons = []report.Comparison{
		{ID: "a", A: r.Cases[0].ID, B: r.Cases[1].ID, Ratio: &one, Low: &one, High: &one},
		{ID: "b", A: r.Cases[0].ID, B: c.ID, Ratio: &one, Low: &one, High: &one},
	}
	_, left := Charts(r, Ratios)
	require.Equal(t, []string{"the last 1 of 2001 cases", "1 of 2 comparisons"}, left)
	require.Len(t, r.Cases, report.MaxShown+1, "the report stays as it was")
	require.Len(t, r.Comparisons, 2)
}
