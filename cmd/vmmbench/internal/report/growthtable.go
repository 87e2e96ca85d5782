package report

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/stat"
)

// growthGroup has the cases that grow to the same size by the same steps.
type growthGroup struct {
	name  string // how far, and by what steps
	cases []Case
}

// growthGroups are in the order of their cases. A case without figures is left out.
func growthGroups(r *Report) []*growthGroup {
	var list []*growthGroup
	for _, c := range r.Cases {
		if c.Status != Passed || c.Stats == nil || c.Stats.Growth == nil {
			continue
		}
		name := growthName(c)
		i := slices.IndexFunc(list, func(g *growthGroup) bool { return g.name == name })
		if i < 0 {
			i, list = len(list), append(list, &growthGroup{name: name})
		}
		list[i].cases = append(list[i].cases, c)
	}
	return list
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
	type line struct {
		keys  []string
		cells map[string]string
		pairs []Comparison
	}
	var lines []*line
	byKeys := map[string]*line{}
	var columns []string
	single := column == axisMem
	for _, c := range r.Cases {
		if c.Status != Passed || c.Stats == nil {
			continue
		}
		l := layoutOf(r, commandOf(c.ID))
		var keys []string
		for _, axis := range rows {
			keys = append(keys, l.value(c, axis))
		}
		at := byKeys[strings.Join(keys, "|")]
		if at == nil {
			at = &line{keys: keys, cells: map[string]string{}}
			byKeys[strings.Join(keys, "|")], lines = at, append(lines, at)
		}
		name := l.value(c, column)
		if !slices.Contains(columns, name) {
			columns = append(columns, name)
		}
		at.cells[name] = c.figure()
		if x := growthAgainst(r, c, Case{}); x != nil {
			at.pairs = append(at.pairs, *x)
			at.cells[name] += fmt.Sprintf(" (%.3g)", 1 / *x.Ratio)
		}
		single = single && len(at.pairs) < 2
	}
	header = append(slices.Clone(rows), columns...)
	if single {
		header = append(header, "ratio of times", "95 %", "verdict")
	}
	for _, at := range lines {
		row := at.keys
		for _, name := range columns {
			cell := at.cells[name]
			if single {
				cell, _, _ = strings.Cut(cell, " (")
			}
			row = append(row, cell)
		}
		if single && len(at.pairs) == 1 {
			cells, _ := ratio(at.pairs[0])
			row = append(row, cells[0], cells[1], cells[3])
		} else if single {
			row = append(row, "", "", "")
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
	return digits(c.Stats.Value, 4) + " " + c.Unit
}

// Slower is a table of the comparisons in which memory that grows is slower than the other: of
// the variants of vmm the plain one only, and not against itself without growth. firm counts all of them, open those without a firm
// verdict whose ratio is above the margin too, all the comparisons that have a ratio.
func Slower(r *Report) (header []string, rows [][]string, firm, open, all int) {
	header = []string{"case", "mem", "", "against", "", "ratio of times", "95 %"}
	byID := map[string]Case{}
	for _, c := range r.Cases {
		byID[c.ID] = c
	}
	for _, x := range r.Comparisons {
		a, b := byID[x.A], byID[x.B]
		if x.ofRuns() || x.Ratio == nil || a.Stats == nil || b.Stats == nil || !strings.HasPrefix(b.Axes.text(axisMem), "vmm") {
			continue
		}
		all++
		switch {
		case x.Verdict == stat.Slower && (lastPart(b.ID) != "vmm" || lastPart(a.ID) == "vmm-whole"):
			firm++
		case x.Verdict == stat.Slower:
			firm++
			cells, _ := ratio(x)
			rows = append(rows, []string{
				strings.TrimSuffix(b.ID, "/"+lastPart(b.ID)), lastPart(b.ID), b.figure(), lastPart(a.ID), a.figure(), cells[0], cells[1],
			})
		case !x.Verdict.Firm() && *x.Ratio > 1+x.Margin:
			open++
		}
	}
	return header, rows, firm, open, all
}
