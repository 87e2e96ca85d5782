package plot

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/cuvmm/cuvmm/cmd/internal/size"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
)

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
	left, right := edge+60.0, width-edge-20-long(labels(list)...)
	lowX, highX, low, high := math.Inf(1), 0.0, math.Inf(1), 0.0
	for _, s := range list {
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
	c.across(x, top, y.from, x.binary(), func(v float64) string { return size.Format(uint64(v)) }, xName)
	return x, y
}

// series draws the band of a series, its line, and its marks.
func (c *canvas) series(s series, x, y scale) {
	class := colorOf(s.style)
	var band, middle []point
	for _, v := range s.values {
		band, middle = append(band, point{x.at(v.x), y.at(v.high)}), append(middle, point{x.at(v.x), y.at(v.y)})
	}
	for _, v := range slices.Backward(s.values) {
		band = append(band, point{x.at(v.x), y.at(v.low)})
	}
	c.add(`<path class="band %s" d="%sz"/>`, class, path(band...))
	c.add(`<path class="line %s dash-%d" d="%s"/>`, class, s.style%4, path(middle...))
	free := math.Inf(1)
	for _, p := range slices.Backward(middle) { // more marks would hide the line
		if p.x <= free {
			c.mark(class, s.style, p.x, p.y)
			free = p.x - (middle[len(middle)-1].x-middle[0].x)/10
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

// row is a comparison in a picture. Without an interval, low and high are the ratio.
type row struct {
	name             []string // in lines
	says             string
	ratio, low, high float64
	verdict          int // its place in verdicts
}

func newRow(x report.Comparison) row {
	// within is what a logarithmic axis can show.
	within := func(v float64) float64 { return min(max(v, 1e-6), 1e6) }
	_, name, _ := strings.Cut(x.ID, "/")
	ratio := within(*x.Ratio)
	r := row{wrap(cmp.Or(name, x.ID), 26), fmt.Sprintf("%#.4g %s", *x.Ratio, x.Verdict), ratio, ratio, ratio, verdictOf(x)}
	if x.Low != nil && x.High != nil {
		r.low, r.high = within(*x.Low), within(*x.High)
	}
	return r
}

func (r row) height() float64 { return float64(pitch*len(r.name) + 4) }

// forest draws rows, with their names at the left and their verdicts at the right.
func (c *canvas) forest(rows []row, margin float64) {
	c.y += pitch + 4
	low, high, left, right := max(1-margin, 0.01), 1+margin, 0.0, 0.0
	s, top, bottom := scale{low: low, high: high}, c.y+6, c.y+6
	for _, r := range rows {
		s.low, s.high, bottom = min(s.low, r.low), max(s.high, r.high), bottom+r.height()
		left, right = max(left, long(r.name...)), max(right, long(r.says))
	}
	s = newScale(s.low, s.high, edge+left+8, width-edge-right-8)
	c.text("muted middle", s.at(1), c.y, fmt.Sprintf("equal within ±%g %%", 100*margin))
	c.add(`<rect class="zone" x="%.1f" y="%.1f" width="%.1f" height="%.1f"/>`, s.at(low), top, s.at(high)-s.at(low), bottom-top)
	c.across(s, top, bottom, s.decimal(), decimal, "time of the first / time of the second (left of 1: faster)")
	c.line("thin", s.at(1), top, s.at(1), bottom)
	for _, r := range rows {
		c.row(s, top, r)
		top += r.height()
	}
}

// row draws a row on the scale, below top.
func (c *canvas) row(s scale, top float64, r row) {
	for i, line := range r.name {
		c.text("ink", edge, top+float64(pitch*(i+1)-2), line)
	}
	y, class := top+r.height()/2, []string{colorOf(0), colorOf(1), colorOf(2), "open"}[r.verdict]
	c.line("line "+class, s.at(r.low), y, s.at(r.high), y)
	c.mark(class, min(r.verdict, 2), s.at(r.ratio), y)
	c.text("ink", s.to+8, y+5, r.says)
}

// decimal prints a tick without the noise of binary fractions.
func decimal(v float64) string { return fmt.Sprintf("%.6g", v) }
