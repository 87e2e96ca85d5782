package plot

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/cuvmm/cuvmm/cmd/internal/size"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/stat"
)

// bandwidth draws GB/s by size, a picture for each way of copying. A way with a single size
// has none: its figures stand in tables, and its comparisons in the picture of ratios.
func (d *drawing) bandwidth() {
	single := 0
	for _, way := range report.GroupBy(d.shown(Bandwidth), wayOf) {
		lines := d.lines(way.Of, func(c report.Case) []point {
			n, _ := number64(c.Axes.Of("size"))
			return []point{newPoint(float64(n), c.Stats.Value, c.Stats.ValueLow, c.Stats.ValueHigh)}
		})
		if len(lines) == 0 || len(lines[0].points) == 1 {
			single += len(way.Of)
			continue
		}
		var said []string
		for _, s := range lines[:min(3, len(lines))] {
			said = append(said, fmt.Sprintf("%s %s to %s", s.label, number(s.points[0].y), number(s.last().y)))
		}
		from, to := size.Format(uint64(lines[0].points[0].x)), size.Format(uint64(lines[0].last().x))
		d.add(Bandwidth, way.Key, &Chart{
			Title:  fmt.Sprintf("%s, %s to %s: %s GB/s", way.Key, from, to, strings.Join(said, ", ")),
			Alt:    fmt.Sprintf("Line chart of the bandwidth in GB/s by the size of a copy, %s to %s, both on logarithmic axes, for %s. The band around a line is the 95 %% interval of the median. Higher is better.", from, to, names(lines)),
			figure: func(k look) figure { return k.linePlot(lines, "size of a copy (bytes)", "bandwidth (GB/s)", "GB/s") },
		})
	}
	if single > 0 {
		d.leaveOut("cases of bandwidth at a single size: %d", single)
	}
}

// wayOf is what a case copies and how, without the size and the contender.
func wayOf(c report.Case) string {
	n, _ := number64(c.Axes.Of("size"))
	return strings.TrimSpace(report.CommandOf(c.ID) + " " + words(parent(c.ID), size.Format(n)))
}

// growth draws how the time adds up while memory grows, a picture for each size.
func (d *drawing) growth() {
	for _, g := range report.GroupBy(d.shown(Growth), func(c report.Case) string { return parent(c.ID) }) {
		lines := d.lines(g.Of, cumulative)
		if len(lines) == 0 {
			continue
		}
		target := size.Format(g.Of[0].Bytes)
		d.add(Growth, words(g.Key, ""), &Chart{
			Title:  fmt.Sprintf("Growing to %s: %s", target, rivals(lines)),
			Alt:    fmt.Sprintf("Line chart of the time in total over the bytes appended so far, up to %s, both on logarithmic axes, for %s. The band around a line is the 95 %% interval of the median. Lower is better.", target, names(lines)),
			figure: func(k look) figure { return k.linePlot(lines, "appended so far (bytes)", "time in total (ms)", "ms") },
		})
	}
}

// rivals says how long the first contender takes, and of those that do not grow in place the
// fastest and the slowest.
func rivals(lines []series) string {
	list := lines[:1:1]
	others := slices.DeleteFunc(slices.Clone(lines[1:]), func(s series) bool { return s.rank() < 2 })
	if n := len(others); n > 0 {
		slices.SortStableFunc(others, func(a, b series) int { return cmp.Compare(a.last().y, b.last().y) })
		list = append(list, others[0], others[n-1])
	}
	var said []string
	for _, s := range list {
		said = append(said, fmt.Sprintf("%s %s ms", s.label, number(s.last().y)))
	}
	return strings.Join(slices.Compact(said), ", ")
}

// cumulative is the milliseconds so far after each step, of the median growth.
func cumulative(c report.Case) (points []point) {
	samples := c.Stats.Growth.Samples
	steps := len(samples[0])
	for _, s := range samples {
		steps = min(steps, len(s)) // one that was interrupted has fewer
	}
	so := make([]float64, len(samples))
	for i := range steps {
		for j, s := range samples {
			so[j] += s[i] / 1e6
		}
		// More than 96 points would not be seen, and make a large file.
		if every := (steps + 95) / 96; i%every > 0 && i < steps-1 {
			continue
		}
		sum := stat.Summarize(so)
		var low, high *float64
		if sum.Interval != nil {
			low, high = &sum.Interval.Low, &sum.Interval.High
		}
		points = append(points, newPoint(appended(c, i, steps), sum.Median, low, high))
	}
	return points
}

// appended is how many bytes there are after step i of so many.
func appended(c report.Case, i, steps int) float64 {
	step, ok := number64(c.Axes.Of("step"))
	switch {
	case i == steps-1:
		return float64(c.Bytes) // the last step may be shorter
	case c.Axes.Of("step") == "x2": // each appends as much as there is, the first 2 MiB
		return math.Ldexp(2<<20, i)
	case !ok:
		step = c.Bytes / uint64(steps)
	}
	return float64(step) * float64(i+1)
}

// lines has a line for each contender, those of memory that grows in place first. points are
// the points of a case that are above 0.
func (d *drawing) lines(cases []report.Case, points func(report.Case) []point) (list []series) {
	for _, g := range report.GroupBy(cases, func(c report.Case) string { return report.Contender(c.ID) }) {
		s := series{label: g.Key}
		for _, c := range g.Of {
			s.points = append(s.points, points(c)...)
		}
		s.points = slices.DeleteFunc(s.points, func(p point) bool { return p.y <= 0 })
		slices.SortStableFunc(s.points, func(a, b point) int { return cmp.Compare(a.x, b.x) })
		if len(s.points) == 0 {
			d.leaveOut("%s: it has no figure above 0", g.Of[0].ID)
			continue
		}
		list = append(list, s)
	}
	slices.SortStableFunc(list, func(a, b series) int { return cmp.Compare(a.rank(), b.rank()) })
	return styled(list)
}

// names are the contenders.
func names(list []series) string {
	var all []string
	for _, s := range list {
		all = append(all, s.label)
	}
	return strings.Join(all, ", ")
}

// point is a value at a size with its 95 % interval, which ends at y where there is none.
type point struct{ x, y, low, high float64 }

// newPoint makes a point for a logarithmic axis, on which an interval cannot reach 0.
func newPoint(x, y float64, low, high *float64) point {
	p := point{x, y, y, y}
	if low != nil && high != nil {
		p.low, p.high = max(*low, y/100), *high
	}
	return p
}

// series is a line of a diagram. Its points are ordered by size.
type series struct {
	label  string
	style  int
	points []point
}

func (s series) last() point { return s.points[len(s.points)-1] }

// rank is 0 for vmm, 1 for other memory that grows in place, and 2 for what is compared with it.
func (s series) rank() int {
	switch {
	case s.label == "vmm":
		return 0
	case strings.HasPrefix(s.label, "vmm"):
		return 1
	}
	return 2
}

// styles are those of contenders, the same in all pictures. Colors come again after seven: what shares one
// has another mark and another line.
var styles = map[string]int{
	"vmm": 0, "cuMemAlloc": 1, "cuMemAlloc-copy": 1, "mmap": 1, "mmap-copy": 1, "cuMemAlloc-double": 2, "mmap-double": 2,
	"mallocAsync": 3, "mallocAsync-copy": 3, "vmm-kept": 4, "vmm-ahead": 5, "vmm-whole": 6, "go-append-warm": 11, "mremap": 12, "go-append": 13,
}

// styled gives each line the style of its name, or one of those that no name has.
func styled(list []series) []series {
	free := 14
	for i := range list {
		known := false
		if list[i].style, known = styles[list[i].label]; !known {
			list[i].style = free
			free++
		}
	}
	return list
}

// linePlot is a figure of series over sizes, on logarithmic axes. Beside the end of each
// stand its name and its last value. Those of memory that grows in place come first.
func (k look) linePlot(list []series, x, y, unit string) figure {
	p := k.plot(x, y)
	ends := &lineEnds{look: k, series: list}
	for _, s := range list {
		var band, line, marks plotter.XYs
		for _, q := range s.points {
			band, line = append(band, at(q.x, q.high)), append(line, at(q.x, q.y))
		}
		for j, q := range slices.Backward(s.points) {
			band = append(band, at(q.x, q.low))
			// More marks would hide the line.
			if n := len(marks); n == 0 || marks[n-1].X-line[j].X > (line[len(line)-1].X-line[0].X)/10 {
				marks = append(marks, line[j])
			}
		}
		p.Add(&plotter.Polygon{XYs: []plotter.XYs{band}, Color: faint(k.color(s.style))},
			&plotter.Line{XYs: line, LineStyle: k.line(s.style)}, &plotter.Scatter{XYs: marks, GlyphStyle: k.mark(s.style)})
		value := number(s.last().y) + " " + unit
		if k.narrow() {
			ends.names = append(ends.names, shorten(k.label(), s.label, k.width/3)+"\n"+value)
		} else {
			ends.names = append(ends.names, s.label+" "+value)
		}
	}
	p.Add(ends)
	logScale(&p.Y, decimal, decades)
	bytes := func(v float64) string { return size.Format(uint64(v)) }
	logScale(&p.X, bytes, func(low, high float64) []float64 { return binary(low, high, max(2, float64(k.width-150)/60)) })
	return figure{[][]*plot.Plot{{p}}, min(max(k.width*9/20, 290), 420)}
}

// at is a point of a plot whose axes are logarithmic. Not the scale is, but the values are:
// with plot.LogScale gonum leaves space for the name of an axis where it does not stand.
func at(x, y float64) plotter.XY { return plotter.XY{X: math.Log10(x), Y: math.Log10(y)} }

// logScale makes an axis a little wider than what has been added to its plot, with ticks at
// values between.
func logScale(a *plot.Axis, print func(float64) string, values func(low, high float64) []float64) {
	wider := max(0.005, (a.Max-a.Min)*0.03)
	a.Min, a.Max = a.Min-wider, a.Max+wider
	var ticks plot.ConstantTicks
	for _, v := range values(math.Pow(10, a.Min), math.Pow(10, a.Max)) {
		ticks = append(ticks, plot.Tick{Value: math.Log10(v), Label: print(v)})
	}
	a.Tick.Marker = ticks
}

// decimal prints a tick without the noise of binary fractions.
func decimal(v float64) string { return strconv.FormatFloat(v, 'g', 6, 64) }

// binary returns about n powers of two.
func binary(low, high, n float64) (values []float64) {
	step := max(1, math.Ceil(math.Log2(high/low)/n))
	for e := math.Ceil(math.Log2(low)); math.Exp2(e) <= high; e += step {
		values = append(values, math.Exp2(e))
	}
	return values
}

// decades returns powers of ten, 2 and 5 between them if these are few, and even steps if they
// are fewer still.
func decades(low, high float64) (values []float64) {
	if high/low < 8 {
		step := math.Pow(10, math.Floor(math.Log10((high-low)/2)))
		for _, f := range []float64{5, 2} {
			if (high-low)/step/f > 3 {
				step *= f
				break
			}
		}
		for i := math.Ceil(low / step); i*step <= high; i++ {
			values = append(values, i*step)
		}
		return values
	}
	factors := []float64{1}
	if high/low < 150 {
		factors = []float64{1, 2, 5}
	}
	for e := math.Floor(math.Log10(low)); math.Pow(10, e) <= high; e++ {
		for _, f := range factors {
			if v := f * math.Pow(10, e); v >= low && v <= high {
				values = append(values, v)
			}
		}
	}
	return values
}

// lineEnds is the names of series at the right of a plot, each as near to the end of its
// line as the others let it.
type lineEnds struct {
	look
	series []series
	names  []string
}

// Plot implements plot.Plotter.
func (e *lineEnds) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	style := e.label()
	order, heights, ends := make([]int, len(e.series)), make([]vg.Length, len(e.series)), make(plotter.XYs, len(e.series))
	for i, s := range e.series {
		ends[i] = at(s.last().x, s.last().y)
		order[i], heights[i] = i, y(ends[i].Y)
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(heights[b], heights[a]) })
	// From the top each moves below those above it, then from the bottom above those below.
	step, limit := style.Height(e.names[0])+2, c.Max.Y
	for _, i := range order {
		heights[i] = min(heights[i], limit)
		limit = heights[i] - step
	}
	limit = c.Min.Y
	for _, i := range slices.Backward(order) {
		heights[i] = max(heights[i], limit)
		limit = heights[i] + step
	}
	for i, end := range ends {
		mark := vg.Point{X: c.Max.X + 16, Y: heights[i]}
		c.StrokeLine2(draw.LineStyle{Color: e.color(e.series[i].style), Width: 0.75}, x(end.X), y(end.Y), mark.X, mark.Y)
		c.DrawGlyphNoClip(e.mark(e.series[i].style), mark)
		c.FillText(style, vg.Point{X: mark.X + 7, Y: mark.Y + 1}, e.names[i])
	}
}

// GlyphBoxes implements plot.GlyphBoxer: the space that the names need.
func (e *lineEnds) GlyphBoxes(*plot.Plot) []plot.GlyphBox {
	width := e.label().Width(slices.MaxFunc(e.names, func(a, b string) int { return cmp.Compare(e.label().Width(a), e.label().Width(b)) }))
	return []plot.GlyphBox{{X: 1, Y: 0.5, Rectangle: vg.Rectangle{Max: vg.Point{X: width + 24, Y: 1}}}}
}
