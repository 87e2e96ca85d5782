package plot

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/stat"
)

// samples draws every sample of a command's cases in order, a strip for each case.
func (d *drawing) samples() {
	commands := byKey(d.report.Cases, func(c report.Case) string {
		if !usable(c) || len(c.Samples) < 2 || c.Stats.Median <= 0 || slices.Min(c.Samples) <= 0 {
			return ""
		}
		first, _ := command(c.ID)
		return first
	})
	for _, first := range commands.keys {
		list := commands.of[first]
		kept := foremost(list, maxPictures*maxRows, largestDeviation)
		if len(kept) < len(list) {
			d.leaveOut("samples of %s: the %d of %d cases that vary least", first, len(list)-len(kept), len(list))
		}
		from := 1
		for part := range slices.Chunk(kept, maxRows) {
			d.samplesOf(first, part, among(from, len(part), len(kept)))
			from += len(part)
		}
	}
}

// largestDeviation is how far a sample of the case is from the median at most, as the
// logarithm of their ratio.
func largestDeviation(c report.Case) (most float64) {
	for _, ns := range c.Samples {
		most = max(most, math.Abs(math.Log(ns/c.Stats.Median)))
	}
	return most
}

// mostDeviation bounds what a strip shows. One sample that took ten times as long would
// make all others a flat line.
const mostDeviation = 0.5

func (d *drawing) samplesOf(first string, list []report.Case, which string) {
	c := &Chart{Header: []string{"case", "samples", "median", "first half", "second half", "min", "max", "flags"}}
	n, deviation, drifts := 0, 0.01, 0
	for _, x := range list {
		n, deviation = max(n, len(x.Samples)), max(deviation, largestDeviation(x))
		if slices.Contains(x.Flags, "drift") {
			drifts++
		}
		half := len(x.Samples) / 2
		_, label := command(x.ID)
		c.Rows = append(c.Rows, []string{
			label, fmt.Sprint(len(x.Samples)), formatTime(x.Stats.Median), formatTime(stat.Quantile(x.Samples[:half], 0.5)),
			formatTime(stat.Quantile(x.Samples[len(x.Samples)-half:], 0.5)), formatTime(x.Stats.Min), formatTime(x.Stats.Max), strings.Join(x.Flags, ", "),
		})
	}
	deviation = min(deviation, math.Log1p(mostDeviation))
	percent := 100 * math.Expm1(deviation)

	c.Title = fmt.Sprintf("Samples of %s in order%s: %s", first, which, drifting(drifts, len(list)))
	c.Alt = fmt.Sprintf("%d strips, one for each case, of all its samples in the order in which they were taken, against their median. A strip is %.2g %% of the median high in each direction; what goes beyond is cut. A line that rises or falls on the whole is drift.", len(list), percent)
	c.panels = []panel{stripPanel(fmt.Sprintf("each strip: median ±%.2g %%, slower is higher", percent), list, n, deviation)}
	d.add(Samples, first, c)
}

// among returns which part of all a picture has, if there are several.
func among(from, n, all int) string {
	if n == all {
		return ""
	}
	return fmt.Sprintf(" (%d to %d of %d)", from, from+n-1, all)
}

func drifting(n, all int) string {
	if n == 0 {
		return fmt.Sprintf("none of %s drifts", plural(all, "case", "cases"))
	}
	return fmt.Sprintf("%d of %s drift", n, plural(all, "case", "cases"))
}

// stripPanel draws the samples of each case around its median.
func stripPanel(head string, list []report.Case, n int, deviation float64) panel {
	rows := make([]row, len(list))
	for i, c := range list {
		_, rows[i].label = command(c.ID)
		if slices.Contains(c.Flags, "drift") {
			rows[i].text = "drift"
		}
	}
	height := func(k look) vg.Length {
		if k.above(rows) {
			return 44
		}
		return 26
	}
	x := linearAxis("sample", 1, float64(max(n, 2)), 1)
	return panel{
		head:   head,
		height: func(k look) vg.Length { return 42 + vg.Length(len(rows))*height(k) },
		draw: func(k look, c draw.Canvas) {
			above := k.above(rows)
			k.drawRows(c, x, rows, above, strips{k, list, rows, deviation, above})
		},
	}
}

// strips draws the lines of samples. The line in the middle of each, which is the grid's,
// is the median.
type strips struct {
	look
	cases     []report.Case
	rows      []row
	deviation float64
	above     bool
}

// Plot implements plot.Plotter.
func (s strips) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	line := draw.LineStyle{Color: s.Series[0], Width: 1}
	for i, of := range s.cases {
		top, bottom := y(float64(len(s.cases)-i)), y(float64(len(s.cases)-i-1))
		top = s.rowText(c, s.rows[i], s.above, top, bottom)
		center, half := (top+bottom)/2, (top-bottom)/2-2
		c.StrokeLine2(draw.LineStyle{Color: s.Grid, Width: 1}, c.Min.X, center, c.Max.X, center)
		var points []vg.Point
		for j, ns := range of.Samples {
			v := math.Log(ns/of.Stats.Median) / s.deviation
			points = append(points, vg.Point{X: x(float64(j + 1)), Y: center + half*vg.Length(min(max(v, -1), 1))})
		}
		c.StrokeLines(line, extremes(points, 300)...)
	}
}

// extremes keeps the lowest and the highest point of each part of a line, so that it has
// about n points and looks alike.
func extremes(points []vg.Point, n int) [][]vg.Point {
	if len(points) <= n {
		return [][]vg.Point{points}
	}
	var kept []vg.Point
	for part := range slices.Chunk(points, 2*len(points)/n+1) {
		low, high := 0, 0
		for i, p := range part {
			if p.Y < part[low].Y {
				low = i
			}
			if p.Y > part[high].Y {
				high = i
			}
		}
		kept = append(kept, part[min(low, high)])
		if low != high {
			kept = append(kept, part[max(low, high)])
		}
	}
	return [][]vg.Point{kept}
}
