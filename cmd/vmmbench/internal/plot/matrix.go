package plot

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
)

// pairs are the values of cases that differ in the pair of devices and the memory.
type pairs struct {
	what, unit string
	devices    []string // rows and columns
	memories   []report.Group[report.Case]
	low, high  float64
}

// from and to are the devices of a case.
func from(c report.Case) string { return fmt.Sprint(c.Axes.Of("from")) }
func to(c report.Case) string   { return fmt.Sprint(c.Axes.Of("to")) }

// matrix draws a picture for each direction and size, with a matrix for each memory.
func (d *drawing) matrix() {
	for _, g := range report.GroupBy(d.shown(Matrix), func(c report.Case) string { return words(parent(parent(c.ID)), "") }) {
		m := &pairs{what: "bandwidth", unit: g.Of[0].Unit, low: math.Inf(1), high: math.Inf(-1)}
		better := "Higher"
		if m.unit != "GB/s" {
			m.what, better = "time", "Lower"
		}
		m.memories = report.GroupBy(g.Of, func(c report.Case) string { return fmt.Sprint(c.Axes.Of("mem")) })
		for _, x := range g.Of {
			for _, device := range []string{from(x), to(x)} {
				if !slices.Contains(m.devices, device) {
					m.devices = append(m.devices, device)
				}
			}
			if usable(x) {
				m.low, m.high = min(m.low, x.Stats.Value), max(m.high, x.Stats.Value)
			}
		}
		if m.high < m.low || m.low <= 0 {
			d.leaveOut("%s: no pair has a value", g.Key)
			continue
		}
		d.add(Matrix, g.Key, &Chart{
			Title:  strings.TrimSpace(fmt.Sprintf("%s between devices: %s to %s %s", g.Key, number(m.low), number(m.high), m.unit)),
			Alt:    fmt.Sprintf("For each kind of memory a matrix of the %s in %s from each device, by row, to each other one, by column. %s is better, and brighter. A device and itself are not measured.", m.what, m.unit, better),
			figure: m.figure,
		})
	}
}

// figure has the matrices side by side as far as there is room, to show what peer access
// changes.
func (m *pairs) figure(k look) figure {
	n := vg.Length(len(m.devices))
	columns := min(max(1, int((k.width+gap)/(70+max(130, 29*n)+gap))), len(m.memories))
	width := (k.width-vg.Length(columns-1)*gap)/vg.Length(columns) - 60
	f := figure{height: 70 + n*30}
	for part := range slices.Chunk(m.memories, columns) {
		plots := make([]*plot.Plot, columns)
		for i, memory := range part {
			plots[i] = m.plot(k, width/n, memory)
		}
		f.plots = append(f.plots, plots)
	}
	return f
}

// plot is the matrix of one memory: a cell of about this width for each pair, with its value
// or a word for why it has none.
func (m *pairs) plot(k look, width vg.Length, memory report.Group[report.Case]) *plot.Plot {
	n := len(m.devices)
	g := grid{n, slices.Repeat([]float64{math.NaN()}, n*n)}
	text := slices.Repeat([]string{"–"}, n*n)
	for _, c := range memory.Of {
		i := g.index(slices.Index(m.devices, to(c)), slices.Index(m.devices, from(c)))
		text[i] = string(c.Status)
		if usable(c) {
			g.z[i], text[i] = c.Stats.Value/m.high, number(c.Stats.Value)
			if m.unit != "GB/s" {
				g.z[i] = m.low / c.Stats.Value
			}
		}
	}
	p := k.plot("to", "from")
	p.Title.Text = fmt.Sprintf("%s: %s (%s)", memory.Key, m.what, m.unit)
	p.Add(&plotter.HeatMap{GridXYZ: g, Palette: heat, Max: 1, NaN: k.Zone})
	cells := &plotter.Labels{Labels: text}
	for i := range text {
		s := k.text(textSize)
		for s.Width(text[i]) > width-3 && s.Font.Size > 6 {
			s.Font.Size -= 0.5
		}
		s.XAlign, s.YAlign, s.Color = draw.XCenter, draw.YCenter, k.Muted
		if !math.IsNaN(g.z[i]) {
			s.Color = onHeat(int(g.z[i]*float64(len(heat)-1) + 0.5))
		}
		cells.XYs, cells.TextStyle = append(cells.XYs, plotter.XY{X: g.X(i % n), Y: -float64(i / n)}), append(cells.TextStyle, s)
	}
	p.Add(cells)
	var across, down plot.ConstantTicks
	for i, device := range m.devices {
		if n > 4 { // the number says which
			device = device[strings.LastIndexByte(device, ':')+1:]
		}
		across, down = append(across, plot.Tick{Value: float64(i), Label: device}), append(down, plot.Tick{Value: -float64(i), Label: device})
	}
	p.X.Tick.Marker, p.X.Tick.Length, p.X.LineStyle.Width = across, 0, 0
	p.Y.Tick.Marker, p.Y.Tick.Length, p.Y.LineStyle.Width = down, 0, 0
	return p
}

// grid is n by n values. The first row is at the top.
type grid struct {
	n int
	z []float64
}

func (g grid) index(c, r int) int { return r*g.n + c }

// Dims and the others implement plotter.GridXYZ.
func (g grid) Dims() (c, r int)   { return g.n, g.n }
func (g grid) Z(c, r int) float64 { return g.z[g.index(c, g.n-1-r)] }
func (g grid) X(c int) float64    { return float64(c) }
func (g grid) Y(r int) float64    { return float64(r - g.n + 1) }
