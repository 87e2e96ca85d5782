package plot

import (
	"bytes"
	"fmt"
	"html"
	"io"
	"strings"

	xfont "golang.org/x/image/font"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"
)

// Widths of pictures, in points: for a page or a screen, and for a phone.
const (
	Wide   = 720
	Narrow = 360
)

// panel is one of the diagrams of a picture.
type panel struct {
	head   string // above it
	height func(k look) vg.Length
	draw   func(k look, c draw.Canvas)
}

// entry is a line of the legend.
type entry struct {
	label string
	style func(t Theme) (draw.GlyphStyle, *draw.LineStyle)
}

// look is how a picture is drawn.
type look struct {
	Theme
	width  vg.Length // of a panel
	narrow bool
}

// Sizes of text, and of the space around things, in points.
const (
	titleSize, textSize, smallSize = 15, 11, 9
	edge, gap                      = 12, 14
)

func (k look) text(size vg.Length, bold bool) draw.TextStyle {
	f := font.Font{Typeface: "Liberation", Variant: "Sans", Size: size}
	if bold {
		f.Weight = xfont.WeightBold
	}
	return draw.TextStyle{Color: k.Ink, Font: f, Handler: plot.DefaultTextHandler}
}

func (k look) muted(size vg.Length) draw.TextStyle {
	s := k.text(size, false)
	s.Color = k.Muted
	return s
}

// wrap breaks text into lines of at most this width.
func wrap(s draw.TextStyle, text string, width vg.Length) []string {
	var lines []string
	for word := range strings.SplitSeq(text, " ") { // not at no-break spaces
		if n := len(lines); n > 0 && s.Width(lines[n-1]+" "+word) <= width {
			lines[n-1] += " " + word
			continue
		}
		lines = append(lines, word)
	}
	return lines
}

// middle draws a line of text whose middle is at the height of pt.
func middle(c draw.Canvas, s draw.TextStyle, pt vg.Point, text string) {
	s.YAlign = draw.YCenter
	pt.Y += s.FontExtents().Descent // as the names of ticks
	c.FillText(s, pt, text)
}

// shorten cuts text in the middle, so that it fits.
func shorten(s draw.TextStyle, text string, width vg.Length) string {
	r := []rune(text)
	for n := len(r); n > 4 && s.Width(text) > width; n-- {
		half := (n - 1) / 2
		text = string(r[:half]) + "…" + string(r[len(r)-half:])
	}
	return text
}

// sheet is a picture with every line of text broken and every place known.
type sheet struct {
	look
	chart           *Chart
	title, footer   []string
	legend          [][]entry // by rows
	columns         int
	heights         []vg.Length // of the rows of panels
	legendAt, total vg.Length
}

const (
	titleLine, legendLine, headLine, footerLine = 19, 17, 17, 12
	legendGlyph, legendGap                      = 26, 14
)

// layout breaks the lines of the picture and adds up its height.
func (c *Chart) layout(t Theme, width vg.Length) *sheet {
	inner := width - 2*edge
	p := &sheet{look: look{Theme: t, width: inner, narrow: width < 500}, chart: c}
	p.title = wrap(p.text(titleSize, true), c.Title, inner)
	p.footer = wrap(p.muted(smallSize), c.footer, inner)

	// The legend flows like text.
	var used vg.Length
	style := p.text(textSize, false)
	for _, e := range c.legend {
		w := legendGlyph + style.Width(e.label) + legendGap
		if len(p.legend) == 0 || used+w > inner+legendGap {
			p.legend, used = append(p.legend, nil), 0
		}
		last := len(p.legend) - 1
		p.legend[last], used = append(p.legend[last], e), used+w
	}

	// Panels stand side by side as far as there is room.
	p.columns = 1
	if c.panelWidth > 0 {
		p.columns = min(max(1, int((inner+gap)/(c.panelWidth+gap))), len(c.panels))
	}
	p.width = (inner - vg.Length(p.columns-1)*gap) / vg.Length(p.columns)
	for i := 0; i < len(c.panels); i += p.columns {
		var h vg.Length
		for _, x := range c.panels[i:min(i+p.columns, len(c.panels))] {
			h = max(h, x.height(p.look)+vg.Length(len(p.headLines(x)))*headLine)
		}
		p.heights = append(p.heights, h)
	}

	p.legendAt = edge + vg.Length(len(p.title))*titleLine + 4
	p.total = p.legendAt + vg.Length(len(p.legend))*legendLine + 6
	for _, h := range p.heights {
		p.total += h + gap
	}
	p.total += vg.Length(len(p.footer))*footerLine + edge
	return p
}

func (p *sheet) headLines(x panel) []string { return wrap(p.muted(textSize), x.head, p.width) }

// draw paints the picture from top to bottom.
func (p *sheet) draw(canvas vg.CanvasSizer) {
	c := draw.New(canvas)
	c.FillPolygon(p.Background, []vg.Point{c.Min, {X: c.Max.X, Y: c.Min.Y}, c.Max, {X: c.Min.X, Y: c.Max.Y}})
	lines := func(s draw.TextStyle, x, y, step vg.Length, text []string) {
		s.YAlign = draw.YTop
		for i, line := range text {
			c.FillText(s, vg.Point{X: x, Y: y - vg.Length(i)*step}, line)
		}
	}
	lines(p.text(titleSize, true), edge, c.Max.Y-edge+3, titleLine, p.title)
	y := c.Max.Y - p.legendAt
	for _, row := range p.legend {
		p.drawLegend(c, y-legendLine/2, row)
		y -= legendLine
	}
	y -= 6
	// A row of panels is as high as the highest of them.
	for row, h := range p.heights {
		for col := range p.columns {
			i := row*p.columns + col
			if i >= len(p.chart.panels) {
				break
			}
			x := p.chart.panels[i]
			left := edge + vg.Length(col)*(p.width+gap)
			head := p.headLines(x)
			lines(p.muted(textSize), left, y, headLine, head)
			top := y - vg.Length(len(head))*headLine
			x.draw(p.look, draw.Canvas{Canvas: c.Canvas, Rectangle: vg.Rectangle{
				Min: vg.Point{X: left, Y: top - x.height(p.look)}, Max: vg.Point{X: left + p.width, Y: top},
			}})
		}
		y -= h + gap
	}
	lines(p.muted(smallSize), edge, y-2, footerLine, p.footer)
}

func (p *sheet) drawLegend(c draw.Canvas, y vg.Length, row []entry) {
	x, style := vg.Length(edge), p.text(textSize, false)
	for _, e := range row {
		glyph, line := e.style(p.Theme)
		if line != nil {
			c.StrokeLine2(*line, x, y, x+legendGlyph-6, y)
		}
		c.DrawGlyphNoClip(glyph, vg.Point{X: x + (legendGlyph-6)/2, Y: y})
		middle(c, style, vg.Point{X: x + legendGlyph, Y: y}, e.label)
		x += legendGlyph + style.Width(e.label) + legendGap
	}
}

// SVG writes the picture as an SVG document of this width, in CSS pixels. Its id begins
// the ids in it, so that several fit one page.
func (c *Chart) SVG(w io.Writer, t Theme, width int, id string) error {
	p := c.layout(t, vg.Length(width))
	canvas := &measured{Canvas: vgsvg.New(vg.Length(width), p.total)}
	p.draw(canvas)
	var raw bytes.Buffer
	if _, err := canvas.WriteTo(&raw); err != nil {
		return err
	}
	// The head is ours: a size that scales, and what a screen reader reads.
	body := strings.Map(printable, raw.String())
	body = body[strings.Index(body, "<g "):]
	_, err := fmt.Fprintf(w, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%.0f" viewBox="0 0 %d %.0f" role="img" aria-labelledby="%s-title %s-desc">
<title id="%s-title">%s</title>
<desc id="%s-desc">%s</desc>
%s`, width, p.total.Points(), width, p.total.Points(), id, id, id, escape(c.Title), id, escape(c.Alt), canvas.fit(compact.Replace(body)))
	return err
}

// measured knows how wide each text is drawn.
type measured struct {
	*vgsvg.Canvas
	widths []vg.Length
}

// FillString implements vg.Canvas.
func (m *measured) FillString(f font.Face, at vg.Point, text string) {
	m.widths = append(m.widths, f.Width(text))
	m.Canvas.FillString(f, at, text)
}

// fit gives each text of an SVG document its width, so that a font that runs wider, on a
// machine without those named, does not make texts overlap.
func (m *measured) fit(svg string) string {
	const tag = "<text "
	parts := strings.Split(svg, tag)
	for i := range parts[1:] {
		parts[i+1] = fmt.Sprintf(`textLength="%.1f" lengthAdjust="spacingAndGlyphs" %s`, m.widths[i].Points(), parts[i+1])
	}
	return strings.Join(parts, tag)
}

// printable drops what XML does not allow.
func printable(r rune) rune {
	if r < ' ' && r != '\n' && r != '\t' || r == 0xFFFE || r == 0xFFFF {
		return -1
	}
	return r
}

func escape(s string) string { return html.EscapeString(strings.Map(printable, s)) }

// compact leaves out of an SVG document what is the default, and names fonts of the same
// widths for machines without the first.
var compact = strings.NewReplacer(
	"font-variant:normal;", "", "font-weight:normal;", "", "font-style:normal;", "",
	"font-family:Liberation Sans;", "font-family:'Liberation Sans',Arimo,Arial,Helvetica,sans-serif;",
	"\n\tstyle=", " style=",
)

// PNG writes the picture as PNG, with two pixels a point.
func (c *Chart) PNG(w io.Writer, t Theme, width int) error {
	p := c.layout(t, vg.Length(width))
	canvas := vgimg.PngCanvas{Canvas: vgimg.NewWith(vgimg.UseWH(vg.Length(width), p.total), vgimg.UseDPI(144))}
	p.draw(canvas)
	_, err := canvas.WriteTo(w)
	return err
}
