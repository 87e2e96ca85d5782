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

// intervalText prints the interval, or a dash if there is none.
func (p point) intervalText(print func(float64) string) string {
	if !p.hasInterval() {
		return "-"
	}
	return print(p.low) + " to " + print(p.high)
}

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
			p.Add(drawnSeries{k, list})
			p.Draw(c)
		},
	}
}

// drawnSeries draws the bands of the intervals, the lines, and marks on them. Lines often
// lie on each other. So the dashed ones are above the solid first, and the marks of the
// first are above the larger ones of the others.
type drawnSeries struct {
	look
	list []series
}

// maxMarks is how many marks a line gets: more would hide it.
const maxMarks = 12

// Plot implements plot.Plotter.
func (d drawnSeries) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	at := func(px, py float64) vg.Point {
		return vg.Point{X: x(px), Y: y(min(max(py, p.Y.Min), p.Y.Max))}
	}
	for _, s := range d.list {
		d.band(c, s, at)
	}
	for _, s := range d.list {
		var line []vg.Point
		for _, q := range s.points {
			line = append(line, at(q.x, q.y))
		}
		if len(line) > 1 {
			c.StrokeLines(d.line(s.style), line)
		}
	}
	for i, s := range slices.Backward(d.list) {
		mark := d.mark(s.style)
		mark.Radius = 3 + vg.Length(i)*0.5
		every := (len(s.points) + maxMarks - 1) / maxMarks
		for j, q := range s.points {
			if (len(s.points)-1-j)%max(every, 1) == 0 {
				c.DrawGlyphNoClip(mark, at(q.x, q.y))
			}
		}
	}
}

// band draws the intervals of a series. A single point has no band: its interval is a bar.
func (d drawnSeries) band(c draw.Canvas, s series, at func(x, y float64) vg.Point) {
	var upper, lower []vg.Point
	for _, q := range s.points {
		if q.hasInterval() {
			upper, lower = append(upper, at(q.x, q.high)), append(lower, at(q.x, q.low))
		}
	}
	of := d.Series[s.style%maxSeries]
	switch len(upper) {
	case 0:
	case 1:
		errorBar(c, draw.LineStyle{Color: of, Width: 1}, lower[0], upper[0], vg.Point{X: 4})
	default:
		slices.Reverse(lower)
		c.FillPolygon(faint(of), append(upper, lower...))
	}
}

// faint is a color that what lies behind shows through. Unlike a color.NRGBA it rounds up
// where it multiplies by its opacity. The canvas for SVG divides and rounds down, so the
// document has the color of the theme, which a page looks for.
type faint color.NRGBA

// opacity of faint colors, of 255.
const opacity = 46

// RGBA implements color.Color.
func (f faint) RGBA() (r, g, b, a uint32) {
	part := func(v uint8) uint32 { return (uint32(v)*opacity*0x101 + 254) / 255 }
	return part(f.R), part(f.G), part(f.B), opacity * 0x101
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
