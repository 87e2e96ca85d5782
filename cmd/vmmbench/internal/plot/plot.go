package plot

import (
	"cmp"
	_ "embed" // the styles
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
)

// Style is the CSS of pictures. A page that shows them inline needs it once, and may use its
// colors.
//
//go:embed style.css
var Style string

// Chart is one picture.
type Chart struct {
	Name  string // a file's name without suffix, unlike that of any other picture of the report
	Title string // what is seen
	Alt   string // what the picture shows and how to read it, for people who do not see it

	shapes string
	height int
}

// SVG returns the picture with this style: Style for a document of its own, which loads nothing,
// and none for a page that has it.
func (c *Chart) SVG(style string) string {
	if style != "" {
		style = "<style>" + style + "</style>\n"
	}
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" class="chart" width="%[1]d" height="%[2]d" viewBox="0 0 %[1]d %[2]d" role="img">
<title>%[3]s</title>
<desc>%[4]s</desc>
%[5]s<rect class="paper" width="100%%" height="100%%"/>
%[6]s</svg>
`, width, c.height, escape(c.Title), escape(c.Alt), style, c.shapes)
}

// Charts returns the pictures of a report, of no more cases than report.MaxShown: growth,
// comparisons, bandwidth.
func Charts(r *report.Report) []*Chart {
	d := &drawing{}
	d.report, _ = r.First(report.MaxShown)
	d.lines(growth)
	d.ratios()
	d.lines(bandwidth)
	return d.charts
}

// drawing is the work of Charts.
type drawing struct {
	report *report.Report
	charts []*Chart
}

var notInName = regexp.MustCompile(`[^a-z0-9]+`)

// add draws a picture: its title, what draw adds, and where the figures come from.
func (d *drawing) add(what, says, alt string, draw func(*canvas)) {
	name := strings.Trim(notInName.ReplaceAllString(strings.ToLower(what), "-"), "-")
	chart := &Chart{Name: name, Title: what + ": " + says, Alt: alt}
	taken := func(o *Chart) bool { return o.Name == chart.Name }
	for n := 2; slices.ContainsFunc(d.charts, taken); n++ {
		chart.Name = fmt.Sprintf("%s-%d", name, n)
	}
	c := &canvas{y: 8}
	c.paragraph("title", chart.Title, 52, 22)
	draw(c)
	c.paragraph("foot", Origin(d.report), 92, 15)
	chart.shapes, chart.height = c.shapes.String(), int(c.y)+10
	d.charts = append(d.charts, chart)
}

// Origin says where the figures of a report come from: command, version, day, devices.
func Origin(r *report.Report) string {
	day, _, _ := strings.Cut(r.Run.Started, "T")
	parts := []string{strings.Join(append([]string{"vmmbench"}, r.Run.Args...), " "), "version " + cmp.Or(string(r.Run.Version), "unknown"), day}
	for _, d := range r.Devices {
		of := d.Name
		if d.State != nil { // the host has no driver
			of += fmt.Sprintf(", driver %s (%s)", cmp.Or(d.State.DriverVersion, "unknown"), d.Driver)
		}
		parts = append(parts, of)
	}
	if r.Run.Interrupted {
		parts = append(parts, "interrupted")
	}
	return strings.Join(slices.Compact(parts), " · ") // a machine has many of one kind
}
