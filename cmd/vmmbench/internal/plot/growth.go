package plot

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"gonum.org/v1/plot"

	"github.com/cuvmm/cuvmm/cmd/internal/size"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/stat"
)

// growths groups the cases that have grown by what they have grown to.
func (d *drawing) growths() ordered[[]report.Case] {
	return byKey(d.report.Cases, func(c report.Case) string {
		if !usable(c) || c.Stats.Growth == nil || len(c.Stats.Growth.Samples) == 0 {
			return ""
		}
		group, _ := split(c.ID)
		return group
	})
}

// growth draws how the time adds up while memory grows.
func (d *drawing) growth() {
	groups := d.growths()
	for _, group := range groups.keys {
		cases := groups.of[group]
		for _, part := range parts(contenders(cases)) {
			d.growthOf(group, part, cases)
		}
	}
}

// contenders are the labels of the cases of a group.
func contenders(cases []report.Case) (labels []string) {
	for _, c := range cases {
		_, label := split(c.ID)
		labels = append(labels, label)
	}
	return labels
}

func (d *drawing) growthOf(group string, part []string, cases []report.Case) {
	var lines []series
	var target uint64
	for i, label := range part {
		c := cases[slices.Index(contenders(cases), label)]
		target = c.Bytes
		lines = append(lines, series{label: label, style: i, points: cumulative(c)})
	}
	_, high := bounds(lines)
	x, y := bytesAxis("appended so far", float64(target)), timeAxis(high)
	// The title has the first contender, and the slowest.
	last := func(s series) float64 { return s.points[len(s.points)-1].y }
	slowest := slices.MaxFunc(lines, func(a, b series) int { return int(math.Copysign(1, last(a)-last(b))) })
	title := fmt.Sprintf("Growing to %s: %s %s", size.Format(target), lines[0].label, formatTime(last(lines[0])))
	if slowest.label != lines[0].label {
		title += fmt.Sprintf(", %s %s", slowest.label, formatTime(last(slowest)))
	}
	c := &Chart{
		Title: title,
		Alt: fmt.Sprintf("Line chart of the time in total over the bytes appended so far, up to %s, for %s. The band around a line is the 95 %% interval of the median. Lower is better; a straight line means that each step takes as long as the one before.",
			size.Format(target), strings.Join(part, ", ")),
		legend: seriesLegend(part, true),
		panels: []panel{linePanel("", x, y, 300, lines)},
	}
	c.Header, c.Rows = bySizeTable("appended", lines, func(v float64) string { return size.Approx(uint64(v)) }, formatTime)
	c.Rows = thinned(c.Rows, 16)
	d.add(Growth, without(group, ""), c)
}

// cumulative is the time so far after each step, of the median growth.
func cumulative(c report.Case) []point {
	samples := c.Stats.Growth.Samples
	steps := len(samples[0])
	for _, s := range samples {
		steps = min(steps, len(s)) // one that was interrupted has fewer
	}
	points := []point{{}}
	so := make([]float64, len(samples))
	for i := range steps {
		for j, s := range samples {
			so[j] += s[i]
		}
		sum := stat.Summarize(so)
		p := point{appended(c, i, steps), sum.Median, math.NaN(), math.NaN()}
		if sum.Interval != nil {
			p.low, p.high = max(0, sum.Interval.Low), sum.Interval.High
		}
		points = append(points, p)
	}
	points[0].low, points[0].high = 0, 0
	if !points[len(points)-1].hasInterval() {
		points[0].low = math.NaN()
	}
	return thinned(points, 96) // more would not be seen, and make a large file
}

// doubled is the value of the axis of steps each of which appends as much as there is, and
// firstDoubled the first of them.
const (
	doubled      = "x2"
	firstDoubled = 2 << 20
)

// appended is how many bytes there are after step i of so many.
func appended(c report.Case, i, steps int) float64 {
	if i == steps-1 {
		return float64(c.Bytes) // the last step may be shorter
	}
	if c.Axes.Of("step") == doubled {
		return min(math.Ldexp(firstDoubled, i), float64(c.Bytes))
	}
	step, ok := number64(c.Axes.Of("step"))
	if !ok {
		step = c.Bytes / uint64(steps)
	}
	return min(float64(step)*float64(i+1), float64(c.Bytes))
}

// thinned keeps about n of a list, evenly, the first and the last among them.
func thinned[T any](list []T, n int) []T {
	if len(list) <= n {
		return list
	}
	var kept []T
	for i := range n {
		kept = append(kept, list[i*(len(list)-1)/(n-1)])
	}
	return kept
}

// steps draws how long the steps of growing take: the time that so many of them stay
// below. The axis gives the slowest of them room.
func (d *drawing) steps() {
	groups := d.growths()
	for _, group := range groups.keys {
		cases := groups.of[group]
		for _, part := range parts(contenders(cases)) {
			d.stepsOf(group, part, cases)
		}
	}
}

// quantiles of which the table of steps has a column.
var quantiles = []float64{0.5, 0.9, 0.99, 1}

func (d *drawing) stepsOf(group string, part []string, cases []report.Case) {
	c := &Chart{Header: []string{"contender", "steps", "p50", "p90", "p99", "max"}, legend: seriesLegend(part, true)}
	var lines []series
	last := 0.0
	for i, label := range part {
		of := cases[slices.Index(contenders(cases), label)]
		steps := slices.Sorted(slices.Values(slices.Concat(of.Stats.Growth.Samples...)))
		if len(steps) == 0 || steps[0] <= 0 {
			d.leaveOut("%s: a step took no time at all", of.ID)
			continue
		}
		curve := quantileCurve(steps)
		last = max(last, curve[len(curve)-1].x)
		lines = append(lines, series{label: label, style: i, points: curve})
		row := []string{label, fmt.Sprint(len(steps))}
		for _, q := range quantiles {
			row = append(row, formatTime(stat.Quantile(steps, q)))
		}
		c.Rows = append(c.Rows, row)
	}
	if len(lines) == 0 {
		return
	}
	// The axis ends where the curves do, and has ticks that far.
	low, high := bounds(lines)
	x := axis{label: "part of the steps that take no longer", max: last}
	for _, q := range []float64{0, 0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999} {
		if tail(q) <= x.max {
			x.ticks = append(x.ticks, plot.Tick{Value: tail(q), Label: trim(100*q) + " %"})
		}
	}
	first := c.Rows[0]
	c.Title = fmt.Sprintf("Steps of growing to %s: of %s, half take under %s, 1 in 10 over %s", size.Format(cases[0].Bytes), first[0], first[2], first[3])
	c.Alt = fmt.Sprintf("Line chart of the time of one step, on a logarithmic axis, over the part of the steps that take no longer, for %s. The axis is stretched at its end, so that the slowest steps can be seen. Lower is better; a flat line means that all steps take alike.", strings.Join(part, ", "))
	c.panels = []panel{linePanel("", x, logAxis("time of a step", low, high, formatTime), 280, lines)}
	d.add(Steps, without(group, ""), c)
}

// tail is where a part of all stands on an axis which gives the last tenth as much room as
// the nine before it.
func tail(q float64) float64 { return -math.Log10(1 - q) }

// quantileCurve is the time of each step over the part that take no longer.
func quantileCurve(sorted []float64) []point {
	var list []point
	n := float64(len(sorted))
	for i, ns := range sorted {
		q := (float64(i) + 0.5) / n
		list = append(list, point{tail(q), ns, math.NaN(), math.NaN()})
	}
	if len(list) <= 200 {
		return list
	}
	// Even in what is seen, so that the tail keeps every step.
	kept := list[:1]
	for _, p := range list[1:] {
		if p.x-kept[len(kept)-1].x >= list[len(list)-1].x/200 {
			kept = append(kept, p)
		}
	}
	return kept
}
