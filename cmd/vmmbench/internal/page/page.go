// Package page makes one HTML page of reports. It needs no network and no script: what it
// shows is in it. It has a light and a dark theme, a form for phones, and one for paper.
package page

import (
	"bytes"
	"cmp"
	_ "embed" // the template and the styles
	"fmt"
	"html/template"
	"io"
	"regexp"
	"slices"
	"strings"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/plot"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
)

//go:embed page.html
var pageText string

//go:embed page.css
var styleText string

var pageTemplate = template.Must(template.New("page").Funcs(template.FuncMap{
	"findings": report.Findings, "about": report.About, "states": report.States, "abilities": report.Abilities, "figures": report.Figures,
	"table": func(p report.Piece) template.HTML {
		return template.HTML(strings.ReplaceAll(p.Table.RenderHTML(), "<th>", `<th scope="col">`)) // #nosec: go-pretty escapes it
	},
}).Parse(pageText))

// section is one report on the page.
type section struct {
	ID, Title, Subtitle string
	Warnings            []string
	Report              *report.Report
	Groups              []group
}

// group has the pictures of one kind.
type group struct {
	Heading, Lead string
	Pictures      []picture
}

// picture is a chart for wide and for narrow pages.
type picture struct {
	ID, Alt      string
	Wide, Narrow template.HTML
}

// headings of the kinds, and how to read them.
var headings = map[plot.Kind]group{
	plot.Growth:    {Heading: "Growth", Lead: "The time in total while memory grows. The band is the 95 % interval of the median. Lower is better."},
	plot.Ratios:    {Heading: "Comparisons", Lead: "How the time of the first relates to that of the second, with its 95 % interval, those that differ most first. Left of 1 the first is faster; inside the grey band both count as equal."},
	plot.Bandwidth: {Heading: "Bandwidth", Lead: "Payload in GB/s, 1e9 bytes a second, by the size of a copy. The band is the 95 % interval of the median. Higher is better."},
	plot.Matrix:    {Heading: "Between devices", Lead: "From the device in the row to that in the column. Brighter is better."},
}

// Write writes the page of reports. names are what they are called, such as their files.
// left says of each what no picture shows.
func Write(w io.Writer, names []string, reports []*report.Report) (left [][]string, err error) {
	st := styles{}
	var sections []section
	for i, r := range reports {
		s, notDrawn, err := newSection(fmt.Sprintf("r%d", i+1), names[i], r, &st)
		if err != nil {
			return nil, err
		}
		sections, left = append(sections, s), append(left, notDrawn)
	}
	title, heading := "vmmbench: "+sections[0].Title, "vmmbench report"
	if len(sections) > 1 {
		heading = fmt.Sprintf("vmmbench: %d reports", len(sections))
		title = heading
	}
	data := struct {
		Title    string
		Heading  string
		Style    template.CSS
		Sections []section
	}{title, heading, template.CSS(colors() + styleText + st.css()), sections} // #nosec: made of constants
	return left, pageTemplate.Execute(w, data)
}

// colors defines the colors of both themes. Paper is light.
func colors() string {
	list := func(t plot.Theme) string {
		var b strings.Builder
		for _, v := range t.Variables() {
			fmt.Fprintf(&b, "--%s:%s;", v.Name, v.Color)
		}
		return b.String()
	}
	return fmt.Sprintf(":root{color-scheme:light dark;%s}\n@media screen and (prefers-color-scheme:dark){:root{%s}}\n", list(plot.Light), list(plot.Dark))
}

func newSection(id, name string, r *report.Report, st *styles) (section, []string, error) {
	whole := r
	r, left := whole.First(report.MaxShown)
	s := section{ID: id, Title: titleOf(r), Report: r}
	subtitle := []string{name, "vmmbench " + strings.Join(r.Run.Args, " "), "version " + cmp.Or(string(r.Run.Version), "unknown"), r.Run.Started}
	if m := r.Run.Measure; m != nil {
		subtitle = append(subtitle, fmt.Sprintf("seed %d", m.Seed))
	}
	s.Subtitle = strings.Join(slices.DeleteFunc(subtitle, func(s string) bool { return s == "" }), " · ")
	if r.Run.Interrupted {
		s.Warnings = append(s.Warnings, "The run was interrupted, so this is not all.")
	}
	if r.Run.Error != "" {
		s.Warnings = append(s.Warnings, "The run ended with an error: "+string(r.Run.Error))
	}
	if n := whole.Count()[report.Failed]; n > 0 {
		s.Warnings = append(s.Warnings, fmt.Sprintf("Data were wrong in %d of %d cases.", n, len(whole.Cases)))
	}
	if len(left) > 0 {
		s.Warnings = append(s.Warnings, "Not shown: "+strings.Join(left, ", ")+".")
	}

	charts, notDrawn := plot.Charts(r)
	for _, kind := range report.GroupBy(charts, func(c *plot.Chart) string { return string(c.Kind) }) {
		g := headings[plot.Kind(kind.Key)]
		for _, c := range kind.Of {
			p, err := newPicture(id, c, st)
			if err != nil {
				return section{}, nil, err
			}
			g.Pictures = append(g.Pictures, p)
		}
		s.Groups = append(s.Groups, g)
	}
	return s, append(left, notDrawn...), nil
}

// titleOf is the command and the devices.
func titleOf(r *report.Report) string {
	title, between := r.Run.Command, " on "
	for _, g := range report.GroupBy(r.Devices, func(d report.Device) string { return d.Name }) {
		title, between = title+between+g.Key, ", "
	}
	return title
}

func newPicture(section string, c *plot.Chart, st *styles) (picture, error) {
	id := section + "-" + c.Name
	wide, err := st.inline(c, plot.Wide, id+"-wide")
	narrow, second := st.inline(c, plot.Narrow, id+"-narrow")
	return picture{ID: id, Alt: c.Alt, Wide: wide, Narrow: narrow}, cmp.Or(err, second)
}

// styles collects the styles of pictures. A page has each of them once, as a class, with
// the names of colors instead of the colors of one theme.
type styles struct {
	class map[string]string
	list  []string
}

var styleAttribute = regexp.MustCompile(`style="([^"]*)"`)

// inline draws a picture for the page.
func (s *styles) inline(c *plot.Chart, width int, id string) (template.HTML, error) {
	var b bytes.Buffer
	if err := c.SVG(&b, plot.Light, width, id); err != nil {
		return "", fmt.Errorf("%s: %w", c.Name, err)
	}
	svg := styleAttribute.ReplaceAllStringFunc(b.String(), func(attribute string) string {
		style := styleAttribute.FindStringSubmatch(attribute)[1]
		if s.class == nil {
			s.class = map[string]string{}
		}
		if s.class[style] == "" {
			s.class[style] = fmt.Sprintf("p%d", len(s.list)+1)
			s.list = append(s.list, style)
		}
		return `class="` + s.class[style] + `"`
	})
	return template.HTML(svg), nil // #nosec: package plot escapes what it takes from the report
}

// css defines the classes.
func (s *styles) css() string {
	var names []string
	for _, v := range plot.Light.Variables() {
		names = append(names, v.Color, "var(--"+v.Name+")")
	}
	named := strings.NewReplacer(names...)
	var b strings.Builder
	for i, style := range s.list {
		fmt.Fprintf(&b, ".p%d{%s}\n", i+1, named.Replace(style))
	}
	return b.String()
}
