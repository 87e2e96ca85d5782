package report

import (
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
)

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
	var names []string
	byName := map[string][]Case{}
	for _, c := range r.Cases {
		name := pairName(c)
		if name == "" {
			continue
		}
		if byName[name] == nil {
			names = append(names, name)
		}
		byName[name] = append(byName[name], c)
	}
	for _, name := range names {
		cases := byName[name]
		flags := slices.Clone(cases[0].Flags) // of all cells
		var devices []string
		cells := map[[2]string]string{}
		for _, c := range cases {
			flags = slices.DeleteFunc(flags, func(f string) bool { return !slices.Contains(c.Flags, f) })
			at := [2]string{c.Axes.text(axisFrom), c.Axes.text(axisTo)}
			for _, device := range at {
				if !slices.Contains(devices, device) {
					devices = append(devices, device)
				}
			}
			cells[at] = string(c.Status)
			if c.Stats != nil && c.Status == Passed {
				cells[at] = digits(c.Stats.Value, 4)
			}
		}
		t := table.NewWriter()
		header := table.Row{"from \\ to"}
		for _, to := range devices {
			header = append(header, to)
		}
		t.AppendHeader(header)
		// A pair that was not measured, as a device and itself, is a dash.
		for _, from := range devices {
			row := table.Row{from}
			for _, to := range devices {
				row = append(row, orDash(cells[[2]string{from, to}]))
			}
			t.AppendRow(row)
		}
		list = append(list, Piece{Heading: strings.Join(append([]string{name, cases[0].Unit}, flags...), ", "), Table: t})
	}
	return list
}

// isTime reports whether less of a unit is better.
func isTime(unit string) bool { return unit == "ns" || unit == "us" || unit == "ms" }
