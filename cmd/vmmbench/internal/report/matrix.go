package report

import (
	"fmt"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
)

// Axes of cases for a pair of devices: the one that copies, and the one whose
// memory it reaches.
const axisFrom, axisTo = "from", "to"

// matrix has the cases that differ in the pair of devices only.
type matrix struct {
	name, valueUnit string
	scale           string   // matrices with the same scale share their shades
	devs            []string // rows and columns
	cells           map[[2]string]Case
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
			if a.Name == axisFrom || a.Name == axisTo {
				continue
			}
			rest = append(rest, text(a.Value))
			if a.Name != "mem" {
				scale = append(scale, text(a.Value))
			}
		}
		name := strings.Join(rest, " ")
		if name == "" {
			continue // without other axes there is nothing to compare
		}
		m := byName[name]
		if m == nil {
			m = &matrix{name: name, valueUnit: c.Unit, scale: strings.Join(scale, " "), cells: map[[2]string]Case{}}
			byName[name] = m
			list = append(list, m)
		}
		at := [2]string{text(from), text(to)}
		m.cells[at] = c
		for _, dev := range at {
			if !slices.Contains(m.devs, dev) {
				m.devs = append(m.devs, dev)
			}
		}
	}
	return list
}

// shades mark a value, from small to large against the greatest value that any
// kind of memory reached.
var shades = []string{"░", "▒", "▓", "█"}

// heat returns the shade of a value.
func heat(value, most float64) string {
	if most <= 0 {
		return shades[0]
	}
	return shades[min(int(value/most*float64(len(shades))), len(shades)-1)]
}

// render makes the matrix a table. most is the greatest value of its scale.
func (m *matrix) render(most float64) table.Writer {
	t := table.NewWriter()
	header := table.Row{"from \\ to"}
	for _, to := range m.devs {
		header = append(header, to)
	}
	t.AppendHeader(header)
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
				row = append(row, fmt.Sprintf("%s %.4g", heat(c.Stats.Value, most), c.Stats.Value))
			}
		}
		t.AppendRow(row)
	}
	return t
}

// maxByScale returns the greatest value of each scale.
func maxByScale(list []*matrix) map[string]float64 {
	top := map[string]float64{}
	for _, m := range list {
		for _, c := range m.cells {
			if c.Stats != nil && c.Status == Passed {
				top[m.scale] = max(top[m.scale], c.Stats.Value)
			}
		}
	}
	return top
}
