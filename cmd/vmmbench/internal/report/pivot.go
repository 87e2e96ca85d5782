package report

import (
	"strings"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/stat"
)

// Axes that tables know: the kind of memory; of a pair of devices, the one that copies and the other, whose
// memory it reaches.
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
	value := c.Axes.text(axis)
	if axis == axisMem && strings.HasPrefix(Contender(c.ID), value) {
		return Contender(c.ID)
	}
	return value
}

// Pivot is a table in Markdown of the cases that passed: a row for each value of the axes rows, a
// column for each value of the axis column, and in the cells what was measured. A case with which another
// is compared has, in brackets, how many times as long it takes, and a question mark if the verdict is not
// firm. It is empty if there is nothing.
func Pivot(r *Report, rows []string, column string) string {
	against := map[string]string{}
	for _, x := range r.Comparisons {
		if against[x.A] != "" || x.ofRuns() || x.Ratio == nil {
			continue
		}
		doubt := "?"
		if x.Verdict.Firm() {
			doubt = ""
		}
		against[x.A] = " (" + inverse(*x.Ratio) + doubt + ")"
	}
	g := newGrid("")
	cases := without(r.Cases, func(c Case) bool { return c.Status != Passed || c.Stats == nil })
	for _, of := range GroupBy(cases, func(c Case) (key string) {
		for _, axis := range rows {
			key += axisValue(c, axis) + "|"
		}
		return key
	}) {
		for _, axis := range rows {
			g.set(of.Key, axis, axisValue(of.Of[0], axis))
		}
		for _, c := range of.Of {
			g.set(of.Key, axisValue(c, column), c.figure()+against[c.ID])
		}
	}
	for i, row := range g.rows {
		g.rows[i] = row[1:]
	}
	return newTable(g.header[1:], g.rows).RenderMarkdown()
}

// Slower counts comparisons with memory that grows: all of them, those in which it is slower, and those in which
// its ratio is above the margin without a firm verdict. Of the slower ones list has plain vmm against others.
func Slower(r *Report) (list []string, slower, open, all int) {
	for _, x := range r.Comparisons {
		other := Contender(x.A)
		limit := other == "pinned-copy" // which chooses no memory
		if limit || x.ofRuns() || x.Ratio == nil || !strings.HasPrefix(Contender(x.B), "vmm") {
			continue
		}
		all++
		switch {
		case x.Verdict == stat.Slower:
			slower++
			if Contender(x.B) == "vmm" && other != "vmm-whole" {
				list = append(list, x.says())
			}
		case !x.Verdict.Firm() && *x.Ratio > 1+x.Margin:
			open++
		}
	}
	return list, slower, open, all
}
