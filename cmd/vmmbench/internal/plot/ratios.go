package plot

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/stat"
)

// maxRows is how many comparisons a picture has, so that it fits a screen or a page.
const maxRows = 40

// ratios draws the comparisons of each command with the margin, those that differ most first.
func (d *drawing) ratios() {
	without := map[stat.Verdict]int{}
	with := slices.DeleteFunc(slices.Clone(d.report.Comparisons), func(c report.Comparison) bool {
		if c.Ratio == nil || *c.Ratio <= 0 {
			without[c.Verdict]++
			return true
		}
		return false
	})
	for _, v := range stat.Verdicts() {
		if without[v] > 0 {
			d.leaveOut("comparisons without a ratio: %d %s", without[v], v)
		}
	}
	for _, g := range report.GroupBy(with, func(c report.Comparison) string { return report.CommandOf(c.ID) }) {
		slices.SortStableFunc(g.Of, differMost)
		list, which := g.Of[:min(len(g.Of), maxRows)], fmt.Sprintf("%d compared", len(g.Of))
		if n := len(g.Of) - len(list); n > 0 {
			d.leaveOut("%s: the %d of %d comparisons that differ least", g.Key, n, len(g.Of))
			which = fmt.Sprintf("the %d of %d that differ most", len(list), len(g.Of))
		}
		d.ratiosOf(g.Key, list, which)
	}
}

// differMost orders comparisons by how far they are from 1 for sure, which is the end of the
// interval that is nearest to it. Those that may be 1 follow by their ratios.
func differMost(a, b report.Comparison) int {
	sure := func(c report.Comparison) float64 {
		if c.Low == nil || c.High == nil || *c.Low <= 0 {
			return 0
		}
		return max(0, math.Log(*c.Low), -math.Log(*c.High))
	}
	ratio := func(c report.Comparison) float64 { return math.Abs(math.Log(*c.Ratio)) }
	return cmp.Or(cmp.Compare(sure(b), sure(a)), cmp.Compare(ratio(b), ratio(a)))
}

func (d *drawing) ratiosOf(first string, list []report.Comparison, which string) {
	margin, count := 0.0, map[string]int{}
	var names [][2]string // where two are compared, and which
	for _, x := range list {
		margin = max(margin, x.Margin)
		verdict, _ := Light.judged(x.Verdict)
		count[verdict]++
		where, two, _ := strings.Cut(x.ID, ": ")
		names = append(names, [2]string{words(where, ""), two})
	}
	// What all rows share stands in the title.
	title, axis := []string{first}, "time of the first / time of the second"
	for i := range 2 {
		if len(list) > 1 && !slices.ContainsFunc(names, func(n [2]string) bool { return n[i] != names[0][i] }) {
			title = append(title, names[0][i])
			if a, b, ok := strings.Cut(names[0][i], " against "); ok {
				axis = fmt.Sprintf("time of %s / time of %s", a, b)
			}
			for j := range names {
				names[j][i] = ""
			}
		}
	}
	var said []string
	for _, v := range []string{string(stat.Faster), string(stat.Slower), string(stat.Equal), notFirm} {
		if count[v] > 0 {
			said = append(said, fmt.Sprintf("%d %s", count[v], v))
		}
	}
	d.add(Ratios, first, &Chart{
		Title:  fmt.Sprintf("%s: %s, %s", strings.Join(title, ", "), which, strings.Join(said, ", ")),
		Alt:    fmt.Sprintf("Forest plot of ratios of times with their 95 %% intervals on a logarithmic axis, those that differ most first, and the margin of %g %% around 1 in which two times count as equal. Left of 1 the first of the two is faster.", 100*margin),
		figure: func(k look) figure { return k.forest(list, names, axis+" (left of 1: faster)", margin) },
	})
}

// notFirm is what all verdicts are called that say nothing of the two.
const notFirm = "without a firm result"

// judged is what a verdict is called and how it is drawn.
func (t Theme) judged(v stat.Verdict) (string, draw.GlyphStyle) {
	for i, of := range []struct {
		stat.Verdict
		draw.GlyphDrawer
	}{{stat.Faster, draw.BoxGlyph{}}, {stat.Slower, draw.PyramidGlyph{}}, {stat.Equal, draw.CircleGlyph{}}} {
		if v == of.Verdict {
			return string(v), draw.GlyphStyle{Color: t.color(i), Radius: 4, Shape: of.GlyphDrawer}
		}
	}
	return notFirm, draw.GlyphStyle{Color: t.Muted, Radius: 4, Shape: draw.RingGlyph{}}
}

// forest is a figure with a row for each comparison. Names stand at the left, in several
// lines if they are long, and verdicts at the right.
func (k look) forest(list []report.Comparison, names [][2]string, axis string, margin float64) figure {
	p := k.plot(axis, "")
	style := k.label()
	p.Y.Tick.Label.Font, p.Y.Tick.Label.Color = style.Font, k.Ink
	p.Y.LineStyle.Width, p.Y.Tick.Length = 0, 0
	bottom, lines := -float64(len(list)), 1
	within := func(v float64) float64 { return math.Log10(min(max(v, 1e-6), 1e6)) }
	least, most := within(1-margin), within(1+margin)
	zone := plotter.XYs{{X: least, Y: bottom}, {X: most, Y: bottom}, {X: most}, {X: least}}
	p.Add(&plotter.Polygon{XYs: []plotter.XYs{zone}, Color: k.Zone},
		&plotter.Line{XYs: plotter.XYs{{Y: bottom}, {}}, LineStyle: p.X.LineStyle})
	var ticks plot.ConstantTicks
	verdicts := &plotter.Labels{}
	for i, c := range list {
		y, ratio := -float64(i)-0.5, within(*c.Ratio)
		name := wrap(style, strings.Trim(strings.Join(names[i][:], ": "), ": "), k.width*3/10)
		ticks, lines = append(ticks, plot.Tick{Value: y, Label: name}), max(lines, 1+strings.Count(name, "\n"))
		at := plotter.XYs{{X: ratio, Y: y}}
		_, mark := k.judged(c.Verdict)
		if c.Low != nil && c.High != nil {
			from, to := within(*c.Low), within(*c.High)
			p.Add(&plotter.XErrorBars{XYs: at, XErrors: plotter.XErrors{{Low: from - ratio, High: to - ratio}}, CapWidth: 5,
				LineStyle: draw.LineStyle{Color: mark.Color, Width: 1.5}})
		}
		p.Add(&plotter.Scatter{XYs: at, GlyphStyle: mark})
		verdicts.XYs, verdicts.Labels = append(verdicts.XYs, at[0]), append(verdicts.Labels, fmt.Sprintf("%#.4g %s", *c.Ratio, c.Verdict))
		verdicts.TextStyle = append(verdicts.TextStyle, style)
	}
	logScale(&p.X, decimal, decades)
	for i := range verdicts.XYs {
		verdicts.XYs[i].X = p.X.Max
	}
	verdicts.Offset = vg.Point{X: 8, Y: style.FontExtents().Descent}
	style.XAlign = draw.XCenter
	band := &plotter.Labels{XYs: plotter.XYs{{Y: 0.4}}, Labels: []string{fmt.Sprintf("equal within ±%g %%", 100*margin)}, TextStyle: []draw.TextStyle{style}}
	p.Add(verdicts, band)
	p.Y.Min, p.Y.Max, p.Y.Tick.Marker = bottom, 0.8, ticks
	return figure{[][]*plot.Plot{{p}}, 45 + vg.Length(float64(len(list))+0.8)*(vg.Length(lines)*style.Font.Size+7)}
}
