package plot

import (
	"bytes"
	"fmt"
	"html"
	"io"
	"math"
	"regexp"
	"strings"

	xfont "golang.org/x/image/font"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
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

// Formats are those that Write knows.
var Formats = []string{"svg", "png"}

// look is how a picture is drawn: its colors, and the width that the plots have.
type look struct {
	Theme
	width vg.Length
}

// figure is the plots of a picture, by rows, each of which has this height.
type figure struct {
	plots  [][]*plot.Plot
	height vg.Length
}

// Sizes of text, and of the space around things, in points.
const (
	titleSize, textSize, smallSize = 15, 11, 9
	edge, gap                      = 12, 10
)

func (k look) narrow() bool { return k.width < 500 }

func (k look) text(size vg.Length) draw.TextStyle {
	return draw.TextStyle{Color: k.Ink, Font: font.Font{Typeface: "Liberation", Variant: "Sans", Size: size}, Handler: plot.DefaultTextHandler}
}

// plot is an empty plot with these labels.
func (k look) plot(x, y string) *plot.Plot {
	p := plot.New()
	p.BackgroundColor, p.Title.Padding = nil, 6
	p.Title.TextStyle.Font, p.Title.TextStyle.Color = k.text(textSize).Font, k.Muted
	p.X.Label.Text, p.Y.Label.Text = x, y
	for _, a := range []*plot.Axis{&p.X, &p.Y} {
		a.LineStyle = draw.LineStyle{Color: k.Muted, Width: 0.75}
		a.Tick.LineStyle, a.Padding, a.Label.Padding = a.LineStyle, 0, 3
		a.Label.TextStyle.Font, a.Tick.Label.Font = k.text(textSize).Font, k.text(textSize).Font
		a.Label.TextStyle.Color, a.Tick.Label.Color = k.Muted, k.Muted
	}
	line := draw.LineStyle{Color: k.Grid, Width: 0.5}
	p.Add(&plotter.Grid{Vertical: line, Horizontal: line})
	return p
}

// label is the style of text beside marks.
func (k look) label() draw.TextStyle {
	s := k.text(textSize)
	if k.narrow() {
		s.Font.Size = smallSize
	}
	s.YAlign = draw.YCenter
	return s
}

// word is what stays on one line: it ends behind a space or an underscore.
var word = regexp.MustCompile(`[^ _]*[ _]*`)

// wrap breaks text into lines of at most this width, and cuts words that are longer.
func wrap(s draw.TextStyle, text string, width vg.Length) string {
	lines := []string{""}
	for _, w := range word.FindAllString(text, -1) {
		if n := len(lines) - 1; lines[n] == "" || s.Width(strings.TrimRight(lines[n]+w, " ")) <= width {
			lines[n] += w
		} else {
			lines = append(lines, w)
		}
	}
	for i, line := range lines {
		lines[i] = shorten(s, strings.TrimRight(line, " "), width)
	}
	return strings.Join(lines, "\n")
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

// paint draws the picture on a fresh canvas: the title, the plots, and the footer.
func paint[C vg.CanvasSizer](c *Chart, t Theme, width int, fresh func(w, h vg.Length) C) C {
	k := look{t, vg.Length(width) - 2*edge}
	f := c.figure(k)
	title, footer := k.text(titleSize), k.text(smallSize)
	title.Font.Weight, footer.Color = xfont.WeightBold, k.Muted
	title.YAlign, footer.YAlign = draw.YTop, draw.YTop
	head, foot := wrap(title, c.Title, k.width), wrap(footer, c.footer, k.width)
	above, below := title.Height(head)+gap, footer.Height(foot)+gap
	total := 2*edge + above + vg.Length(len(f.plots))*(f.height+gap) - gap + below

	to := fresh(vg.Length(width), vg.Length(math.Ceil(float64(total))))
	page := draw.New(to)
	page.SetColor(k.Background)
	page.Fill(page.Path())
	page = draw.Crop(page, edge, -edge, edge, -edge)
	page.FillText(title, vg.Point{X: page.Min.X, Y: page.Max.Y + 3}, head)
	page.FillText(footer, vg.Point{X: page.Min.X, Y: page.Min.Y + below - gap}, foot)
	tiles := draw.Tiles{Rows: len(f.plots), Cols: len(f.plots[0]), PadX: gap, PadY: gap}
	for i, row := range plot.Align(f.plots, tiles, draw.Crop(page, 0, 0, below, -above)) {
		for j, at := range row {
			if f.plots[i][j] != nil {
				f.plots[i][j].Draw(at)
			}
		}
	}
	return to
}

// Write writes the picture in one of the Formats, of this width in points. A PNG has two
// pixels a point.
func (c *Chart) Write(w io.Writer, format string, t Theme, width int) error {
	if format == "svg" {
		return c.SVG(w, t, width, c.Name)
	}
	_, err := vgimg.PngCanvas{Canvas: paint(c, t, width, func(w, h vg.Length) *vgimg.Canvas {
		return vgimg.NewWith(vgimg.UseWH(w, h), vgimg.UseDPI(144))
	})}.WriteTo(w)
	return err
}

// SVG writes the picture as an SVG document of this width, in CSS pixels. Its id begins
// the ids in it, so that several fit one page.
func (c *Chart) SVG(w io.Writer, t Theme, width int, id string) error {
	canvas := paint(c, t, width, func(w, h vg.Length) *measured { return &measured{Canvas: vgsvg.New(w, h)} })
	var raw bytes.Buffer
	if _, err := canvas.WriteTo(&raw); err != nil {
		return err
	}
	// The head is ours: a size that scales, and what a screen reader reads.
	body := strings.Map(printable, compact.Replace(raw.String()[bytes.Index(raw.Bytes(), []byte("<g ")):]))
	_, height := canvas.Size()
	_, err := fmt.Fprintf(w, `<svg xmlns="http://www.w3.org/2000/svg" width="%[1]d" height="%.0[2]f" viewBox="0 0 %[1]d %.0[2]f" role="img" aria-labelledby="%[3]s-title %[3]s-desc">
<title id="%[3]s-title">%[4]s</title>
<desc id="%[3]s-desc">%[5]s</desc>
%[6]s`, width, height.Points(), id, escape(c.Title), escape(c.Alt), canvas.fit(body))
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
