package plot

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// sized collects the points of a diagram by size.
type sized struct {
	name   string
	axis   string // what the sizes are
	series ordered[*series]
}

func (s *sized) add(label string, p point) {
	of := s.series.at(label, func() *series { return &series{label: label} })
	of.points = append(of.points, p)
}

// sizes are the sizes of all points.
func sizes(list []*sized) (all []float64) {
	for _, s := range list {
		for _, key := range s.series.keys {
			for _, p := range s.series.of[key].points {
				all = append(all, p.x)
			}
		}
	}
	return all
}

// labels are those of all series, in order.
func labels(list []*sized) (all []string) {
	for _, s := range list {
		for _, key := range s.series.keys {
			if !slices.Contains(all, key) {
				all = append(all, key)
			}
		}
	}
	return all
}

// lines are the series with these labels, each with the style of its place among them.
func (s *sized) lines(labels []string) (list []series) {
	for i, label := range labels {
		if of, ok := s.series.of[label]; ok {
			line := series{label: label, style: i, points: slices.Clone(of.points)}
			slices.SortStableFunc(line.points, func(a, b point) int { return int(math.Copysign(1, a.x-b.x)) })
			list = append(list, line)
		}
	}
	return list
}

// all has the lines of all diagrams.
func all(list []*sized, labels []string) (lines []series) {
	for _, s := range list {
		lines = append(lines, s.lines(labels)...)
	}
	return lines
}

// oneSize reports whether a diagram by size would be a column of points.
func oneSize(list []*sized) bool {
	of := sizes(list)
	return slices.Min(of) == slices.Max(of)
}

// bandwidth draws GB/s by size, a picture for each way of copying. If each way has one
// size, they fit one picture.
func (d *drawing) bandwidth() {
	var commands ordered[*ordered[*sized]]
	for _, c := range d.report.Cases {
		n, in, label, ok := sizeOf(c)
		if !ok || !usable(c) || c.Unit != "GB/s" || pairCase(c) {
			continue
		}
		first, _ := command(c.ID)
		group, contender := split(c.ID)
		ways := commands.at(first, func() *ordered[*sized] { return &ordered[*sized]{} })
		way := ways.at(without(group, in), func() *sized { return &sized{name: without(group, in), axis: label} })
		way.add(contender, interval(n, c.Stats.Value, c.Stats.ValueLow, c.Stats.ValueHigh))
	}
	for _, first := range commands.keys {
		ways := commands.of[first]
		var list []*sized
		for _, key := range ways.keys {
			list = append(list, ways.of[key])
		}
		if oneSize(list) {
			d.dots(Bandwidth, first, list, "GB/s", "copies", func(v float64) string { return number(v) + " GB/s" })
			continue
		}
		for _, way := range list {
			d.bandwidthOf(first, way)
		}
	}
}

// bandwidthOf draws the bandwidth of one way of copying.
func (d *drawing) bandwidthOf(first string, way *sized) {
	one := []*sized{way}
	for _, part := range parts(labels(one)) {
		lines := way.lines(part)
		_, high := bounds(lines)
		x, y := sizeAxis("bytes of a copy", sizes(one)), linearAxis("GB/s", 0, high*1.05, 1)
		c := &Chart{
			Title: strings.TrimSpace(first+" "+way.name) + ": " + peaks(lines),
			Alt: fmt.Sprintf("Line chart of the bandwidth in GB/s by the size of a copy, %s to %s, for %s. The band around a line is the 95 %% interval of the median. Higher is better.",
				short(uint64(slices.Min(sizes(one)))), short(uint64(slices.Max(sizes(one)))), strings.Join(part, ", ")),
			legend: seriesLegend(part, true),
			panels: []panel{linePanel("", x, y, 280, lines)},
		}
		c.Header, c.Rows = bySizeTable("size", lines, func(v float64) string { return short(uint64(v)) }, number)
		d.add(Bandwidth, first+" "+way.name, c)
	}
}

// peaks says in a few words how high the first lines reach.
func peaks(lines []series) string {
	var list []string
	for _, s := range lines[:min(3, len(lines))] {
		best := slices.MaxFunc(s.points, func(a, b point) int { return int(math.Copysign(1, a.y-b.y)) })
		list = append(list, fmt.Sprintf("%s up to %s", s.label, number(best.y)))
	}
	return strings.Join(list, ", ") + " GB/s"
}

// bySizeTable has a row for each size, with the value and its interval for each series.
func bySizeTable(first string, lines []series, x, y func(float64) string) (header []string, rows [][]string) {
	header = []string{first}
	var at ordered[[]string]
	for i, s := range lines {
		header = append(header, s.label, "95 %")
		for _, p := range s.points {
			key := x(p.x)
			row := at.at(key, func() []string {
				row := slices.Repeat([]string{"-"}, 1+2*len(lines))
				row[0] = key
				return row
			})
			row[1+2*i] = y(p.y)
			row[2+2*i] = p.intervalText(y)
		}
	}
	for _, key := range at.keys {
		rows = append(rows, at.of[key])
	}
	return header, rows
}

// dots draws values of one size: a row for each diagram, a mark for each series.
func (d *drawing) dots(kind Kind, first string, list []*sized, unit, of string, print func(float64) string) {
	for _, part := range parts(labels(list)) {
		var rows []row
		for _, s := range list {
			r := row{label: s.name}
			for _, line := range s.lines(part) {
				for _, p := range line.points {
					// Here the value goes along x, and y is the style.
					r.points = append(r.points, point{p.y, float64(line.style), p.low, p.high})
				}
			}
			rows = append(rows, r)
		}
		low, high := rowBounds(rows)
		x := linearAxis(unit, 0, high*1.05, 1)
		if low <= 0 { // an interval may reach there
			low = high / 1e4
		}
		if high > 0 && (kind == Calls || high/low > 10) {
			x = logAxis(unit, low, high, func(v float64) string { return strings.TrimSuffix(print(v), " "+unit) })
		}
		n := sizes(list)[0]
		of := of + " of " + short(uint64(n))
		if list[0].axis != "size" {
			of = "calls for " + plural(int(n), "device", "devices")
		}
		c := &Chart{
			Title: fmt.Sprintf("%s: %s, %s to %s", first, of, print(lowest(rows)), print(highest(rows))),
			Alt: fmt.Sprintf("Dot plot of %s, in %s, with a row for each way and a mark for each of %s. The line through a mark is the 95 %% interval of the median.",
				unit, first, strings.Join(part, ", ")),
			legend: seriesLegend(part, false),
		}
		x.label = map[bool]string{true: "time of a call", false: unit}[kind == Calls]
		c.panels = []panel{rowPanel("", x, [2]float64{}, rows, Theme.mark)}
		c.Header, c.Rows = dotsTable(list, part, print)
		d.add(kind, first, c)
	}
}

func lowest(rows []row) float64 {
	low := math.Inf(1)
	for _, r := range rows {
		for _, p := range r.points {
			low = min(low, p.x)
		}
	}
	return low
}

func highest(rows []row) float64 {
	high := math.Inf(-1)
	for _, r := range rows {
		for _, p := range r.points {
			high = max(high, p.x)
		}
	}
	return high
}

// dotsTable has a row for each diagram and series.
func dotsTable(list []*sized, part []string, print func(float64) string) (header []string, rows [][]string) {
	for _, s := range list {
		for _, line := range s.lines(part) {
			for _, p := range line.points {
				rows = append(rows, []string{s.name, line.label, print(p.y), p.intervalText(print)})
			}
		}
	}
	return []string{"what", "contender", "median", "95 %"}, rows
}

// calls draws times by size: a diagram for each call, with a series for each state of the
// device.
func (d *drawing) calls() {
	var commands ordered[*ordered[*sized]]
	for _, c := range d.report.Cases {
		n, in, label, ok := sizeOf(c)
		if !ok || !usable(c) || c.Unit == "GB/s" || pairCase(c) || c.Stats.Growth != nil || c.Stats.Median <= 0 {
			continue
		}
		first, _ := command(c.ID)
		group, call := split(c.ID)
		calls := commands.at(first, func() *ordered[*sized] { return &ordered[*sized]{} })
		state := without(group, in)
		if state == "" {
			state = "idle"
		}
		calls.at(call, func() *sized { return &sized{name: call, axis: label} }).
			add(state, interval(n, c.Stats.Median, c.Stats.Low, c.Stats.High))
	}
	for _, first := range commands.keys {
		var list []*sized
		for _, key := range commands.of[first].keys {
			list = append(list, commands.of[first].of[key])
		}
		if oneSize(list) {
			d.dots(Calls, first, list, "time", "calls", formatTime)
			continue
		}
		for _, part := range parts(labels(list)) {
			d.callsOf(first, list, part)
		}
	}
}

// callsOf draws small diagrams that share their axes, so that they can be compared.
func (d *drawing) callsOf(first string, list []*sized, part []string) {
	low, high := bounds(all(list, part))
	if low <= 0 { // an interval may reach there
		low = high / 1e4
	}
	x, y := sizeAxis("", sizes(list)), logAxis("", low, high, formatTime)
	if list[0].axis != "size" {
		x = countAxis("", sizes(list))
	}
	c := &Chart{
		Title: fmt.Sprintf("%s: time of %s by %s", first, plural(len(list), "call", "calls"), list[0].axis),
		Alt: fmt.Sprintf("%d line charts, one for each call of %s: median time by %s, both on logarithmic axes, for %s. The band is the 95 %% interval. Lower is better.",
			len(list), first, list[0].axis, strings.Join(part, ", ")),
		legend: seriesLegend(part, true), panelWidth: 210,
	}
	for _, s := range list {
		c.panels = append(c.panels, linePanel(s.name, x, y, 150, s.lines(part)))
		for _, line := range s.lines(part) {
			for _, p := range line.points {
				c.Rows = append(c.Rows, []string{s.name, line.label, short(uint64(p.x)), formatTime(p.y), p.intervalText(formatTime)})
			}
		}
	}
	c.Header = []string{"call", "device", list[0].axis, "median", "95 %"}
	d.add(Calls, first, c)
}
