package plot

import (
	"image/color"
	"math"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// maxSeries is how many series one picture tells apart.
const maxSeries = len(glyphs)

// point is a value with its 95 % interval, which is NaN where there is none.
type point struct{ x, y, low, high float64 }

func interval(x, y float64, low, high *float64) point {
	p := point{x, y, math.NaN(), math.NaN()}
	if low != nil && high != nil {
		p.low, p.high = *low, *high
	}
	return p
}

func (p point) hasInterval() bool { return !math.IsNaN(p.low) && !math.IsNaN(p.high) }

// series is a line of a diagram. style is its place among the series of the picture.
type series struct {
	label  string
	style  int
	points []point
}

// mark is how the series with this style is drawn.
func (t Theme) mark(style int) draw.GlyphStyle {
	return draw.GlyphStyle{Color: t.Series[style%maxSeries], Radius: 3.5, Shape: glyphs[style%maxSeries]}
}

func (t Theme) line(style int) draw.LineStyle {
	return draw.LineStyle{Color: t.Series[style%maxSeries], Width: 1.75, Dashes: dashes[style%maxSeries]}
}

// seriesLegend explains series by their marks and lines.
func seriesLegend(labels []string, lines bool) []entry {
	var list []entry
	for i, label := range labels {
		list = append(list, entry{label, func(t Theme) (draw.GlyphStyle, *draw.LineStyle) {
			if !lines {
				return t.mark(i), nil
			}
			line := t.line(i)
			return t.mark(i), &line
		}})
	}
	return list
}

// linePanel is a diagram of series. Its height does not depend on the width.
func linePanel(name string, x, y axis, height vg.Length, list []series) panel {
	return panel{
		head:   headOf(name, y),
		height: func(look) vg.Length { return height },
		draw: func(k look, c draw.Canvas) {
			p := k.axes(c, x, y)
			for _, s := range list {
				p.Add(drawnSeries{k, s})
			}
			p.Draw(c)
		},
	}
}

// drawnSeries draws the band of the intervals, the line, and marks on it.
type drawnSeries struct {
	look
	series
}

// maxMarks is how many marks a line gets: more would hide it.
const maxMarks = 12

// Plot implements plot.Plotter.
func (s drawnSeries) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	at := func(px, py float64) vg.Point {
		return vg.Point{X: x(px), Y: y(min(max(py, p.Y.Min), p.Y.Max))}
	}
	line := s.line(s.style)
	solid := draw.LineStyle{Color: line.Color, Width: 1}

	// A single point has no band: its interval is a bar.
	var upper, lower, middle []vg.Point
	for _, q := range s.points {
		middle = append(middle, at(q.x, q.y))
		if q.hasInterval() {
			upper, lower = append(upper, at(q.x, q.high)), append(lower, at(q.x, q.low))
		}
	}
	if len(upper) > 1 {
		band := upper
		for i := range lower {
			band = append(band, lower[len(lower)-1-i])
		}
		c.FillPolygon(faint(s.Series[s.style%maxSeries]), band)
	} else if len(upper) == 1 {
		errorBar(c, solid, lower[0], upper[0], vg.Point{X: 4})
	}

	if len(middle) > 1 {
		c.StrokeLines(line, middle)
	}
	every := (len(middle) + maxMarks - 1) / maxMarks
	for i, q := range middle {
		if (len(middle)-1-i)%max(every, 1) == 0 {
			c.DrawGlyphNoClip(s.mark(s.style), q)
		}
	}
}

// faint is a color that what lies behind shows through.
func faint(c color.NRGBA) color.NRGBA {
	c.A = 46
	return c
}

// errorBar is a line with a cap at each end. cap is half of it.
func errorBar(c draw.Canvas, s draw.LineStyle, from, to, half vg.Point) {
	c.StrokeLines(s, []vg.Point{from, to}, []vg.Point{from.Sub(half), from.Add(half)}, []vg.Point{to.Sub(half), to.Add(half)})
}

// bounds are the least and the greatest value of series, with their intervals.
func bounds(list []series) (low, high float64) {
	low, high = math.Inf(1), math.Inf(-1)
	for _, s := range list {
		for _, p := range s.points {
			low, high = min(low, p.y), max(high, p.y)
			if p.hasInterval() {
				low, high = min(low, p.low), max(high, p.high)
			}
		}
	}
	return low, high
}

// parts puts memory that grows first and cuts series into as many as one picture tells
// apart. The first is in each part, since the others are compared with it.
func parts(labels []string) [][]string {
	rank := func(label string) int {
		switch {
		case label == "vmm":
			return 0
		case strings.HasPrefix(label, "vmm"):
			return 1
		}
		return 2
	}
	labels = slices.Clone(labels)
	slices.SortStableFunc(labels, func(a, b string) int { return rank(a) - rank(b) })
	if len(labels) <= maxSeries {
		return [][]string{labels}
	}
	var list [][]string
	for rest := labels[1:]; len(rest) > 0; {
		n := min(maxSeries-1, len(rest))
		list = append(list, append([]string{labels[0]}, rest[:n]...))
		rest = rest[n:]
	}
	return list
}
