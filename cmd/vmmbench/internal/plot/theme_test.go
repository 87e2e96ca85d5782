package plot

import (
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
	for i := range 101 {
		cell, text := heatColor(float64(i) / 100)
		require.GreaterOrEqual(t, contrast(cell, text), 4.5, "%d %%", i)
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
	for i := range 1001 {
		cell, text := heatColor(float64(i) / 1000)
		require.False(t, seen[hex(cell)] || seen[hex(text)], "the colors of cells are the same in both themes")
	}
}
