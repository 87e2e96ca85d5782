package plot

import (
	"image/color"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// Text can be read on what it stands on: 4.5 is what the accessibility guidelines ask for,
// 3 for lines.
func TestContrast(t *testing.T) {
	require.InDelta(t, 21, contrast(rgb(0), rgb(0xFFFFFF)), 0.01)
	for _, theme := range Themes {
		require.GreaterOrEqual(t, contrast(theme.Ink, theme.Background), 4.5, theme.Name)
		require.GreaterOrEqual(t, contrast(theme.Ink, theme.Zone), 4.5, theme.Name)
		require.GreaterOrEqual(t, contrast(theme.Muted, theme.Background), 4.5, theme.Name)
		require.GreaterOrEqual(t, contrast(theme.Muted, theme.Zone), 4.5, theme.Name)
		for _, series := range theme.Series[:4] {
			require.GreaterOrEqual(t, contrast(series, theme.Background), 3.0, "%s %s", theme.Name, hex(series))
		}
	}
	for i, cell := range heat {
		require.GreaterOrEqual(t, contrast(cell.(color.NRGBA), onHeat(i)), 4.5, "%d", i)
	}
}

// Names stand for one color each, so that a page can put them in its place.
func TestVariables(t *testing.T) {
	light, dark := Light.Variables(), Dark.Variables()
	seen := map[string]bool{}
	for i, v := range light {
		require.Equal(t, v.Name, dark[i].Name)
		require.False(t, seen[v.Color], "%s is the color of two names", v.Color)
		seen[v.Color] = true
	}
	for i, cell := range heat {
		require.False(t, seen[hex(cell.(color.NRGBA))] || seen[hex(onHeat(i))], "the colors of cells are the same in both themes")
	}
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
