package report

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cuvmm/cuvmm/cmd/internal/size"
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
func growthAgainst(r *Report, c Case) *Comparison {
	i := slices.IndexFunc(r.Comparisons, func(x Comparison) bool { return x.A == c.ID && !x.ofRuns() && x.Ratio != nil })
	if i < 0 {
		return nil
	}
	return &r.Comparisons[i]
}

// GrowthTimes is a table of the time that growing takes, with a row for each kind of memory
// and a column for each size. In brackets, how many times as long as in place.
func GrowthTimes(r *Report) (header []string, rows [][]string) {
	header = []string{"time to grow to"}
	byMemory := map[string][]string{}
	var memory []string
	groups := growthGroups(r)
	for i, g := range groups {
		header = append(header, g.name)
		for _, c := range g.cases {
			label := lastPart(c.ID)
			if byMemory[label] == nil {
				memory, byMemory[label] = append(memory, label), make([]string, len(groups))
			}
			cell := formatTime(c.Stats.Median)
			if x := growthAgainst(r, c); x != nil {
				cell += fmt.Sprintf(" (%.3g)", 1 / *x.Ratio)
			}
			byMemory[label][i] = cell
		}
	}
	for _, label := range memory {
		rows = append(rows, append([]string{label}, byMemory[label]...))
	}
	return header, rows
}

// GrowthDetails is a table of what growing takes, with a row for each case.
func GrowthDetails(r *Report) (header []string, rows [][]string) {
	header = []string{"to", "mem", "time", "95 %", "times as long as in place", "95 %", "in place is", "step p50", "p99", "copied", "peak", "moves"}
	for _, g := range growthGroups(r) {
		for _, c := range g.cases {
			s, x := c.Stats, c.Stats.Growth
			row := []string{g.name, lastPart(c.ID), formatTime(s.Median), "", "", "", ""}
			if s.Low != nil && s.High != nil {
				row[3] = formatTime(*s.Low) + " to " + formatTime(*s.High)
			}
			if against := growthAgainst(r, c); against != nil {
				row[4], row[6] = fmt.Sprintf("%.3g", 1 / *against.Ratio), string(against.Verdict)
				if against.Low != nil && against.High != nil {
					row[5] = fmt.Sprintf("%.3g to %.3g", 1 / *against.High, 1 / *against.Low)
				}
			}
			rows = append(rows, append(row, formatTime(x.StepP50), formatTime(x.StepP99), size.Approx(x.Copied), size.Approx(x.Peak), fmt.Sprint(x.Moves)))
		}
	}
	return header, rows
}

// Slower is a table of the comparisons in which memory that grows is slower than the other.
// open counts those without a firm verdict whose ratio is above the margin too, all the
// comparisons that have a ratio.
func Slower(r *Report) (header []string, rows [][]string, open, all int) {
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
		case x.Verdict == stat.Slower:
			cells, _ := ratio(x)
			figure := func(c Case) string { return digits(c.Stats.Value, 4) + " " + c.Unit }
			rows = append(rows, []string{
				strings.TrimSuffix(b.ID, "/"+lastPart(b.ID)), lastPart(b.ID), figure(b), lastPart(a.ID), figure(a), cells[0], cells[1],
			})
		case !x.Verdict.Firm() && *x.Ratio > 1+x.Margin:
			open++
		}
	}
	return header, rows, open, all
}
