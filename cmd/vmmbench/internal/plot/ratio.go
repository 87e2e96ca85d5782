package plot

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"gonum.org/v1/plot/vg/draw"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/stat"
)

// maxPictures is how many pictures of rows a command gets. What differs most is shown.
const maxPictures = 3

// verdicts of comparisons, by their style. The last is for all that are not firm.
var verdicts = []struct {
	label string
	glyph draw.GlyphDrawer
}{
	{string(stat.Equal), draw.CircleGlyph{}}, {string(stat.Slower), draw.PyramidGlyph{}},
	{string(stat.Faster), draw.BoxGlyph{}}, {"without a firm result", ring},
}

func styleOf(v stat.Verdict) int {
	switch v {
	case stat.Equal:
		return 0
	case stat.Slower:
		return 1
	case stat.Faster:
		return 2
	}
	return 3
}

// verdictMark is how a verdict is drawn.
func verdictMark(t Theme, style int) draw.GlyphStyle {
	c := t.Muted
	if style < 3 {
		c = t.Series[[]int{2, 1, 0}[style]]
	}
	return draw.GlyphStyle{Color: c, Radius: 4, Shape: verdicts[style].glyph}
}

// ratios draws the comparisons of each command, with the margin.
func (d *drawing) ratios() {
	commands := byKey(d.report.Comparisons, func(c report.Comparison) string {
		if c.Ratio == nil || *c.Ratio <= 0 {
			return ""
		}
		first, _ := command(c.ID)
		return first
	})
	for _, first := range commands.keys {
		list := commands.of[first]
		kept := foremost(list, maxPictures*maxRows, func(c report.Comparison) float64 { return math.Abs(math.Log(*c.Ratio)) })
		if len(kept) < len(list) {
			d.leaveOut("%s: the %d of %d comparisons that are nearest to 1", first, len(list)-len(kept), len(list))
		}
		from := 1
		for part := range slices.Chunk(kept, maxRows) {
			d.ratiosOf(first, part, among(from, len(part), len(kept)))
			from += len(part)
		}
	}
}

// foremost keeps the n elements with the highest score, in their order.
func foremost[T any](list []T, n int, score func(T) float64) []T {
	if len(list) <= n {
		return list
	}
	scores := make([]float64, len(list))
	for i, x := range list {
		scores[i] = score(x)
	}
	least := slices.Sorted(slices.Values(scores))[len(list)-n]
	var kept []T
	for i, x := range list {
		if scores[i] >= least && len(kept) < n {
			kept = append(kept, x)
		}
	}
	return kept
}

func (d *drawing) ratiosOf(first string, list []report.Comparison, which string) {
	var rows []row
	count := make([]int, len(verdicts))
	margin := 0.0
	c := &Chart{Header: []string{"comparison", "ratio", "95 %", "margin", "verdict"}}
	for _, x := range list {
		_, label := command(x.ID)
		style := styleOf(x.Verdict)
		count[style]++
		margin = max(margin, x.Margin)
		p := interval(*x.Ratio, float64(style), x.Low, x.High)
		rows = append(rows, row{label: label, text: fmt.Sprintf("%.3f  %s", *x.Ratio, x.Verdict), points: []point{p}})
		ratio := func(v float64) string { return fmt.Sprintf("%.3f", v) }
		c.Rows = append(c.Rows, []string{label, ratio(*x.Ratio), p.intervalText(ratio), fmt.Sprintf("%g %%", 100*x.Margin), string(x.Verdict)})
	}

	// 1 and the margin are always seen.
	low, high := rowBounds(rows)
	low, high = min(max(low, 1e-6), 1-margin), max(min(high, 1e6), 1+margin)
	x := logAxis("ratio of times", low, high, func(v float64) string { return trim(math.Round(v*1e6) / 1e6) })
	var said []string
	for i, v := range verdicts {
		if count[i] == 0 {
			continue
		}
		said = append(said, fmt.Sprintf("%d %s", count[i], v.label))
		c.legend = append(c.legend, entry{v.label, func(t Theme) (draw.GlyphStyle, *draw.LineStyle) {
			mark := verdictMark(t, i)
			return mark, &draw.LineStyle{Color: mark.Color, Width: 1.5}
		}})
	}
	c.Title = fmt.Sprintf("%s: %s%s, %s", first, plural(len(list), "comparison", "comparisons"), which, strings.Join(said, ", "))
	c.Alt = fmt.Sprintf("Forest plot of %d ratios of times with their 95 %% intervals on a logarithmic axis, and the margin of %g %% around 1 in which two times count as equal. Left of 1 the first of the two is faster.", len(list), 100*margin)
	head := fmt.Sprintf("time of the first over that of the second; grey: margin of %g %%", 100*margin)
	c.panels = []panel{rowPanel(head, x, [2]float64{1 - margin, 1 + margin}, rows, verdictMark)}
	d.add(Ratio, first, c)
}
