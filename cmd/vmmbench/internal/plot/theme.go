package plot

import (
	"fmt"
	"image/color"

	"gonum.org/v1/plot/plotutil"
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

// color, mark and line are how series i is drawn. Colors come again, but not with the same
// marks and dashes.
func (t Theme) color(i int) color.NRGBA { return t.Series[i%len(t.Series)] }

func (t Theme) mark(i int) draw.GlyphStyle {
	return draw.GlyphStyle{Color: t.color(i), Radius: 3.5, Shape: plotutil.Shape(i + 5)} // those that are filled first
}

func (t Theme) line(i int) draw.LineStyle {
	return draw.LineStyle{Color: t.color(i), Width: 1.75, Dashes: plotutil.Dashes(i)}
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

// heat are the colors of cividis, from the least to the greatest value, and the same in
// both themes.
var heat = heatPalette{
	rgb(0x00224E), rgb(0x123570), rgb(0x3B496C), rgb(0x575D6D), rgb(0x707173),
	rgb(0x8A8678), rgb(0xA59C74), rgb(0xC3B369), rgb(0xE1CC55), rgb(0xFEE838),
}

type heatPalette []color.Color

// Colors implements palette.Palette.
func (p heatPalette) Colors() []color.Color { return p }

// onHeat is the color of text on one of the colors of heat. It is neither quite white nor
// quite black: these are colors of a theme, which a page replaces.
func onHeat(i int) color.NRGBA {
	if i < 5 {
		return rgb(0xFEFEFE)
	}
	return rgb(0x010101)
}
