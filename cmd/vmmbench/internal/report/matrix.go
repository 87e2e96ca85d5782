package report

import (
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
)

// Axes of cases for a pair of devices: the one that copies, and the one whose
// memory it reaches.
const axisFrom, axisTo = "from", "to"

// matrix has the cases that differ in the pair of devices only.
type matrix struct {
	name  string
	unit  string
	scale string   // matrices with the same scale share their shades
	devs  []string // rows and columns
	cells map[[2]string]Case
	flags []string // of all cells
}

// matrices groups the cases for pairs by their other axes, in order.
func matrices(r *Report) []*matrix {
	var list []*matrix
	byName := map[string]*matrix{}
	for _, c := range r.Cases {
		from, to := c.Axes.Of(axisFrom), c.Axes.Of(axisTo)
		if from == nil || to == nil {
			continue
		}
		var rest, scale []string
		for _, a := range c.Axes {
			if a.Name == axisFrom || a.Name == axisTo || a.Usual() {
				continue
			}
			rest = append(rest, a.String())
			if a.Name != "mem" {
				scale = append(scale, a.String())
			}
		}
		name := strings.Join(rest, " ")
		if name == "" {
			continue // without other axes there is nothing to compare
		}
		m := byName[name]
		if m == nil {
			m = &matrix{name: name, unit: c.Unit, scale: strings.Join(scale, " "), cells: map[[2]string]Case{}, flags: c.Flags}
			byName[name] = m
			list = append(list, m)
		}
		at := [2]string{c.Axes.text(axisFrom), c.Axes.text(axisTo)}
		m.cells[at] = c
		m.flags = slices.DeleteFunc(slices.Clone(m.flags), func(f string) bool { return !slices.Contains(c.Flags, f) })
		for _, dev := range at {
			if !slices.Contains(m.devs, dev) {
				m.devs = append(m.devs, dev)
			}
		}
	}
	return list
}

func (m *matrix) heading() string {
	return strings.Join(append([]string{m.name, m.unit}, m.flags...), ", ")
}

// shades mark a value, the last one the best that any kind of memory reached.
var shades = []string{"░", "▒", "▓", "█"}

// heat returns the shade of a value: of a bandwidth the largest is the best, of a time the
// smallest.
func heat(value, best float64, unit string) string {
	share := value / best
	if isTime(unit) {
		share = best / value
	}
	if !(share >= 0) { // also if both are 0
		return shades[0]
	}
	return shades[int(min(share*float64(len(shades)), float64(len(shades)-1)))]
}

// isTime reports whether less of a unit is better.
func isTime(unit string) bool { return unit == "ns" || unit == "us" || unit == "ms" }

// render makes the matrix a table. best is that of its scale.
func (m *matrix) render(best float64) table.Writer {
	t := table.NewWriter()
	header := table.Row{"from \\ to"}
	for _, to := range m.devs {
		header = append(header, to)
	}
	t.AppendHeader(header)
	// Eight devices fit with three digits.
	precision := 4
	if len(m.devs) > 6 {
		precision = 3
	}
	// A pair that was not measured, as a device and itself, is a dash.
	for _, from := range m.devs {
		row := table.Row{from}
		for _, to := range m.devs {
			c, ok := m.cells[[2]string{from, to}]
			switch {
			case !ok:
				row = append(row, "-")
			case c.Stats == nil || c.Status != Passed:
				row = append(row, string(c.Status))
			default:
				row = append(row, heat(c.Stats.Value, best, m.unit)+" "+digits(c.Stats.Value, precision))
			}
		}
		t.AppendRow(row)
	}
	return t
}

// bestByScale returns the best value of each scale.
func bestByScale(list []*matrix) map[string]float64 {
	best := map[string]float64{}
	for _, m := range list {
		for _, c := range m.cells {
			if c.Stats == nil || c.Status != Passed {
				continue
			}
			value := c.Stats.Value
			if other, ok := best[m.scale]; !ok || (value > other) != isTime(m.unit) {
				best[m.scale] = value
			}
		}
	}
	return best
}
