package plot

import (
	"math"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// row is a line of a diagram with names at the left: one value with its interval for
// each contender, and text at the right.
type row struct {
	label, text string
	points      []point // the values are x and the interval is along x; y is the style
}

// maxRows is how many rows a picture has, so that it fits a screen or a page.
const maxRows = 40

// rowPanel is a diagram of rows. zone is shaded over all rows if its ends differ. mark is
// how a value of a style is drawn.
func rowPanel(head string, x axis, zone [2]float64, rows []row, mark func(t Theme, style int) draw.GlyphStyle) panel {
	most := 1
	for _, r := range rows {
		most = max(most, len(r.points))
	}
	const foot = 42
	rowHeight := func(k look) vg.Length {
		h := vg.Length(max(20, 9*most+8))
		if k.above(rows) {
			h += textSize + 2
		}
		return h
	}
	return panel{
		head:   head,
		height: func(k look) vg.Length { return foot + vg.Length(len(rows))*rowHeight(k) },
		draw: func(k look, c draw.Canvas) {
			above := k.above(rows)
			k.drawRows(c, x, rows, above, drawnRows{k, rows, zone, above, mark})
		},
	}
}

// drawRows draws contents between the names of rows at the left and their text at the
// right. It draws the names unless they stand above the rows, where contents draws them.
func (k look) drawRows(c draw.Canvas, x axis, rows []row, above bool, contents plot.Plotter) {
	right := vg.Length(8)
	if !above {
		right += k.textWidth(rows)
	}
	c = draw.Crop(c, 0, -right, 0, 0)
	names := k.rowAxis(rows, above)
	p := k.axes(c, x, names)
	p.X.Tick.Marker = plot.ConstantTicks(x.thin(p.X.Tick.Label, c.Size().X-k.labelWidth(rows, above), true))
	p.Y.Tick.Marker = plot.ConstantTicks(names.ticks) // all of them
	p.Y.LineStyle.Width, p.Y.Tick.LineStyle.Width, p.Y.Tick.Length = 0, 0, 0
	p.Y.Tick.Label.Color = k.Ink
	p.Add(contents)
	p.Draw(c)
}

// rowText draws the text of a row, and its name if that stands above it. It returns the
// top of what is left of the row.
func (k look) rowText(c draw.Canvas, r row, above bool, top, bottom vg.Length) vg.Length {
	label := k.text(textSize, false)
	if !above {
		label.XAlign = draw.XLeft
		middle(c, label, vg.Point{X: c.Max.X + 10, Y: (top + bottom) / 2}, r.text)
		return top
	}
	label.XAlign, label.YAlign = draw.XLeft, draw.YTop
	space := c.Max.X - c.Min.X - label.Width(r.text) - 8
	c.FillText(label, vg.Point{X: c.Min.X, Y: top - 1}, shorten(label, r.label, space))
	label.XAlign = draw.XRight
	c.FillText(label, vg.Point{X: c.Max.X, Y: top - 1}, r.text)
	return top - textSize - 3
}

// labelWidth is the space that the names at the left take.
func (k look) labelWidth(rows []row, above bool) (most vg.Length) {
	if above {
		return 0
	}
	style := k.text(textSize, false)
	for _, r := range rows {
		most = max(most, style.Width(r.label))
	}
	return most
}

// textWidth is the space that the texts at the right take.
func (k look) textWidth(rows []row) (most vg.Length) {
	style := k.text(textSize, false)
	for _, r := range rows {
		most = max(most, style.Width(r.text))
	}
	return most
}

// above reports whether the names do not fit beside the rows and stand above them.
func (k look) above(rows []row) bool {
	return k.narrow || k.labelWidth(rows, false)+k.textWidth(rows) > k.width*6/10
}

// rowAxis has a place for each row, the first at the top.
func (k look) rowAxis(rows []row, above bool) axis {
	a := axis{min: 0, max: float64(len(rows))}
	if above {
		return a // the names are drawn with the rows
	}
	for i, r := range rows {
		a.ticks = append(a.ticks, plot.Tick{Value: float64(len(rows)-i) - 0.5, Label: r.label})
	}
	return a
}

// drawnRows draws the zone, then row by row the names where they are above, the
// intervals and the values.
type drawnRows struct {
	look
	rows  []row
	zone  [2]float64
	above bool
	mark  func(t Theme, style int) draw.GlyphStyle
}

// Plot implements plot.Plotter.
func (d drawnRows) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	if d.zone[0] < d.zone[1] {
		from, to := x(max(d.zone[0], p.X.Min)), x(min(d.zone[1], p.X.Max))
		c.FillPolygon(d.Zone, []vg.Point{{X: from, Y: c.Min.Y}, {X: to, Y: c.Min.Y}, {X: to, Y: c.Max.Y}, {X: from, Y: c.Max.Y}})
		c.StrokeLine2(draw.LineStyle{Color: d.Muted, Width: 0.75}, x(1), c.Min.Y, x(1), c.Max.Y)
	}
	for i, r := range d.rows {
		top, bottom := y(float64(len(d.rows)-i)), y(float64(len(d.rows)-i-1))
		top = d.rowText(c, r, d.above, top, bottom)

		// Values share the height of the row, the first at the top.
		for j, q := range r.points {
			at := top - (top-bottom)*(vg.Length(j)+0.5)/vg.Length(len(r.points))
			clamp := func(v float64) vg.Length { return x(min(max(v, p.X.Min), p.X.Max)) }
			style := d.mark(d.Theme, int(q.y))
			if q.hasInterval() {
				line := draw.LineStyle{Color: style.Color, Width: 1.5}
				errorBar(c, line, vg.Point{X: clamp(q.low), Y: at}, vg.Point{X: clamp(q.high), Y: at}, vg.Point{Y: 3})
			}
			c.DrawGlyphNoClip(style, vg.Point{X: clamp(q.x), Y: at})
		}
	}
}

// rowBounds are the least and the greatest value of rows, with their intervals.
func rowBounds(rows []row) (low, high float64) {
	low, high = math.Inf(1), math.Inf(-1)
	for _, r := range rows {
		for _, q := range r.points {
			low, high = min(low, q.x), max(high, q.x)
			if q.hasInterval() {
				low, high = min(low, q.low), max(high, q.high)
			}
		}
	}
	return low, high
}
