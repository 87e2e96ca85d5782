package plot

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/cuvmm/cuvmm/cmd/internal/size"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/stat"
)

// diagram is a kind of picture with lines: its axes, and the better direction.
type diagram struct {
	name, x, y, unit, better string
	shows                    func(report.Case) bool
	picture                  func(report.Case) string // the name that all cases of a picture share
	values                   func(report.Case) []value
}

// growth shows how the time adds up while memory grows, a picture for each size.
var growth = diagram{
	name: "Growth", x: "bytes appended so far", y: "time in total", unit: "ms", better: "Lower",
	shows:   func(c report.Case) bool { return c.Stats.Growth != nil && len(c.Stats.Growth.Samples) > 0 },
	picture: func(c report.Case) string { return parent(c.ID) },
	values:  cumulative,
}

// bandwidth shows GB/s by size, a picture for each way of copying.
var bandwidth = diagram{
	name: "Bandwidth", x: "bytes of a copy", y: "bandwidth", unit: "GB/s", better: "Higher",
	shows:   func(c report.Case) bool { return sizeOf(c) > 0 && c.Unit == "GB/s" && c.Axes.Of("from") == nil },
	picture: func(c report.Case) string { return strings.Replace(parent(c.ID), "/"+size.Format(sizeOf(c)), "", 1) },
	values: func(c report.Case) []value {
		return []value{newValue(float64(sizeOf(c)), c.Stats.Value, c.Stats.ValueLow, c.Stats.ValueHigh)}
	},
}

// charts are the pictures of a kind. Cases of a single size have none: their figures stand in
// tables.
func (g diagram) charts(r *report.Report) (charts []*Chart) {
	cases := slices.DeleteFunc(slices.Clone(r.Cases), func(c report.Case) bool {
		return c.Status != report.Passed || c.Stats == nil || len(c.Samples) == 0 || !g.shows(c)
	})
	for _, of := range report.GroupBy(cases, g.picture) {
		list := g.series(of.Of)
		if len(list) == 0 || len(list[0].values) < 2 {
			continue
		}
		var labels []string
		for _, s := range list {
			labels = append(labels, s.label)
		}
		_, name, _ := strings.Cut(of.Key, "/")
		charts = append(charts, newChart(r, g.name+", "+name, strings.Join(labels[:min(3, len(labels))], ", "),
			fmt.Sprintf("Line chart: %s in %s by %s, both on logarithmic axes. At %s: %s. The band around a line is the 95 %% interval of the median. %s is better.",
				g.y, g.unit, g.x, size.Format(uint64(list[0].last().x)), strings.Join(labels, ", "), g.better),
			func(c *canvas) { c.diagram(g, list) }))
	}
	return charts
}

// parent is the name of a case without its last part, which tells contenders apart.
func parent(id string) string { return id[:max(0, strings.LastIndexByte(id, '/'))] }

// sizeOf is the size that a case copies, 0 if it has none.
func sizeOf(c report.Case) uint64 {
	n, _ := c.Axes.Of("size").(uint64)
	return n
}

// cumulative is the milliseconds so far after each step, of the median growth.
func cumulative(c report.Case) (values []value) {
	samples := c.Stats.Growth.Samples
	steps := len(samples[0])
	for _, s := range samples {
		steps = min(steps, len(s)) // one that was interrupted has fewer
	}
	so := make([]float64, len(samples))
	for i := range steps {
		for j, s := range samples {
			so[j] += s[i] / 1e6
		}
		// More than 96 would not be seen, and make a large file.
		if every := (steps + 95) / 96; i%every > 0 && i < steps-1 {
			continue
		}
		sum := stat.Summarize(so)
		var low, high *float64
		if sum.Interval != nil {
			low, high = &sum.Interval.Low, &sum.Interval.High
		}
		values = append(values, newValue(appended(c, i), sum.Median, low, high))
	}
	return values
}

// appended is how many bytes there are after step i. The last step may be shorter.
func appended(c report.Case, i int) float64 {
	so := math.Ldexp(2<<20, i) // without a size, each step appends as much as there is, the first 2 MiB
	if step, ok := c.Axes.Of("step").(uint64); ok {
		so = float64(step) * float64(i+1)
	}
	return min(so, float64(c.Bytes))
}

// value is what was measured at a size with its 95 % interval, which ends at y where there is
// none.
type value struct{ x, y, low, high float64 }

// newValue makes a value for a logarithmic axis, on which an interval cannot reach 0.
func newValue(x, y float64, low, high *float64) value {
	v := value{x, y, y, y}
	if low != nil && high != nil {
		v.low, v.high = max(*low, y/100), *high
	}
	return v
}

// series is a line of a diagram. Its values are ordered by size.
type series struct {
	label  string
	style  int
	values []value
}

func (s series) last() value { return s.values[len(s.values)-1] }

// styles are those of contenders, the same in all pictures. Other names have later ones.
var styles = map[string]int{
	"vmm": 0, "cuMemAlloc": 1, "cuMemAlloc-copy": 1, "mmap": 1, "mmap-copy": 1, "cuMemAlloc-double": 2, "mmap-double": 2,
	"mallocAsync": 3, "mallocAsync-copy": 3, "vmm-kept": 4, "vmm-ahead": 5, "vmm-whole": 6, "go-append-warm": 11, "mremap": 12, "go-append": 13,
}

// series has a line for each contender, in the order of their styles. A logarithmic axis has
// only values above 0.
func (g diagram) series(cases []report.Case) (list []series) {
	for i, of := range report.GroupBy(cases, func(c report.Case) string { return report.Contender(c.ID) }) {
		s := series{style: 14 + i}
		if style, known := styles[of.Key]; known {
			s.style = style
		}
		for _, c := range of.Of {
			s.values = append(s.values, g.values(c)...)
		}
		s.values = slices.DeleteFunc(s.values, func(v value) bool { return v.y <= 0 })
		slices.SortStableFunc(s.values, func(a, b value) int { return cmp.Compare(a.x, b.x) })
		if len(s.values) > 0 {
			s.label = fmt.Sprintf("%.30s %s %s", of.Key, number(s.last().y), g.unit)
			list = append(list, s)
		}
	}
	slices.SortStableFunc(list, func(a, b series) int { return cmp.Compare(a.style, b.style) })
	return list
}

// number prints three digits, without an exponent for what is read often.
func number(v float64) string {
	if v >= 100 && v < 1e7 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.3g", v)
}

// diagram draws lines over sizes, on logarithmic axes. Beside the end of each stands its label.
func (c *canvas) diagram(g diagram, list []series) {
	c.y += pitch + 4
	c.text("muted", edge, c.y, fmt.Sprintf("%s (%s)", g.y, g.unit))
	x, y := c.axes(list, g.x)
	for _, s := range list {
		c.series(s, x, y)
	}
	c.labels(list, x, y)
}

// axes draws both axes, with room for the labels.
func (c *canvas) axes(list []series, xName string) (x, y scale) {
	left, right := edge+60.0, float64(width)
	lowX, highX, low, high := math.Inf(1), 0.0, math.Inf(1), 0.0
	for _, s := range list {
		right = min(right, width-edge-20-long(s.label))
		for _, v := range s.values {
			lowX, highX, low, high = min(lowX, v.x), max(highX, v.x), min(low, v.low), max(high, v.high)
		}
	}
	top := c.y + 10
	y = newScale(low, high, top+250, top)
	for _, v := range y.decimal() {
		c.line("grid", left, y.at(v), right, y.at(v))
		c.text("muted end", left-6, y.at(v)+5, decimal(v))
	}
	x = newScale(lowX, highX, left, right)
	c.across(x, top, y.from, xName)
	return x, y
}

// series draws the band of a series, its line, and its marks.
func (c *canvas) series(s series, x, y scale) {
	class, above, below, middle := colorOf(s.style), "", "", ""
	point := func(v, w float64) string { return fmt.Sprintf("%.1f,%.1f ", x.at(v), y.at(w)) }
	for _, v := range s.values {
		above, middle, below = above+point(v.x, v.high), middle+point(v.x, v.y), point(v.x, v.low)+below
	}
	c.add(`<polygon class="band %s" points="%s%s"/>`, class, above, below)
	c.add(`<polyline class="line %s dash-%d" points="%s"/>`, class, s.style%4, middle)
	for i, v := range s.values {
		if i%(len(s.values)/8+1) == 0 { // more marks would hide the line
			c.mark(class, s.style, x.at(v.x), y.at(v.y))
		}
	}
}

// colorOf is the class of a series' color.
func colorOf(style int) string { return fmt.Sprintf("series-%d", style%7) }

// labels draws the labels of lines, each as near to the end of its line as the others let it.
func (c *canvas) labels(list []series, x, y scale) {
	list = slices.SortedStableFunc(slices.Values(list), func(a, b series) int { return cmp.Compare(b.last().y, a.last().y) })
	at := y.to - pitch
	for i, s := range list {
		end, below := s.last(), float64(len(list)-1-i)
		at = min(max(y.at(end.y), at+pitch), y.from-pitch*below)
		c.line("thin "+colorOf(s.style), x.at(end.x), y.at(end.y), x.to+12, at)
		c.mark(colorOf(s.style), s.style, x.to+12, at)
		c.text("ink", x.to+20, at+5, s.label)
	}
}
