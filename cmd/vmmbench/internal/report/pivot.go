package report

import (
	"fmt"
	"strings"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/stat"
)

// Axes that tables know: what the memory is, and, of a pair of devices, the one that copies and the
// one whose memory it reaches.
const axisMem, axisFrom, axisTo = "mem", "from", "to"

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

// axisValue returns the value of an axis for a table. Memory has one axis: what else differs between
// compared cases, as the size of chunks, is a part of its name.
func axisValue(c Case, axis string) string {
	switch value := c.Axes.text(axis); {
	case axis == axisMem && strings.HasPrefix(Contender(c.ID), value):
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
	passed := without(r.Cases, func(c Case) bool { return c.Status != Passed || c.Stats == nil })
	against := map[string]*Comparison{}
	for i, x := range r.Comparisons {
		if against[x.A] == nil && !x.ofRuns() && x.Ratio != nil {
			against[x.A] = &r.Comparisons[i]
		}
	}
	key := func(c Case) (keys string) {
		for _, axis := range rows {
			keys += axisValue(c, axis) + "|"
		}
		return keys
	}
	g, compared, single := newGrid(""), map[string]int{}, column == axisMem
	for _, c := range passed {
		for _, axis := range rows {
			g.set(key(c), axis, axisValue(c, axis))
		}
		if against[c.ID] != nil {
			compared[key(c)]++
			single = single && compared[key(c)] < 2
		}
	}
	for _, c := range passed {
		x, cell := against[c.ID], c.figure()
		switch {
		case x == nil || single:
		case x.Verdict.Firm():
			cell += " (" + inverse(*x.Ratio) + ")"
		default:
			cell += " (?)"
		}
		g.set(key(c), axisValue(c, column), cell)
	}
	for _, c := range passed {
		if x := against[c.ID]; x != nil && single {
			g.set(key(c), "ratio of times", x.ratio())
			g.set(key(c), "95 %", x.interval())
			g.set(key(c), "verdict", string(x.Verdict))
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
