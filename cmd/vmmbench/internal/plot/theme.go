package plot

import (
	"fmt"
	"image/color"
	"math"

	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// Theme is the colors of a picture.
type Theme struct {
	Name       string
	Background color.NRGBA
	Ink        color.NRGBA // text
	Muted      color.NRGBA // text that matters less, axes
	Grid       color.NRGBA
	Zone       color.NRGBA // the margin around 1, cells without a value
	Series     [7]color.NRGBA
}

func rgb(hex uint32) color.NRGBA {
	return color.NRGBA{R: uint8(hex >> 16), G: uint8(hex >> 8), B: uint8(hex), A: 255}
}

// Light and Dark use the palette of Okabe and Ito, which color-blind people can tell
// apart. Each theme begins with the colors that stand out on its background. All colors
// of a theme differ, so that Variables can name them.
var (
	Light = Theme{
		Name: "light", Background: rgb(0xFFFFFF), Ink: rgb(0x1F2328), Muted: rgb(0x59636E), Grid: rgb(0xD8DEE4), Zone: rgb(0xE4E9EF),
		Series: [7]color.NRGBA{rgb(0x0072B2), rgb(0xD55E00), rgb(0x009E73), rgb(0xCC79A7), rgb(0xE69F00), rgb(0x56B4E9), rgb(0x000000)},
	}
	Dark = Theme{
		Name: "dark", Background: rgb(0x0D1117), Ink: rgb(0xE6EDF3), Muted: rgb(0x9DA7B1), Grid: rgb(0x30363D), Zone: rgb(0x262C34),
		Series: [7]color.NRGBA{rgb(0x56B4E9), rgb(0xE69F00), rgb(0x009E73), rgb(0xCC79A7), rgb(0xF0E442), rgb(0xD55E00), rgb(0xFFFFFF)},
	}
)

// Themes are the themes that there are.
var Themes = []Theme{Light, Dark}

// Variable is a color of a theme with a name that all themes share.
type Variable struct{ Name, Color string }

// Variables names the colors of the theme. A page that shows a picture in both themes
// writes these names instead of the colors of one.
func (t Theme) Variables() []Variable {
	list := []Variable{
		{"paper", hex(t.Background)}, {"ink", hex(t.Ink)}, {"muted", hex(t.Muted)}, {"grid", hex(t.Grid)}, {"zone", hex(t.Zone)},
	}
	for i, c := range t.Series {
		list = append(list, Variable{fmt.Sprintf("series-%d", i+1), hex(c)})
	}
	return list
}

func hex(c color.NRGBA) string { return fmt.Sprintf("#%02X%02X%02X", c.R, c.G, c.B) }

// outline is a shape that is not filled: lines, from the center, in radii.
type outline [][][2]vg.Length

// DrawGlyph implements draw.GlyphDrawer.
func (o outline) DrawGlyph(c *draw.Canvas, s draw.GlyphStyle, at vg.Point) {
	line := draw.LineStyle{Color: s.Color, Width: 1.5}
	if o == nil { // a ring
		c.SetLineStyle(line)
		var p vg.Path
		p.Move(vg.Point{X: at.X + s.Radius, Y: at.Y})
		p.Arc(at, s.Radius, 0, 2*math.Pi)
		c.Stroke(p)
		return
	}
	for _, points := range o {
		var list []vg.Point
		for _, p := range points {
			list = append(list, vg.Point{X: at.X + p[0]*s.Radius, Y: at.Y + p[1]*s.Radius})
		}
		c.StrokeLines(line, list)
	}
}

var (
	ring   = outline(nil)
	cross  = outline{{{-1, -1}, {1, 1}}, {{-1, 1}, {1, -1}}}
	plus   = outline{{{-1.2, 0}, {1.2, 0}}, {{0, -1.2}, {0, 1.2}}}
	square = outline{{{-1, -1}, {1, -1}, {1, 1}, {-1, 1}, {-1, -1}}}
)

// glyphs and dashes tell series apart without their colors.
var (
	glyphs = [7]draw.GlyphDrawer{
		draw.CircleGlyph{}, draw.BoxGlyph{}, draw.PyramidGlyph{}, ring, cross, plus, square,
	}
	dashes = [7][]vg.Length{nil, {6, 3}, {2, 2}, {8, 3, 2, 3}, {10, 4}, {4, 2, 1, 2}, {1, 3}}
)

// heatStops are the colors of cividis, from the least to the greatest value. They are the
// same in both themes.
var heatStops = []color.NRGBA{
	rgb(0x00224E), rgb(0x123570), rgb(0x3B496C), rgb(0x575D6D), rgb(0x707173),
	rgb(0x8A8678), rgb(0xA59C74), rgb(0xC3B369), rgb(0xE1CC55), rgb(0xFEE838),
}

// heatColor is the color of a value between 0 and 1, and one for text on it. The text is
// neither quite white nor quite black: these are colors of a theme, which a page replaces.
func heatColor(v float64) (cell, text color.NRGBA) {
	at := min(max(v, 0), 1) * float64(len(heatStops)-1)
	i := min(int(at), len(heatStops)-2)
	a, b, part := heatStops[i], heatStops[i+1], at-float64(i)
	mix := func(x, y uint8) uint8 { return uint8(float64(x) + part*(float64(y)-float64(x)) + 0.5) }
	cell = color.NRGBA{R: mix(a.R, b.R), G: mix(a.G, b.G), B: mix(a.B, b.B), A: 255}
	white, black := rgb(0xFEFEFE), rgb(0x010101)
	if contrast(cell, white) > contrast(cell, black) {
		return cell, white
	}
	return cell, black
}

// contrast is the ratio of contrast of two colors, from 1 to 21, as the Web Content
// Accessibility Guidelines define it.
func contrast(a, b color.NRGBA) float64 {
	light := func(c color.NRGBA) float64 {
		part := func(v uint8) float64 {
			if x := float64(v) / 255; x > 0.04045 {
				return math.Pow((x+0.055)/1.055, 2.4)
			}
			return float64(v) / 255 / 12.92
		}
		return 0.2126*part(c.R) + 0.7152*part(c.G) + 0.0722*part(c.B)
	}
	x, y := light(a), light(b)
	return (max(x, y) + 0.05) / (min(x, y) + 0.05)
}
