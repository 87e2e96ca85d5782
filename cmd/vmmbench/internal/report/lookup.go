package report

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/stat"
)

// Figure returns a figure of the report by what it is, as a document prints it:
//
//	time of grow/8GiB/vmm                              the median
//	interval of grow/8GiB/vmm                          its 95 % interval
//	value of bw/d2d/none/1GiB/vmm                      the median in its unit
//	peak_bytes of grow/8GiB/vmm                        any metric, by its name in JSON
//	peak_bytes of grow/8GiB/vmm per byte               over what the case handles
//	ratio of grow/8GiB/mremap to grow/8GiB/vmm         of a comparison: of times, taken in pairs
//	interval of grow/8GiB/mremap to grow/8GiB/vmm      its 95 % interval
//	medians of grow/8GiB/mremap to grow/8GiB/vmm       one median over the other
//	equal of bw                                        how many comparisons below a name have a verdict
//	comparisons of bw                                  how many there are that have a ratio
//
// A time or a value of too few samples for an interval is an error.
func (r *Report) Figure(what string) (string, error) {
	name, of, ok := strings.Cut(what, " of ")
	if !ok {
		return "", fmt.Errorf("%q: want FIGURE of CASE", what)
	}
	of, perByte := strings.CutSuffix(of, " per byte")
	from, to, pair := strings.Cut(of, " to ")
	cases := byID(r.Cases)
	a, found := cases[from]
	switch {
	case pair:
		return r.pairFigure(name, a, cases[to])
	case !found || a.Stats == nil:
		return r.count(name, of)
	case a.Stats.Low == nil && slices.Contains([]string{"time", "value"}, name):
		return "", fmt.Errorf("%s has %d samples: too few to be published", from, a.Stats.N)
	case name == "time":
		return formatTime(a.Stats.Median), nil
	case name == "interval" && a.Stats.Low != nil:
		return interval(a.Stats.Low, a.Stats.High, a.Stats.Level, formatTime), nil
	case name == "value":
		return a.figure(), nil
	}
	for _, m := range a.Metrics() {
		if m.Name != name {
			continue
		}
		if x, ok := m.number(); ok && perByte && a.Bytes > 0 {
			return fmt.Sprintf("%.2f", x/float64(a.Bytes)), nil
		}
		return m.String(), nil
	}
	return "", fmt.Errorf("%s has no %s", from, name)
}

// pairFigure is how case a relates to case b.
func (r *Report) pairFigure(name string, a, b Case) (string, error) {
	if a.Stats == nil || b.Stats == nil {
		return "", fmt.Errorf("%s of two cases: one is not there", name)
	}
	if name == "medians" {
		return threeDigits(a.Stats.Median / b.Stats.Median), nil
	}
	// Of b over a, the figures are the other way round.
	inverse := func(x float64) string { return threeDigits(1 / x) }
	for _, x := range r.Comparisons {
		switch of := x.A + " " + x.B; {
		case x.Ratio == nil || x.Low == nil || x.High == nil:
		case name == "ratio" && of == b.ID+" "+a.ID:
			return threeDigits(*x.Ratio), nil
		case name == "ratio" && of == a.ID+" "+b.ID:
			return inverse(*x.Ratio), nil
		case name == "interval" && of == b.ID+" "+a.ID:
			return interval(x.Low, x.High, x.Level, threeDigits), nil
		case name == "interval" && of == a.ID+" "+b.ID:
			return interval(x.High, x.Low, x.Level, inverse), nil
		}
	}
	return "", fmt.Errorf("no %s of %s to %s", name, a.ID, b.ID)
}

// count is how many comparisons of cases below a name have a verdict, with a hyphen for each
// space of it.
func (r *Report) count(verdict, below string) (string, error) {
	wanted := stat.Verdict(strings.ReplaceAll(verdict, "-", " "))
	n, all := 0, 0
	for _, x := range r.Comparisons {
		if x.ofRuns() || x.Ratio == nil || !strings.HasPrefix(x.B, strings.TrimSuffix(below, "/")+"/") {
			continue
		}
		all++
		if x.Verdict == wanted || verdict == "comparisons" {
			n++
		}
	}
	if all == 0 || verdict != "comparisons" && !slices.Contains(stat.Verdicts(), wanted) {
		return "", fmt.Errorf("no case, and no verdicts: %s of %s", verdict, below)
	}
	return fmt.Sprint(n), nil
}

func threeDigits(x float64) string { return fmt.Sprintf("%.3g", x) }

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
			} else if x != nil && !x.Verdict.Firm() {
				cell += " (?)"
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

// SlowerCase is a comparison in which memory that grows is slower than the other.
type SlowerCase struct{ Case, Says string }

// Slower are such comparisons: of the variants of vmm the plain one only, and not against itself without
// growth. firm counts all of them, open those without a firm verdict whose ratio is above the margin
// too, all the comparisons that have a ratio.
func Slower(r *Report) (list []SlowerCase, firm, open, all int) {
	cases := byID(r.Cases)
	for _, x := range r.Comparisons {
		a, b := cases[x.A], cases[x.B]
		if Contender(x.A) == "pinned-copy" { // the limit, and no memory to choose
			continue
		}
		if x.ofRuns() || x.Ratio == nil || a.Stats == nil || b.Stats == nil || !strings.HasPrefix(b.Axes.text(axisMem), "vmm") {
			continue
		}
		all++
		switch {
		case x.Verdict == stat.Slower && (Contender(b.ID) != "vmm" || Contender(a.ID) == "vmm-whole"):
			firm++
		case x.Verdict == stat.Slower:
			firm++
			list = append(list, SlowerCase{strings.TrimSuffix(b.ID, "/vmm"), fmt.Sprintf("%s times as long as %s (%s)", fourDigits(*x.Ratio), Contender(a.ID), x.within())})
		case !x.Verdict.Firm() && *x.Ratio > 1+x.Margin:
			open++
		}
	}
	return list, firm, open, all
}
