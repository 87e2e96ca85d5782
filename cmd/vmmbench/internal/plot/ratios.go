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

// ratios are the pictures of the comparisons of each command with the margin, those that differ most first.
func ratios(r *report.Report) (charts []*Chart) {
	with := slices.DeleteFunc(slices.Clone(r.Comparisons), func(c report.Comparison) bool { return c.Ratio == nil || *c.Ratio <= 0 })
	for _, g := range report.GroupBy(with, func(c report.Comparison) string { return report.CommandOf(c.ID) }) {
		slices.SortStableFunc(g.Of, differMost)
		var rows []row
		margin, count := 0.0, map[stat.Verdict]int{}
		for _, x := range g.Of[:min(len(g.Of), maxRows)] {
			rows, margin = append(rows, newRow(x)), max(margin, x.Margin)
			count[x.Verdict]++
		}
		said := []string{fmt.Sprintf("%d compared", len(g.Of))}
		if len(g.Of) > maxRows {
			said[0] = fmt.Sprintf("the %d of %d that differ most", maxRows, len(g.Of))
		}
		for _, v := range stat.Verdicts() {
			if count[v] > 0 {
				said = append(said, fmt.Sprintf("%d %s", count[v], v))
			}
		}
		charts = append(charts, newChart(r, "Ratios, "+g.Key, strings.Join(said, ", "),
			fmt.Sprintf("Forest plot of ratios of times with their 95 %% intervals on a logarithmic axis, those that differ most first, and the margin of %g %% around 1 in which two times count as equal. Left of 1 the first of the two is faster.", 100*margin),
			func(c *canvas) { c.forest(rows, margin) }))
	}
	return charts
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

// row is a comparison in a picture. Without an interval, low and high are the ratio.
type row struct {
	name             []string // in lines
	says             string
	ratio, low, high float64
	verdict          stat.Verdict
}

// marksOf are the marks of firm verdicts. All others share the first one.
var marksOf = map[stat.Verdict]int{stat.Slower: 1, stat.Equal: 2, stat.Faster: 4}

func newRow(x report.Comparison) row {
	// within is what a logarithmic axis can show.
	within := func(v float64) float64 { return min(max(v, 1e-6), 1e6) }
	_, name, _ := strings.Cut(x.ID, "/")
	ratio := within(*x.Ratio)
	r := row{wrap(cmp.Or(name, x.ID), 26), fmt.Sprintf("%#.4g %.20s", *x.Ratio, x.Verdict), ratio, ratio, ratio, x.Verdict}
	if x.Low != nil && x.High != nil {
		r.low, r.high = within(*x.Low), within(*x.High)
	}
	return r
}

func (r row) height() float64 { return float64(pitch*len(r.name) + 4) }

// forest draws rows, with their names at the left and their verdicts at the right.
func (c *canvas) forest(rows []row, margin float64) {
	c.y += pitch + 4
	low, high, left, right := max(1-margin, 0.01), 1+margin, 0.0, 0.0
	s, top, bottom := scale{low: low, high: high}, c.y+6, c.y+6
	for _, r := range rows {
		s.low, s.high, bottom = min(s.low, r.low), max(s.high, r.high), bottom+r.height()
		left, right = max(left, long(r.name...)), max(right, long(r.says))
	}
	s = newScale(s.low, s.high, edge+left+8, width-edge-right-8)
	c.text("muted middle", s.at(1), c.y, fmt.Sprintf("equal within ±%g %%", 100*margin))
	c.add(`<rect class="zone" x="%.1f" y="%.1f" width="%.1f" height="%.1f"/>`, s.at(low), top, s.at(high)-s.at(low), bottom-top)
	c.across(s, top, bottom, s.decimal(), decimal, "time of the first / time of the second (left of 1: faster)")
	c.line("thin", s.at(1), top, s.at(1), bottom)
	for _, r := range rows {
		c.row(s, top, r)
		top += r.height()
	}
}

// row draws a row on the scale, below top.
func (c *canvas) row(s scale, top float64, r row) {
	for i, line := range r.name {
		c.text("ink", edge, top+float64(pitch*(i+1)-2), line)
	}
	y, class := top+r.height()/2, escape(string(r.verdict))
	c.line("line "+class, s.at(r.low), y, s.at(r.high), y)
	c.mark(class, marksOf[r.verdict], s.at(r.ratio), y)
	c.text("ink", s.to+8, y+5, r.says)
}
