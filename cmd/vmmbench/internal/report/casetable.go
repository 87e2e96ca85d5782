package report

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cuvmm/cuvmm/cmd/internal/size"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/stat"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/verify"
)

// axisMem is the axis in which compared cases differ.
const axisMem = "mem"

// commands are the first parts of the cases' names, in order.
func commands(r *Report) []string {
	var list []string
	for _, c := range r.Cases {
		if command := commandOf(c.ID); !slices.Contains(list, command) {
			list = append(list, command)
		}
	}
	return list
}

func commandOf(id string) string {
	command, _, _ := strings.Cut(id, "/")
	return command
}

// casesOf returns the cases of a command.
func casesOf(r *Report, command string) []Case {
	var list []Case
	for _, c := range r.Cases {
		if commandOf(c.ID) == command {
			list = append(list, c)
		}
	}
	return list
}

// byID returns cases by their names.
func byID(list []Case) map[string]Case {
	cases := map[string]Case{}
	for _, c := range list {
		cases[c.ID] = c
	}
	return cases
}

// layout says in which axes the cases of a command lie. Memory has one axis: what else
// differs between compared cases, as the size of chunks, is a part of its name.
type layout struct {
	axes []string
	name bool // the last part of the case's name is the value of axisMem
}

func layoutOf(r *Report, command string) layout {
	var l layout
	list := casesOf(r, command)
	for _, c := range list {
		for _, a := range c.Axes {
			if !slices.Contains(l.axes, a.Name) {
				l.axes = append(l.axes, a.Name)
			}
		}
	}
	// What differs between compared cases, other than memory, is in their names.
	known := byID(list)
	for _, c := range r.Comparisons {
		a, found := known[c.A]
		b, both := known[c.B]
		if !found || !both || c.ofRuns() {
			continue
		}
		l.axes = slices.DeleteFunc(l.axes, func(name string) bool {
			return name != axisMem && a.Axes.text(name) != b.Axes.text(name)
		})
		l.name = true
	}
	return l
}

// value returns the value of an axis.
func (l layout) value(c Case, axis string) string {
	if axis == axisMem && l.name {
		return lastPart(c.ID)
	}
	return c.Axes.text(axis)
}

func (l layout) values(c Case) []string {
	list := make([]string, len(l.axes))
	for i, axis := range l.axes {
		list[i] = l.value(c, axis)
	}
	return list
}

func lastPart(id string) string { return id[strings.LastIndexByte(id, '/')+1:] }

// cases is the table of a command's cases, but for what this machine does not have.
func cases(r *Report, command string) grid {
	l := layoutOf(r, command)
	g := grid{
		title: strings.ToUpper(command), keys: l.axes,
		columns: []string{"median", "95 %", "unit", "n", "traffic", "forward", "reverse", "verified", "status"},
		lift:    []string{"unit", "n", "verified", "status"},
	}
	for _, c := range casesOf(r, command) {
		if c.Status == Waived {
			continue
		}
		row := gridRow{keys: l.values(c), cells: append(timing(c), verified(c), string(c.Status)), notes: slices.Clone(c.Flags)}
		if c.Reason != "" {
			row.notes = append(row.notes, string(c.Reason))
		}
		g.rows = append(g.rows, row)
	}
	return g
}

// failedPairs are the rows of pairs that did not pass. The others are in the matrices.
func failedPairs(g grid) grid {
	from := slices.Index(g.keys, axisFrom)
	g.rows = slices.DeleteFunc(g.rows, func(row gridRow) bool {
		return row.keys[from] != "-" && row.cells[len(row.cells)-1] == string(Passed)
	})
	return g
}

// timing has the values of the columns from median to reverse.
func timing(c Case) []string {
	s := c.Stats
	if s == nil {
		return []string{"", "", c.Unit, "0", "", "", ""}
	}
	list := []string{digits(s.Value, 4), "", c.Unit, fmt.Sprint(s.N), "", "", ""}
	if s.ValueLow != nil && s.ValueHigh != nil {
		list[1] = digits(*s.ValueLow, 4) + " to " + digits(*s.ValueHigh, 4)
	}
	if s.Traffic != nil {
		list[4] = digits(*s.Traffic, 4)
	}
	if s.Both != nil {
		list[5], list[6] = digits(s.Forward, 4), digits(s.Reverse, 4)
	}
	return list
}

// verified returns how much of a case was checked.
func verified(c Case) string {
	switch {
	case c.Verify == nil || c.Verify.Mode == verify.Off:
		return "no"
	case c.Verify.Mode == verify.Full && c.Verify.Bytes == c.Bytes:
		return "all"
	}
	return size.Format(c.Verify.Bytes)
}

// growths is the table of the steps of cases that grow.
func growths(r *Report, command string) grid {
	l := layoutOf(r, command)
	g := grid{
		title: strings.ToUpper(command) + ", its steps", keys: l.axes,
		columns: []string{"step p50", "p99", "max", "copied", "peak", "moves"},
	}
	for _, c := range casesOf(r, command) {
		if c.Stats == nil || c.Stats.Growth == nil {
			continue
		}
		x := c.Stats.Growth
		g.rows = append(g.rows, gridRow{
			keys:  l.values(c),
			cells: []string{formatTime(x.StepP50), formatTime(x.StepP99), formatTime(x.StepMax), size.Approx(x.Copied), size.Approx(x.Peak), fmt.Sprint(x.Moves)},
		})
	}
	return g
}

// soaks is the table of the slowest samples of cases that were repeated for long.
func soaks(r *Report, command string) grid {
	l := layoutOf(r, command)
	g := grid{title: strings.ToUpper(command) + ", repeated for long", keys: l.axes, columns: []string{"n", "p50", "p99", "p99.9", "slowest", "at"}}
	for _, c := range casesOf(r, command) {
		if c.Stats == nil || c.Stats.Soak == nil {
			continue
		}
		x := c.Stats.Soak
		row := gridRow{keys: l.values(c), cells: []string{fmt.Sprint(c.Stats.N), formatTime(x.P50), "", "", formatTime(x.Slowest), fmt.Sprintf("%.1f of %.1f s", x.SlowestAt, x.Seconds)}}
		for i, q := range []*float64{x.P99, x.P999} {
			if q != nil {
				row.cells[2+i] = formatTime(*q)
			}
		}
		g.rows = append(g.rows, row)
	}
	return g
}

// sharings is the table of what sharing adds to its cases.
func sharings(r *Report, command string) grid {
	l := layoutOf(r, command)
	g := grid{title: strings.ToUpper(command) + ", its readers", keys: l.axes, columns: []string{"p99", "reader fds"}}
	for _, c := range casesOf(r, command) {
		if c.Stats == nil || c.Stats.Sharing == nil {
			continue
		}
		row := gridRow{keys: l.values(c), cells: []string{formatTime(c.Stats.Sharing.P99), ""}}
		if n := c.Stats.ReaderFDs; n > 0 {
			row.cells[1] = fmt.Sprint(n)
		}
		g.rows = append(g.rows, row)
	}
	return g
}

// pools is the table of what pools held.
func pools(r *Report, command string) grid {
	l := layoutOf(r, command)
	g := grid{title: strings.ToUpper(command) + ", what it held", keys: l.axes, columns: []string{"live peak", "reserved peak", "of live", "no memory"}}
	for _, c := range casesOf(r, command) {
		if c.Stats == nil || c.Stats.Pooled == nil {
			continue
		}
		x := c.Stats.Pooled
		g.rows = append(g.rows, gridRow{keys: l.values(c), cells: []string{
			size.Approx(x.Live), size.Approx(x.Reserved), fmt.Sprintf("%.3f", float64(x.Reserved)/float64(max(x.Live, 1))), fmt.Sprint(x.Failures),
		}})
	}
	return g
}

// ratioColumns are the columns of a comparison.
var ratioColumns = []string{"ratio", "95 %", "margin", "verdict"}

// comparisons is the table of the comparisons of a command's cases, but for what this
// machine does not have. With runs, it is of those with the baseline.
func comparisons(r *Report, command string, runs bool) grid {
	l := layoutOf(r, command)
	g := grid{title: strings.ToUpper(command) + " compared, ratio of times", columns: ratioColumns, lift: []string{"margin"}}
	if runs {
		g.title = strings.ToUpper(command) + ", new run against old"
	}
	// Two runs of a case differ in nothing; two cases of a run differ in their memory.
	for _, axis := range l.axes {
		if runs || axis != axisMem {
			g.keys = append(g.keys, axis)
		}
	}
	if !runs {
		g.keys = append(g.keys, axisMem, "against")
	}
	cases := byID(casesOf(r, command))
	for _, c := range r.Comparisons {
		b, known := cases[c.B]
		if c.Verdict == stat.Waived || !known || c.ofRuns() != runs {
			continue
		}
		var row gridRow
		for _, axis := range g.keys {
			if axis == "against" {
				row.keys = append(row.keys, lastPart(c.A))
			} else {
				row.keys = append(row.keys, l.value(b, axis))
			}
		}
		row.cells, row.notes = ratio(c)
		g.rows = append(g.rows, row)
	}
	return g
}

// otherComparisons is the table of comparisons of cases that are not in the report.
func otherComparisons(r *Report) grid {
	g := grid{title: "Compared, ratio of times", keys: []string{"comparison"}, columns: ratioColumns, lift: []string{"margin"}}
	for _, c := range r.Comparisons {
		is := func(x Case) bool { return x.ID == c.B }
		if c.Verdict == stat.Waived || slices.ContainsFunc(r.Cases, is) {
			continue
		}
		row := gridRow{keys: []string{c.ID}}
		row.cells, row.notes = ratio(c)
		g.rows = append(g.rows, row)
	}
	return g
}

// ratio has the columns of a comparison.
func ratio(c Comparison) (cells, notes []string) {
	cells = []string{"", "", fmt.Sprintf("%g %%", c.Margin*100), string(c.Verdict)}
	if c.Ratio != nil {
		cells[0] = fmt.Sprintf("%.3f", *c.Ratio)
	}
	if c.Low != nil && c.High != nil {
		cells[1] = fmt.Sprintf("%.3f to %.3f", *c.Low, *c.High)
	}
	if c.Reason != "" {
		notes = append(notes, string(c.Reason))
	}
	return cells, notes
}
