package plot

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
)

// pairs are the values of cases that differ in the pair of devices and the memory.
type pairs struct {
	name, unit string
	devs       []string // rows and columns
	mems       ordered[*map[[2]string]report.Case]
	low, high  float64
}

// peers draws a picture for each direction and size, with a matrix for each memory. They
// share their colors.
func (d *drawing) peers() {
	var list ordered[*pairs]
	for _, c := range d.report.Cases {
		if !pairCase(c) || c.Axes.Of("mem") == nil {
			continue
		}
		var rest []string
		for _, a := range c.Axes {
			if a.Name == "from" || a.Name == "to" || a.Name == "mem" || a.Usual() {
				continue
			}
			value := fmt.Sprint(a.Value)
			if n, ok := number64(a.Value); ok {
				value = short(n)
			}
			rest = append(rest, value)
		}
		m := list.at(strings.Join(rest, " "), func() *pairs {
			return &pairs{name: strings.Join(rest, " "), unit: c.Unit, low: math.Inf(1), high: math.Inf(-1)}
		})
		m.add(c)
	}
	for _, key := range list.keys {
		m := list.of[key]
		if m.high < m.low {
			d.leaveOut("%s: no pair has a value", key)
			continue
		}
		d.heatMap(m)
	}
}

func (m *pairs) add(c report.Case) {
	from, to := fmt.Sprint(c.Axes.Of("from")), fmt.Sprint(c.Axes.Of("to"))
	for _, dev := range []string{from, to} {
		if !slices.Contains(m.devs, dev) {
			m.devs = append(m.devs, dev)
		}
	}
	cells := m.mems.at(fmt.Sprint(c.Axes.Of("mem")), func() *map[[2]string]report.Case { return &map[[2]string]report.Case{} })
	(*cells)[[2]string{from, to}] = c
	if usable(c) {
		m.low, m.high = min(m.low, c.Stats.Value), max(m.high, c.Stats.Value)
	}
}

func (d *drawing) heatMap(m *pairs) {
	better := "Higher is better, and brighter."
	if m.unit != "GB/s" {
		better = "Lower is better, and brighter."
	}
	c := &Chart{
		Title: fmt.Sprintf("%s between devices: %s to %s %s", m.name, number(m.low), number(m.high), m.unit),
		Alt: fmt.Sprintf("Matrices of %s between each device, by row, and each other one, by column, for %s as memory. %s A device and itself are not measured.",
			m.unit, strings.Join(m.mems.keys, ", "), better),
		Header: []string{"memory", "from", "to", m.unit, "95 %"}, panelWidth: 210,
	}
	if len(m.devs) > 4 {
		c.panelWidth = 300
	}
	// Memories stand side by side, to show what peer access and grants change.
	for _, mem := range m.mems.keys {
		cells := *m.mems.of[mem]
		c.panels = append(c.panels, m.panel(mem, cells))
		for _, from := range m.devs {
			for _, to := range m.devs {
				x, ok := cells[[2]string{from, to}]
				switch {
				case !ok:
				case !usable(x):
					c.Rows = append(c.Rows, []string{mem, from, to, string(x.Status), "-"})
				default:
					p := interval(0, x.Stats.Value, x.Stats.ValueLow, x.Stats.ValueHigh)
					c.Rows = append(c.Rows, []string{mem, from, to, number(x.Stats.Value), p.intervalText(number)})
				}
			}
		}
	}
	d.add(Peers, m.name, c)
}

// brightness places a value between 0 and 1: bandwidth from 0, times against their range.
func (m *pairs) brightness(v float64) float64 {
	switch {
	case m.high <= 0:
		return 0
	case m.unit == "GB/s":
		return v / m.high
	case m.high == m.low:
		return 1
	}
	return 1 - (v-m.low)/(m.high-m.low)
}

// names shortens the devices to what differs, if they are many and all begin alike.
func (m *pairs) names() (short []string, note string) {
	if len(m.devs) <= 4 {
		return m.devs, ""
	}
	prefix, _, _ := strings.Cut(m.devs[0], ":")
	for _, dev := range m.devs {
		rest, ok := strings.CutPrefix(dev, prefix+":")
		if !ok {
			return m.devs, ""
		}
		short = append(short, rest)
	}
	return short, " (" + prefix + ")"
}

func (m *pairs) panel(mem string, cells map[[2]string]report.Case) panel {
	n := vg.Length(len(m.devs))
	names, note := m.names()
	side := func(k look) (left, cell vg.Length) {
		style := k.muted(textSize)
		for _, name := range names {
			left = max(left, style.Width(name)+6)
		}
		return left, min((k.width-left)/n, 84)
	}
	high := func(cell vg.Length) vg.Length { return min(cell, 40) }
	return panel{
		head:   fmt.Sprintf("%s, %s; from row to column%s", mem, m.unit, note),
		height: func(k look) vg.Length { _, cell := side(k); return textSize + 6 + n*high(cell) },
		draw: func(k look, c draw.Canvas) {
			left, cell := side(k)
			m.cells(k, c, names, cells, left, cell, high(cell))
		},
	}
}

// cells draws the names of the devices and a cell for each pair.
func (m *pairs) cells(k look, c draw.Canvas, names []string, cells map[[2]string]report.Case, left, cell, high vg.Length) {
	name := k.muted(textSize)
	top := c.Max.Y - textSize - 6
	for i, from := range m.devs {
		y := top - (vg.Length(i)+0.5)*high
		name.XAlign = draw.XRight
		middle(c, name, vg.Point{X: c.Min.X + left - 6, Y: y}, names[i])
		name.XAlign = draw.XCenter
		middle(c, name, vg.Point{X: c.Min.X + left + (vg.Length(i)+0.5)*cell, Y: top + textSize/2 + 1}, names[i])
		for j, to := range m.devs {
			// A pair without a value has a plain cell, with a word for why.
			x := c.Min.X + left + vg.Length(j)*cell
			fill, ink, text := k.Zone, k.Muted, "–"
			if of, ok := cells[[2]string{from, to}]; ok && usable(of) {
				fill, ink = heatColor(m.brightness(of.Stats.Value))
				text = number(of.Stats.Value)
			} else if ok {
				text = string(of.Status)
			}
			c.FillPolygon(fill, []vg.Point{
				{X: x + 0.5, Y: y - high/2 + 0.5}, {X: x + cell - 0.5, Y: y - high/2 + 0.5},
				{X: x + cell - 0.5, Y: y + high/2 - 0.5}, {X: x + 0.5, Y: y + high/2 - 0.5},
			})
			style := k.text(textSize, false)
			for style.Width(text) > cell-3 && style.Font.Size > 6 {
				style.Font.Size -= 0.5
			}
			style.Color, style.XAlign = ink, draw.XCenter
			middle(c, style, vg.Point{X: x + cell/2, Y: y}, shorten(style, text, cell-2))
		}
	}
}
