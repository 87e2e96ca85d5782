package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/cuvmm/cuvmm/cmd/internal/size"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/stat"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/verify"
)

// Axes in which compared cases differ: their memory, or how it is shared.
const axisMem, axisHow = "mem", "how"

// byCommand are the cases of each command, the first part of their names.
func byCommand(r *Report) []Group[Case] {
	return GroupBy(r.Cases, func(c Case) string { return CommandOf(c.ID) })
}

// CommandOf is the first part of a name.
func CommandOf(id string) string {
	command, _, _ := strings.Cut(id, "/")
	return command
}

// Contender is the last part of a name, which tells compared cases apart.
func Contender(id string) string { return id[strings.LastIndexByte(id, '/')+1:] }

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

func layoutOf(r *Report, list []Case) layout {
	l := layout{axes: axesOf(list)}
	// What differs between compared cases, other than memory, is in their names.
	known := byID(list)
	for _, c := range r.Comparisons {
		a, found := known[c.A]
		b, both := known[c.B]
		if !found || !both || c.ofRuns() {
			continue
		}
		l.axes = slices.DeleteFunc(l.axes, func(name string) bool {
			return name != axisMem && name != axisHow && a.Axes.text(name) != b.Axes.text(name)
		})
		l.name = true
	}
	return l
}

// axesOf returns the axes of all cases, in the order in which they come.
func axesOf(list []Case) (names []string) {
	for _, c := range list {
		for _, a := range c.Axes {
			if !slices.Contains(names, a.Name) {
				names = append(names, a.Name)
			}
		}
	}
	return names
}

// value returns the value of an axis.
func (l layout) value(c Case, axis string) string {
	if axis == axisMem && l.name {
		return Contender(c.ID)
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

// cells are the values of all axes, by their names.
func (l layout) cells(c Case) map[string]string {
	cells := map[string]string{}
	for _, axis := range l.axes {
		cells[axis] = l.value(c, axis)
	}
	return cells
}

// cases is a table of a command's cases, but for what this machine does not have: how long they
// took, or with a name that table of metrics, which only some cases have.
func cases(r *Report, command Group[Case], name string) grid {
	l := layoutOf(r, command.Of)
	g := grid{title: strings.ToUpper(command.Key), keys: l.axes}
	if name == "" {
		g.columns = []string{"median", "95 %", "unit", "bandwidth", "n", "traffic", "forward", "reverse", "verified", "status"}
		g.lift = []string{"unit", "n", "verified", "status"}
	} else {
		g.title += ", " + name
		for _, m := range metrics {
			if m.table == name {
				g.columns = append(g.columns, m.label)
			}
		}
	}
	for _, c := range command.Of {
		row, has := gridRow{cells: l.cells(c)}, name == "" && c.Status != Waived
		if has {
			row.notes = slices.Clone(c.Flags)
			if c.Reason != "" {
				row.notes = append(row.notes, string(c.Reason))
			}
			row.cells["unit"], row.cells["n"], row.cells["verified"], row.cells["status"] = c.Unit, "0", verified(c), string(c.Status)
			if c.Stats != nil {
				row.cells["95 %"] = interval(c.Stats.ValueLow, c.Stats.ValueHigh, c.Stats.Level, fourDigits)
			}
		}
		for _, m := range c.Metrics() {
			if m.table != name || m.label == "" {
				continue
			}
			has = has || name != ""
			if x, _ := m.number(); m.Name != "reader_fds" || x > 0 { // 0: it has no reader
				row.cells[m.label] = m.String()
			}
		}
		if has {
			g.rows = append(g.rows, row)
		}
	}
	return g
}

// failedPairs are the rows of pairs that did not pass. The others are in the matrices.
func failedPairs(g grid) grid {
	g.rows = without(g.rows, func(row gridRow) bool { return row.cells[axisFrom] != "-" && row.cells["status"] == string(Passed) })
	return g
}

// interval prints an interval for a column called 95 %, nothing if there is none.
func interval(low, high *float64, level float64, print func(float64) string) string {
	if low == nil || high == nil {
		return ""
	}
	s := print(*low) + " to " + print(*high)
	if level > stat.Usual {
		s += " (range)"
	}
	return s
}

// within prints an interval for a sentence.
func within(low, high *float64, level float64, print func(float64) string) string {
	s := interval(low, high, stat.Usual, print)
	switch {
	case s == "":
		return "too few samples"
	case level > stat.Usual:
		return "range " + s
	}
	return "95 % " + s
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

// comparisons is the table of the comparisons of a command's cases, but for what this
// machine does not have. With runs, it is of those with the baseline.
func comparisons(r *Report, command Group[Case], runs bool) grid {
	l := layoutOf(r, command.Of)
	// Two runs of a case differ in nothing; two cases of a run differ in their memory.
	title, keys := ", new run against old", l.axes
	if !runs {
		title = " compared, ratio of times"
		differs := func(axis string) bool { return axis == axisMem || axis == axisHow }
		keys = append(without(l.axes, differs), slices.DeleteFunc(slices.Clone(l.axes), func(axis string) bool { return !differs(axis) })...)
		keys = append(keys, "against")
	}
	known := byID(command.Of)
	return ratios(r, strings.ToUpper(command.Key)+title, keys, func(c Comparison) map[string]string {
		b, ok := known[c.B]
		if !ok || c.ofRuns() != runs {
			return nil
		}
		cells := l.cells(b)
		cells["against"] = Contender(c.A)
		return cells
	})
}

// otherComparisons is the table of comparisons of cases that are not in the report.
func otherComparisons(r *Report) grid {
	known := byID(r.Cases)
	return ratios(r, "Compared, ratio of times", []string{"comparison"}, func(c Comparison) map[string]string {
		if _, ok := known[c.B]; ok {
			return nil
		}
		return map[string]string{"comparison": c.ID}
	})
}

// ratios is a table of comparisons. The function returns the keys of one, nil if it is not shown.
func ratios(r *Report, title string, keys []string, of func(Comparison) map[string]string) grid {
	g := grid{title: title, keys: keys, columns: []string{"ratio", "95 %", "margin", "verdict"}, lift: []string{"margin"}}
	for _, c := range r.Comparisons {
		cells := of(c)
		if c.Verdict == stat.Waived || cells == nil {
			continue
		}
		row := gridRow{cells: cells}
		cells["margin"], cells["verdict"] = fmt.Sprintf("%g %%", c.Margin*100), string(c.Verdict)
		cells["ratio"], cells["95 %"] = c.ratio(), c.interval()
		if c.Reason != "" {
			row.notes = []string{string(c.Reason)}
		}
		g.rows = append(g.rows, row)
	}
	return g
}

// ratio and interval print what a comparison has found, if it has.
func (c *Comparison) ratio() string {
	if c.Ratio == nil {
		return ""
	}
	return threePlaces(*c.Ratio)
}

func (c *Comparison) interval() string { return interval(c.Low, c.High, c.Level, threePlaces) }

// within and turned print the interval for a sentence: of the ratio, and of that of A over B.
func (c *Comparison) within() string { return within(c.Low, c.High, c.Level, fourDigits) }

func (c *Comparison) turned() string {
	return within(c.High, c.Low, c.Level, func(x float64) string { return threeDigits(1 / x) })
}

func threePlaces(x float64) string { return fmt.Sprintf("%.3f", x) }

// Axes of cases for a pair of devices: the one that copies, and the one whose
// memory it reaches.
const axisFrom, axisTo = "from", "to"

// pairName is what cases of one matrix have in common: their axes but for the pair. It is
// empty for other cases, and where there is nothing else.
func pairName(c Case) string {
	if c.Axes.Of(axisFrom) == nil || c.Axes.Of(axisTo) == nil {
		return ""
	}
	var rest []string
	for _, a := range c.Axes {
		if a.Name != axisFrom && a.Name != axisTo && !a.Usual() {
			rest = append(rest, a.String())
		}
	}
	return strings.Join(rest, " ")
}

// matrices are tables of the cases that differ in the pair of devices only.
func matrices(r *Report) (list []Piece) {
	for _, g := range GroupBy(r.Cases, pairName) {
		if g.Key == "" {
			continue
		}
		flags := g.Of[0].Flags // of all cells
		var devices []string
		cells := map[[2]string]string{}
		for _, c := range g.Of {
			flags = without(flags, func(f string) bool { return !slices.Contains(c.Flags, f) })
			at := [2]string{c.Axes.text(axisFrom), c.Axes.text(axisTo)}
			devices = union(devices, at[:])
			cells[at] = string(c.Status)
			if c.Stats != nil && c.Status == Passed {
				cells[at] = fourDigits(c.Stats.Value)
			}
		}
		header, rows := square(devices, func(from, to string) string { return cells[[2]string{from, to}] })
		list = append(list, Piece{Heading: strings.Join(append([]string{g.Key, g.Of[0].Unit}, flags...), ", "), Table: NewTable(header, rows, 0)})
	}
	return list
}

// square has a row and a column for each device. A pair without a text, as a device and itself,
// is a dash.
func square(devices []string, text func(from, to string) string) (header []string, rows [][]string) {
	for _, from := range devices {
		row := []string{from}
		for _, to := range devices {
			row = append(row, cmp.Or(text(from, to), "-"))
		}
		rows = append(rows, row)
	}
	return append([]string{"from \\ to"}, devices...), rows
}

// isTime reports whether less of a unit is better.
func isTime(unit string) bool { return unit == "ns" || unit == "us" || unit == "ms" }
