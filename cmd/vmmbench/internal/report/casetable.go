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
	value := c.Axes.text(axis)
	// In a table, "none" is of mem alone: no access to a peer.
	if instead := noneOf[axis]; instead != "" && value == "none" {
		return instead
	}
	return value
}

// noneOf is what a table has where an axis is none.
var noneOf = map[string]string{"host": "-", "write": "nothing"}

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

// metricTables are tables of what only some cases of a command have.
func metricTables(r *Report, command string, names ...string) (list []grid) {
	l := layoutOf(r, command)
	for _, name := range names {
		g := grid{title: strings.ToUpper(command) + ", " + name, keys: l.axes}
		for _, m := range metrics {
			if m.table == name {
				g.columns = append(g.columns, m.label)
			}
		}
		for _, c := range casesOf(r, command) {
			row := gridRow{keys: l.values(c), cells: make([]string, len(g.columns))}
			has := false
			for _, m := range c.Metrics() {
				if m.table != name {
					continue
				}
				has = true
				if x, _ := m.number(); m.Name == "reader_fds" && x == 0 {
					continue // it has no reader
				}
				row.cells[slices.Index(g.columns, m.label)] = m.String()
			}
			if has {
				g.rows = append(g.rows, row)
			}
		}
		list = append(list, g)
	}
	return list
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
