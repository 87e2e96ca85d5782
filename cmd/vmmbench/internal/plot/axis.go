package plot

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/cuvmm/cuvmm/cmd/internal/size"
)

// axis is a range of values with ticks.
type axis struct {
	label    string
	min, max float64
	log      bool
	ticks    []plot.Tick
}

// short prints bytes as in 64K.
func short(n uint64) string {
	if n == 0 {
		return "0"
	}
	return strings.TrimSuffix(size.Format(n), "iB")
}

// sizeAxis is for sizes, each of which has a tick.
func sizeAxis(label string, sizes []float64) axis {
	sizes = slices.Compact(slices.Sorted(slices.Values(sizes)))
	a := axis{label: label, min: sizes[0], max: sizes[len(sizes)-1], log: true}
	for _, n := range sizes {
		a.ticks = append(a.ticks, plot.Tick{Value: n, Label: short(uint64(n))})
	}
	wider := max(1.1, math.Pow(a.max/a.min, 0.03))
	a.min, a.max = a.min/wider, a.max*wider
	return a
}

// countAxis is for whole numbers, such as those of devices.
func countAxis(label string, counts []float64) axis {
	a := sizeAxis(label, counts)
	for i := range a.ticks {
		a.ticks[i].Label = strconv.Itoa(int(a.ticks[i].Value))
	}
	return a
}

// bytesAxis goes from 0 up to most, with ticks at binary sizes.
func bytesAxis(label string, most float64) axis {
	most = max(most, 4)
	a := axis{label: label, max: most}
	step := math.Exp2(math.Floor(math.Log2(most / 4)))
	for v := 0.0; v <= most; v += step {
		a.ticks = append(a.ticks, plot.Tick{Value: v, Label: short(uint64(v))})
	}
	return a
}

// nice is a step of 1, 2 or 5 times a power of ten, of which about n make the span.
func nice(span float64, n int) float64 {
	step := span / float64(n)
	power := math.Pow(10, math.Floor(math.Log10(step)))
	for _, f := range []float64{1, 2, 5} {
		if f*power >= step*0.999 {
			return f * power
		}
	}
	return 10 * power
}

// linearAxis goes from low to high with ticks at round numbers. of divides the values for
// the labels.
func linearAxis(label string, low, high, of float64) axis {
	if high <= low {
		high = low + 1
	}
	a := axis{label: label, min: low, max: high}
	step := nice((high-low)/of, 6)
	for i := math.Ceil(low / of / step); i*step*of <= high*(1+1e-9); i++ {
		a.ticks = append(a.ticks, plot.Tick{Value: i * step * of, Label: trim(i * step)})
	}
	return a
}

// trim prints a tick without the noise of binary fractions.
func trim(v float64) string { return strconv.FormatFloat(v, 'g', 6, 64) }

// logAxis goes from low to high with ticks at 1, 2 and 5 and their powers of ten: more of
// them if the span is small, fewer if it is large. Both must be above 0.
func logAxis(label string, low, high float64, print func(float64) string) axis {
	low, high = low/1.15, high*1.15
	a := axis{label: label, min: low, max: high, log: true}
	if high/low < 3 { // too short for such ticks
		step := nice(high-low, 6)
		for i := math.Ceil(low / step); i*step <= high; i++ {
			a.ticks = append(a.ticks, plot.Tick{Value: i * step, Label: print(i * step)})
		}
		return a
	}
	factors, every := []float64{1, 2, 5}, 1
	switch decades := math.Log10(high / low); {
	case decades > 2.5:
		factors, every = []float64{1}, int(math.Ceil(decades/6))
	case decades < 1.2:
		factors = []float64{1, 1.5, 2, 3, 5, 7}
	}
	for e := math.Floor(math.Log10(low)); math.Pow(10, e) <= high; e++ {
		for _, f := range factors {
			// Powers below 1 are not exact in binary; their reciprocals are.
			v := f * math.Pow(10, e)
			if e < 0 {
				v = f / math.Pow(10, -e)
			}
			if v < low || v > high {
				continue
			}
			tick := plot.Tick{Value: v}
			if int(e)%every == 0 {
				tick.Label = print(v)
			}
			a.ticks = append(a.ticks, tick)
		}
	}
	return a
}

// units of time, and how many nanoseconds each has.
var units = []struct {
	name string
	ns   float64
}{{"s", 1e9}, {"ms", 1e6}, {"us", 1e3}, {"ns", 1}}

// timeAxis is linear, from 0, in the unit that fits most nanoseconds.
func timeAxis(most float64) axis {
	for _, u := range units {
		if most >= u.ns || u.ns == 1 {
			return linearAxis(u.name, 0, most*1.05, u.ns)
		}
	}
	return axis{}
}

// formatTime prints nanoseconds in the unit that fits.
func formatTime(ns float64) string {
	for _, u := range units {
		if ns >= u.ns*0.9999 {
			return number(ns/u.ns) + " " + u.name
		}
	}
	return number(ns) + " ns"
}

// number prints three digits, without an exponent for what is read often.
func number(v float64) string {
	if a := math.Abs(v); a >= 100 && a < 1e7 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}

// set makes a the axis of a plot. space is what there is for its labels, in their direction.
func (a axis) set(to *plot.Axis, space vg.Length, across bool) {
	to.Min, to.Max = a.min, a.max
	if a.log {
		to.Scale = plot.LogScale{}
	}
	to.Tick.Marker = plot.ConstantTicks(a.thin(to.Tick.Label, space, across))
	to.Label.Text = a.label
}

// thin drops labels until those that stay have space.
func (a axis) thin(s draw.TextStyle, space vg.Length, across bool) []plot.Tick {
	ticks := slices.Clone(a.ticks)
	at := func(v float64) float64 {
		if a.log {
			return math.Log(v/a.min) / math.Log(a.max/a.min)
		}
		return (v - a.min) / (a.max - a.min)
	}
	for every := 1; every < len(ticks); every++ {
		for i, t := range a.ticks {
			ticks[i].Label = t.Label
			if i%every != 0 {
				ticks[i].Label = ""
			}
		}
		if fits(ticks, s, space, across, at) {
			break
		}
	}
	return ticks
}

// fits reports whether no label touches the next.
func fits(ticks []plot.Tick, s draw.TextStyle, space vg.Length, across bool, at func(float64) float64) bool {
	end := vg.Length(math.Inf(-1))
	for _, t := range ticks {
		if t.Label == "" {
			continue
		}
		half := s.Font.Size / 2
		if across {
			half = s.Width(t.Label)/2 + 4
		}
		center := space * vg.Length(at(t.Value))
		if center-half < end {
			return false
		}
		end = center + half
	}
	return true
}

// axes makes a plot with these axes and their grid.
func (k look) axes(c draw.Canvas, x, y axis) *plot.Plot {
	p := plot.New()
	p.BackgroundColor = nil
	for _, a := range []*plot.Axis{&p.X, &p.Y} {
		a.LineStyle = draw.LineStyle{Color: k.Muted, Width: 0.75}
		a.Tick.LineStyle = draw.LineStyle{Color: k.Muted, Width: 0.75}
		a.Tick.Length, a.Padding = 4, 0
		label := k.muted(textSize)
		label.XAlign, label.YAlign = draw.XCenter, draw.YTop
		a.Label.TextStyle = label
		a.Tick.Label = label
	}
	p.Y.Tick.Label.XAlign, p.Y.Tick.Label.YAlign = draw.XRight, draw.YCenter
	x.set(&p.X, c.Size().X-40, true)
	y.set(&p.Y, c.Size().Y-40, false)
	p.Y.Label.Text = "" // it stands above the panel
	p.Add(grid{k, x.ticks, y.ticks})
	return p
}

// grid draws a line at each tick.
type grid struct {
	look
	x, y []plot.Tick
}

// Plot implements plot.Plotter.
func (g grid) Plot(c draw.Canvas, p *plot.Plot) {
	line := draw.LineStyle{Color: g.Grid, Width: 0.5}
	x, y := p.Transforms(&c)
	for _, t := range g.x {
		c.StrokeLine2(line, x(t.Value), c.Min.Y, x(t.Value), c.Max.Y)
	}
	for _, t := range g.y {
		c.StrokeLine2(line, c.Min.X, y(t.Value), c.Max.X, y(t.Value))
	}
}

// headOf is the line above a panel: its name, and the unit of its vertical axis.
func headOf(name string, y axis) string {
	return strings.TrimSpace(fmt.Sprintf("%s  %s", name, y.label))
}
