package report

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/stat"
)

// Axes that tables know: what the memory is, how it is shared, and, of a pair of devices, the one that
// copies and the one whose memory it reaches.
const axisMem, axisHow, axisFrom, axisTo = "mem", "how", "from", "to"

// CommandOf is the first part of a name.
func CommandOf(id string) string {
	command, _, _ := strings.Cut(id, "/")
	return command
}

// Contender is the last part of a name, which tells compared cases apart.
func Contender(id string) string { return id[strings.LastIndexByte(id, '/')+1:] }

// byCommand are the cases of each command.
func byCommand(r *Report) []Group[Case] {
	return GroupBy(r.Cases, func(c Case) string { return CommandOf(c.ID) })
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

func layoutOf(r *Report, list []Case) (l layout) {
	for _, c := range list {
		for _, a := range c.Axes {
			l.axes = union(l.axes, []string{a.Name})
		}
	}
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

// value returns the value of an axis.
func (l layout) value(c Case, axis string) string {
	switch value := c.Axes.text(axis); {
	case axis == axisMem && l.name:
		return Contender(c.ID)
	// In a table, "none" is of mem alone: no access to a peer.
	case axis == "host" && value == "none":
		return "-"
	case axis == "write" && value == "none":
		return "nothing"
	default:
		return value
	}
}

// Pivot is a table of the cases that passed: a row for each value of the axes rows, a column
// for each value of the axis column, and in the cells what was measured. If cases of a row are
// compared, what they are compared with has, in brackets, how many times as long it takes, or a
// question mark if its verdict is not firm; if there is one comparison in a row, it has columns of its own.
func Pivot(r *Report, rows []string, column string) (header []string, table [][]string) {
	layouts := map[string]layout{}
	for _, command := range byCommand(r) {
		layouts[command.Key] = layoutOf(r, command.Of)
	}
	value := func(c Case, axis string) string { return layouts[CommandOf(c.ID)].value(c, axis) }
	passed := without(r.Cases, func(c Case) bool { return c.Status != Passed || c.Stats == nil })
	lines := GroupBy(passed, func(c Case) string {
		var keys []string
		for _, axis := range rows {
			keys = append(keys, value(c, axis))
		}
		return strings.Join(keys, "|")
	})
	single := column == axisMem
	for _, line := range lines {
		compared := without(line.Of, func(c Case) bool { return comparedWith(r, c, "") == nil })
		single = single && len(compared) < 2
	}
	g := newGrid("")
	for _, axis := range rows {
		for _, line := range lines {
			g.set(line.Key, axis, value(line.Of[0], axis))
		}
	}
	for _, of := range GroupBy(passed, func(c Case) string { return value(c, column) }) {
		g.set(lines[0].Key, of.Key, "") // columns come in the order of the cases
	}
	for _, line := range lines {
		pair := &Comparison{}
		for _, c := range line.Of {
			x, cell := comparedWith(r, c, ""), c.figure()
			switch {
			case x == nil:
			case single:
				pair = x
			case x.Verdict.Firm():
				cell += " (" + inverse(*x.Ratio) + ")"
			default:
				cell += " (?)"
			}
			g.set(line.Key, value(c, column), cell)
		}
		if single {
			g.set(line.Key, "ratio of times", pair.ratio())
			g.set(line.Key, "95 %", pair.interval())
			g.set(line.Key, "verdict", string(pair.Verdict))
		}
	}
	for _, row := range g.rows {
		table = append(table, append(row, make([]string, len(g.header)-len(row))...)[1:])
	}
	return g.header[1:], table
}

// SlowerCase is a comparison in which memory that grows is slower than the other.
type SlowerCase struct{ Case, Says string }

// Slower are such comparisons: of the variants of vmm the plain one only, and not against itself without
// growth. firm counts all of them, open those without a firm verdict whose ratio is above the margin
// too, all the comparisons that have a ratio.
func Slower(r *Report) (list []SlowerCase, firm, open, all int) {
	cases := byID(r.Cases)
	for _, x := range r.Comparisons {
		a, b := cases[x.A], cases[x.B]
		limit := Contender(x.A) == "pinned-copy" // no memory to choose
		if limit || x.ofRuns() || x.Ratio == nil || a.Stats == nil || b.Stats == nil || !strings.HasPrefix(b.Axes.text(axisMem), "vmm") {
			continue
		}
		all++
		if !x.Verdict.Firm() && *x.Ratio > 1+x.Margin {
			open++
		}
		if x.Verdict != stat.Slower {
			continue
		}
		firm++
		if Contender(b.ID) == "vmm" && Contender(a.ID) != "vmm-whole" {
			says := fmt.Sprintf("%s times as long as %s (%s)", fourDigits(*x.Ratio), Contender(a.ID), x.within())
			list = append(list, SlowerCase{strings.TrimSuffix(b.ID, "/vmm"), says})
		}
	}
	return list, firm, open, all
}
