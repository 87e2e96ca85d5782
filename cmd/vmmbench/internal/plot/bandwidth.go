package plot

import (
	"fmt"
	"strings"

	"github.com/cuvmm/cuvmm/cmd/internal/size"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
)

// bandwidth draws GB/s by size, a picture for each way of copying. A way with a single size
// has none: its figures stand in tables, and its comparisons in the picture of ratios.
func (d *drawing) bandwidth() {
	single := 0
	for _, way := range report.GroupBy(d.shown(Bandwidth), wayOf) {
		lines := d.lines(way.Of, func(c report.Case) []point {
			n, _ := number64(c.Axes.Of("size"))
			return []point{newPoint(float64(n), c.Stats.Value, c.Stats.ValueLow, c.Stats.ValueHigh)}
		})
		if len(lines) == 0 || len(lines[0].points) == 1 {
			single += len(way.Of)
			continue
		}
		var said []string
		for _, s := range lines[:min(3, len(lines))] {
			said = append(said, fmt.Sprintf("%s %s to %s", s.label, number(s.points[0].y), number(s.last().y)))
		}
		from, to := size.Format(uint64(lines[0].points[0].x)), size.Format(uint64(lines[0].last().x))
		d.add(Bandwidth, way.Key, &Chart{
			Title:  fmt.Sprintf("%s, %s to %s: %s GB/s", way.Key, from, to, strings.Join(said, ", ")),
			Alt:    fmt.Sprintf("Line chart of the bandwidth in GB/s by the size of a copy, %s to %s, both on logarithmic axes, for %s. The band around a line is the 95 %% interval of the median. Higher is better.", from, to, names(lines)),
			figure: func(k look) figure { return k.linePlot(lines, "size of a copy (bytes)", "bandwidth (GB/s)", "GB/s") },
		})
	}
	if single > 0 {
		d.leaveOut("cases of bandwidth at a single size: %d", single)
	}
}

// wayOf is what a case copies and how, without the size and the contender.
func wayOf(c report.Case) string {
	n, _ := number64(c.Axes.Of("size"))
	return strings.TrimSpace(report.CommandOf(c.ID) + " " + words(parent(c.ID), size.Format(n)))
}
