package plot

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"image/png"
	"io"
	"math"
	"os"
	"regexp"
	"strconv"
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

func svg(t *testing.T, c *Chart, theme Theme, width int) string {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, c.SVG(&b, theme, width, c.Name))
	return b.String()
}

// UPDATE_GOLDEN=1 writes them.
func TestGolden(t *testing.T) {
	charts, _ := Charts(load(t))
	golden := map[string]Theme{"growth-8gib": Light, "ratio-grow": Dark, "bandwidth-bw-d2d": Light}
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
		require.NotEmpty(t, c.Rows, c.Name)
		for _, row := range c.Rows {
			require.Len(t, row, len(c.Header), c.Name)
		}
	}
	require.Regexp(t, `^Growing to 8GiB: vmm [\d.]+ ms, cuMemAlloc-copy \d+ ms$`, titles["growth-8gib"])
	require.Regexp(t, `^grow: 3 comparisons, 1 slower, 2 faster$`, titles["ratio-grow"])
	require.Regexp(t, `^write 512M between devices: 9\.\d+ to \d+ GB/s$`, titles["peers-write-512m"])
	require.Contains(t, titles["samples-p2p-3"], "(81 to 120 of 120)")
	require.Contains(t, titles, "bandwidth-bw-h2d-pinned")
	require.Equal(t, []string{"cases that this machine cannot do: 4", "samples of p2p: the 44 of 164 cases that vary least"}, left)

	only, left := Charts(load(t), Calls, Growth)
	require.Len(t, only, 1)
	require.Contains(t, left, "calls: the report has no figures for it")
}

// Every picture is an XML document with a title and a description, which loads nothing,
// and every text is inside of it, for both widths.
func TestSVG(t *testing.T) {
	charts, _ := Charts(load(t))
	for _, c := range charts {
		for _, width := range []int{Wide, Narrow} {
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
	} {
		require.Error(t, complaint(bad, Wide))
	}
}

var loads = regexp.MustCompile(`<script|<image|<foreignObject|href=|url\(|@import|onload`)

// complaint says what is wrong with a picture.
func complaint(svg string, width int) error {
	if found := loads.FindString(svg); found != "" {
		return fmt.Errorf("it has %s", found)
	}
	d := xml.NewDecoder(strings.NewReader(svg))
	names := map[string]int{}
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
		if start.Name.Local != "text" {
			continue
		}
		at := map[string]float64{}
		for _, a := range start.Attr {
			if v, err := strconv.ParseFloat(a.Value, 64); err == nil {
				at[a.Name.Local] = v
			}
		}
		if at["x"] < 0 || at["x"]+at["textLength"] > float64(width)+0.5 {
			return fmt.Errorf("a text goes from %v for %v", at["x"], at["textLength"])
		}
	}
	if names["title"] != 1 || names["desc"] != 1 {
		return fmt.Errorf("%d titles, %d descriptions", names["title"], names["desc"])
	}
	return nil
}

func TestPNG(t *testing.T) {
	charts, _ := Charts(load(t), Growth)
	var b bytes.Buffer
	require.NoError(t, charts[0].PNG(&b, Dark, Wide))
	im, err := png.Decode(&b)
	require.NoError(t, err)
	require.Equal(t, 2*Wide, im.Bounds().Dx())
	r, g, blue, _ := im.At(0, 0).RGBA()
	require.Equal(t, hex(Dark.Background), fmt.Sprintf("#%02X%02X%02X", r>>8, g>>8, blue>>8))
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
	for name, c := range map[string]struct {
		r    *report.Report
		want string // names of the pictures
	}{
		"one copy":          {one("bw/h2d/1MiB/vmm", "GB/s", report.Axes{n}, 5), "bandwidth-bw"},
		"no bandwidth":      {one("bw/h2d/1MiB/vmm", "GB/s", report.Axes{n}, 0, 0), "bandwidth-bw"},
		"one call":          {one("ops/1MiB/map", "us", report.Axes{n}, 5), "calls-ops"},
		"two samples":       {one("ops/1MiB/map", "us", report.Axes{n}, 5, 7), "calls-ops samples-ops"},
		"no axes":           {one("x", "GB/s", nil, 1, 2), "samples-x"},
		"no name":           {one("", "GB/s", report.Axes{n}, 1), "bandwidth"},
		"one pair":          {one("p2p/a-b/vmm", "us", pair, 2), "peers"},
		"a pair without":    {one("p2p/a-b/vmm", "GB/s", pair, 0), "peers"},
		"one growth":        {grown, "growth-1mib steps-1mib"},
		"nothing appended":  {empty, "growth-0b"},
		"strange ratios":    {ratio, "ratio-y"},
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
				require.Contains(t, got, "&lt;host&gt;\u00A0&amp;\u00A0memory", name)
			}
		}
		require.Equal(t, c.want, strings.Join(names, " "), name)
	}
}

// A growth that doubles has its points at 2 MiB, 4 MiB and so on, and ends at its target.
func TestDoublingGrowth(t *testing.T) {
	r := one("grow/12MiB/vmm", "ms", report.Axes{{Name: "step", Value: "x2"}}, 10)
	r.Cases[0].Bytes = 12 << 20
	r.Cases[0].Stats.Growth = &report.Growth{Samples: [][]float64{{1, 2, 3, 4}}}
	var x []float64
	for _, p := range cumulative(r.Cases[0]) {
		x = append(x, p.x/(1<<20))
	}
	require.Equal(t, []float64{0, 2, 4, 8, 12}, x)
}

// More series than marks become several pictures, each with the first.
func TestParts(t *testing.T) {
	var labels []string
	for i := range 10 {
		labels = append(labels, fmt.Sprint(i))
	}
	labels = append(labels, "vmm-ahead", "vmm")
	got := parts(labels)
	require.Len(t, got, 2)
	require.Equal(t, []string{"vmm", "vmm-ahead", "0", "1", "2", "3", "4"}, got[0])
	require.Equal(t, []string{"vmm", "5", "6", "7", "8", "9"}, got[1])
}

func TestTicks(t *testing.T) {
	text := func(a axis) string {
		var list []string
		for _, tick := range a.ticks {
			if tick.Label != "" {
				list = append(list, tick.Label)
			}
		}
		return strings.Join(list, " ")
	}
	require.Equal(t, "64K 1M 1G", text(sizeAxis("", []float64{1 << 30, 64 << 10, 1 << 20, 1 << 20})))
	require.Equal(t, "0 2G 4G 6G 8G", text(bytesAxis("", 8<<30)))
	require.Equal(t, "0 10 20 30 40 50", text(linearAxis("", 0, 55, 1)))
	require.Equal(t, "0 200 400 600 800 1000", text(timeAxis(999e3)))
	require.Equal(t, "us", timeAxis(999e3).label)
	require.Equal(t, "1 us 10 us 100 us 1 ms", text(logAxis("", 1e3, 1e6, formatTime)))
	require.Equal(t, "0.7 0.8 0.9 1 1.1 1.2", text(logAxis("", 0.8, 1.1, func(v float64) string { return trim(math.Round(v*1e6) / 1e6) })))
	require.Equal(t, "999 ns", formatTime(999))
	require.Equal(t, "1.5 s", formatTime(1.5e9))
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
	_, left := Charts(r, Ratio)
	require.Equal(t, []string{"the last 1 of 2001 cases", "1 of 2 comparisons"}, left)
	require.Len(t, r.Cases, report.MaxShown+1, "the report stays as it was")
	require.Len(t, r.Comparisons, 2)
}

// A line with few points keeps its highest and lowest.
func TestExtremes(t *testing.T) {
	r := one("x", "us", nil, make([]float64, 5000)...)
	for i := range r.Cases[0].Samples {
		r.Cases[0].Samples[i] = 10
	}
	r.Cases[0].Samples[2500] = 13
	r.Cases[0].Stats.Median = 10
	charts, _ := Charts(r, Samples)
	got := svg(t, charts[0], Light, Wide)
	require.Less(t, len(got), 30_000, "5,000 samples are not 5,000 points")
	require.Contains(t, charts[0].Rows[0], "10 ns")
}
