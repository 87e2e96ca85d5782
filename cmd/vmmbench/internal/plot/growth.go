package plot

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/cuvmm/cuvmm/cmd/internal/size"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/stat"
)

// growth draws how the time adds up while memory grows, a picture for each size.
func (d *drawing) growth() {
	for _, g := range report.GroupBy(d.shown(Growth), func(c report.Case) string { return parent(c.ID) }) {
		lines := d.lines(g.Of, cumulative)
		if len(lines) == 0 {
			continue
		}
		target := size.Format(g.Of[0].Bytes)
		d.add(Growth, words(g.Key, ""), &Chart{
			Title:  fmt.Sprintf("Growing to %s: %s", target, rivals(lines)),
			Alt:    fmt.Sprintf("Line chart of the time in total over the bytes appended so far, up to %s, both on logarithmic axes, for %s. The band around a line is the 95 %% interval of the median. Lower is better.", target, names(lines)),
			figure: func(k look) figure { return k.linePlot(lines, "appended so far (bytes)", "time in total (ms)", "ms") },
		})
	}
}

// rivals says how long the first contender takes, and of those that do not grow in place the
// fastest and the slowest.
func rivals(lines []series) string {
	others := slices.DeleteFunc(slices.Clone(lines[1:]), func(s series) bool { return s.rank() < 2 })
	slices.SortStableFunc(others, func(a, b series) int { return cmp.Compare(a.last().y, b.last().y) })
	list := lines[:1:1]
	if n := len(others); n > 0 {
		list = append(list, others[0], others[n-1])
	}
	var said []string
	for _, s := range list {
		said = append(said, fmt.Sprintf("%s %s ms", s.label, number(s.last().y)))
	}
	return strings.Join(slices.Compact(said), ", ")
}

// cumulative is the milliseconds so far after each step, of the median growth.
func cumulative(c report.Case) (points []point) {
	samples := c.Stats.Growth.Samples
	steps := len(samples[0])
	for _, s := range samples {
		steps = min(steps, len(s)) // one that was interrupted has fewer
	}
	so := make([]float64, len(samples))
	for i := range steps {
		for j, s := range samples {
			so[j] += s[i] / 1e6
		}
		// More than 96 points would not be seen, and make a large file.
		if every := (steps + 95) / 96; i%every > 0 && i < steps-1 {
			continue
		}
		sum := stat.Summarize(so)
		var low, high *float64
		if sum.Interval != nil {
			low, high = &sum.Interval.Low, &sum.Interval.High
		}
		points = append(points, newPoint(appended(c, i, steps), sum.Median, low, high))
	}
	return points
}

// appended is how many bytes there are after step i of so many.
func appended(c report.Case, i, steps int) float64 {
	step, ok := number64(c.Axes.Of("step"))
	switch {
	case i == steps-1:
		return float64(c.Bytes) // the last step may be shorter
	case c.Axes.Of("step") == "x2": // each appends as much as there is, the first 2 MiB
		return math.Ldexp(2<<20, i)
	case !ok:
		step = c.Bytes / uint64(steps)
	}
	return float64(step) * float64(i+1)
}
