package plot

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/stat"
)

// maxRows is how many comparisons a picture has, so that it fits a screen or a page.
const maxRows = 40

// ratios draws the comparisons of each command with the margin, those that differ most first.
func (d *drawing) ratios() {
	with := slices.DeleteFunc(slices.Clone(d.report.Comparisons), func(c report.Comparison) bool { return c.Ratio == nil || *c.Ratio <= 0 })
	for _, g := range report.GroupBy(with, func(c report.Comparison) string { return report.CommandOf(c.ID) }) {
		slices.SortStableFunc(g.Of, differMost)
		var rows []row
		margin, count := 0.0, make([]int, len(verdicts))
		for _, x := range g.Of[:min(len(g.Of), maxRows)] {
			rows, margin = append(rows, newRow(x)), max(margin, x.Margin)
			count[verdictOf(x)]++
		}
		said := []string{fmt.Sprintf("%d compared", len(g.Of))}
		if len(g.Of) > maxRows {
			said[0] = fmt.Sprintf("the %d of %d that differ most", maxRows, len(g.Of))
		}
		for i, n := range count {
			if n > 0 {
				said = append(said, fmt.Sprintf("%d %s", n, verdicts[i]))
			}
		}
		d.add("Ratios, "+g.Key, strings.Join(said, ", "),
			fmt.Sprintf("Forest plot of ratios of times with their 95 %% intervals on a logarithmic axis, those that differ most first, and the margin of %g %% around 1 in which two times count as equal. Left of 1 the first of the two is faster.", 100*margin),
			func(c *canvas) { c.forest(rows, margin) })
	}
}

// differMost orders comparisons by how far they are from 1 for sure, which is the end of the
// interval that is nearest to it. Those that may be 1 follow by their ratios.
func differMost(a, b report.Comparison) int {
	sure := func(c report.Comparison) float64 {
		if c.Low == nil || c.High == nil || *c.Low <= 0 {
			return 0
		}
		return max(0, math.Log(*c.Low), -math.Log(*c.High))
	}
	ratio := func(c report.Comparison) float64 { return math.Abs(math.Log(*c.Ratio)) }
	return cmp.Or(cmp.Compare(sure(b), sure(a)), cmp.Compare(ratio(b), ratio(a)))
}

// verdicts are those that pictures tell apart, each with a mark of its own. The last one stands
// for all that say nothing of the two.
var verdicts = []string{string(stat.Faster), string(stat.Slower), string(stat.Equal), "without a firm result"}

// verdictOf is the place of a comparison's verdict in verdicts.
func verdictOf(x report.Comparison) int {
	if i := slices.Index(verdicts, string(x.Verdict)); i >= 0 {
		return i
	}
	return len(verdicts) - 1
}
