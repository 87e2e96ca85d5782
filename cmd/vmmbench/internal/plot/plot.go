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
	Name  string // a file's name without suffix
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

// Charts returns the pictures of a report: growth, and bandwidth by size.
func Charts(r *report.Report) []*Chart {
	return append(growth.charts(r), bandwidth.charts(r)...)
}

var notInName = regexp.MustCompile(`[^a-z0-9]+`)

// newChart makes a picture: its title, what draw adds, and where the figures come from.
func newChart(r *report.Report, what, says, alt string, draw func(*canvas)) *Chart {
	c := &canvas{y: 8}
	title := what + ": " + says
	c.paragraph("title", title, 52, 22)
	draw(c)
	c.paragraph("foot", Origin(r), 92, 15)
	name := strings.Trim(notInName.ReplaceAllString(strings.ToLower(what), "-"), "-")
	return &Chart{name, title, alt, c.shapes.String(), int(c.y) + 10}
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
