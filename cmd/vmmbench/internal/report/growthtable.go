package report

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/stat"
)

// growthGroups are the cases that grow to the same size by the same steps, under how far and by
// what steps. A case without figures is left out.
func growthGroups(r *Report) []Group[Case] {
	return GroupBy(without(r.Cases, func(c Case) bool {
		return c.Status != Passed || c.Stats == nil || c.Stats.Growth == nil
	}), growthName)
}

// growthName returns how far and by what steps a case grows, and what is unlike most.
func growthName(c Case) string {
	name := c.Axes.text("size") + " by " + c.Axes.text("step")
	switch write := c.Axes.text("write"); write {
	case "device", "-":
	case "none":
		name += ", nothing written"
	default:
		name += ", by " + write
	}
	if busy := c.Axes.text("busy"); busy != "0" && busy != "-" {
		name += ", busy " + busy
	}
	return name
}

// growthAgainst is the comparison of a case with growth in place, nil if there is none.
func growthAgainst(r *Report, c, vmm Case) *Comparison {
	i := slices.IndexFunc(r.Comparisons, func(x Comparison) bool {
		return x.A == c.ID && (vmm.ID == "" || x.B == vmm.ID) && !x.ofRuns() && x.Ratio != nil
	})
	if i < 0 {
		return nil
	}
	return &r.Comparisons[i]
}

// Pivot is a table of the cases that passed: a row for each value of the axes rows, a column
// for each value of the axis column, and in the cells what was measured. If cases of a row are
// compared, what they are compared with has, in brackets, how many times as long it takes; if
// there is one comparison in a row, it has columns of its own.
func Pivot(r *Report, rows []string, column string) (header []string, table [][]string) {
	layouts := map[string]layout{}
	for _, command := range byCommand(r) {
		layouts[command.Key] = layoutOf(r, command.Of)
	}
	value := func(c Case, axis string) string { return layouts[CommandOf(c.ID)].value(c, axis) }
	keys := func(c Case) (list []string) {
		for _, axis := range rows {
			list = append(list, value(c, axis))
		}
		return list
	}
	passed := without(r.Cases, func(c Case) bool { return c.Status != Passed || c.Stats == nil })
	columns := GroupBy(passed, func(c Case) string { return value(c, column) })
	lines := GroupBy(passed, func(c Case) string { return strings.Join(keys(c), "|") })
	single := column == axisMem
	for _, line := range lines {
		compared := without(line.Of, func(c Case) bool { return growthAgainst(r, c, Case{}) == nil })
		single = single && len(compared) < 2
	}
	header = slices.Clone(rows)
	for _, g := range columns {
		header = append(header, g.Key)
	}
	if single {
		header = append(header, "ratio of times", "95 %", "verdict")
	}
	for _, line := range lines {
		cells, pair := map[string]string{}, &Comparison{}
		for _, c := range line.Of {
			cell := c.figure()
			if x := growthAgainst(r, c, Case{}); x != nil && single {
				pair = x
			} else if x != nil {
				cell += fmt.Sprintf(" (%.3g)", 1 / *x.Ratio)
			}
			cells[value(c, column)] = cell
		}
		row := keys(line.Of[0])
		for _, g := range columns {
			row = append(row, cells[g.Key])
		}
		if single {
			row = append(row, pair.ratio(), pair.interval(), string(pair.Verdict))
		}
		table = append(table, row)
	}
	return header, table
}

// figure is what was measured, with its unit.
func (c *Case) figure() string {
	if isTime(c.Unit) {
		return formatTime(c.Stats.Median)
	}
	return fourDigits(c.Stats.Value) + " " + c.Unit
}

// Slower is a table of the comparisons in which memory that grows is slower than the other: of
// the variants of vmm the plain one only, and not against itself without growth. firm counts all of them, open those without a firm
// verdict whose ratio is above the margin too, all the comparisons that have a ratio.
func Slower(r *Report) (header []string, rows [][]string, firm, open, all int) {
	header = []string{"case", "mem", "", "against", "", "ratio of times", "95 %"}
	cases := byID(r.Cases)
	for _, x := range r.Comparisons {
		a, b := cases[x.A], cases[x.B]
		if x.ofRuns() || x.Ratio == nil || a.Stats == nil || b.Stats == nil || !strings.HasPrefix(b.Axes.text(axisMem), "vmm") {
			continue
		}
		all++
		switch {
		case x.Verdict == stat.Slower && (Contender(b.ID) != "vmm" || Contender(a.ID) == "vmm-whole"):
			firm++
		case x.Verdict == stat.Slower:
			firm++
			mem := Contender(b.ID)
			rows = append(rows, []string{strings.TrimSuffix(b.ID, "/"+mem), mem, b.figure(), Contender(a.ID), a.figure(), x.ratio(), x.interval()})
		case !x.Verdict.Firm() && *x.Ratio > 1+x.Margin:
			open++
		}
	}
	return header, rows, firm, open, all
}
