package report

import (
	"cmp"
	"slices"
	"strings"
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
