package plot

import (
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// colors are those of the style, by their names: for light pages, and for dark ones.
func colors(t *testing.T) (light, dark map[string]uint64) {
	t.Helper()
	of := func(css string) map[string]uint64 {
		all := map[string]uint64{}
		for _, m := range regexp.MustCompile(`--([a-z0-9-]+):#([0-9A-F]{6})`).FindAllStringSubmatch(css, -1) {
			color, err := strconv.ParseUint(m[2], 16, 32)
			require.NoError(t, err)
			all[m[1]] = color
		}
		return all
	}
	first, second, ok := strings.Cut(Style, "@media screen and (prefers-color-scheme:dark)")
	require.True(t, ok)
	return of(first), of(second)
}

// Text can be read on what it stands on: 4.5 is what the accessibility guidelines ask for,
// 3 for lines.
func TestContrast(t *testing.T) {
	require.InDelta(t, 21, contrast(0, 0xFFFFFF), 0.01)
	light, dark := colors(t)
	for _, theme := range []map[string]uint64{light, dark} {
		for _, text := range []string{"ink", "muted"} {
			require.GreaterOrEqual(t, contrast(theme[text], theme["paper"]), 4.5, text)
			require.GreaterOrEqual(t, contrast(theme[text], theme["zone"]), 4.5, text)
		}
		for _, series := range []string{"series-0", "series-1", "series-2", "series-3"} {
			require.GreaterOrEqual(t, contrast(theme[series], theme["paper"]), 3.0, series)
		}
	}
}

// Both kinds of pages have each color, and each name that a style uses is one.
func TestVariables(t *testing.T) {
	light, dark := colors(t)
	require.Len(t, light, 12)
	for name := range light {
		require.Contains(t, dark, name)
	}
	for _, m := range regexp.MustCompile(`var\(--([a-z0-9-]+)\)`).FindAllStringSubmatch(Style, -1) {
		if m[1] != "color" { // that of a series
			require.Contains(t, light, m[1])
		}
	}
}

// contrast is the ratio of contrast of two colors, from 1 to 21, as the Web Content
// Accessibility Guidelines define it.
func contrast(a, b uint64) float64 {
	light := func(c uint64) float64 {
		part := func(v uint64) float64 {
			x := float64(v&0xFF) / 255
			if x > 0.04045 {
				return math.Pow((x+0.055)/1.055, 2.4)
			}
			return x / 12.92
		}
		return 0.2126*part(c>>16) + 0.7152*part(c>>8) + 0.0722*part(c)
	}
	x, y := light(a), light(b)
	return (max(x, y) + 0.05) / (min(x, y) + 0.05)
}
