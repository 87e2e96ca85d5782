// Package page makes one HTML page of reports. It needs no network and no script: what it
// shows is in it. It is light or dark as the browser is set, and fits phones and paper.
package page

import (
	_ "embed" // the template and the styles
	"fmt"
	"html/template"
	"io"
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
	"origin": plot.Origin,
	"style":  func() template.CSS { return template.CSS(plot.Style + styleText) }, // #nosec: made of constants
	"table": func(p report.Piece) template.HTML {
		return template.HTML(strings.ReplaceAll(p.Table.RenderHTML(), "<th>", `<th scope="col">`)) // #nosec: go-pretty escapes it
	},
	"picture": func(c *plot.Chart) template.HTML { return template.HTML(c.SVG("")) }, // #nosec: package plot escapes what it takes from the report
}).Parse(pageText))

// section is one report on the page.
type section struct {
	ID, Title, Name string
	Warnings        []string
	Report          *report.Report
	Charts          []*plot.Chart
}

// Write writes the page of reports. names are what they are called, such as their files.
func Write(w io.Writer, names []string, reports []*report.Report) error {
	var sections []section
	for i, r := range reports {
		sections = append(sections, newSection(fmt.Sprintf("r%d", i+1), names[i], r))
	}
	return pageTemplate.Execute(w, sections)
}

func newSection(id, name string, whole *report.Report) section {
	r, left := whole.First(report.MaxShown)
	s := section{ID: id, Title: titleOf(r), Name: name, Report: r}
	warn := func(is bool, format string, args ...any) {
		if is {
			s.Warnings = append(s.Warnings, fmt.Sprintf(format, args...))
		}
	}
	wrong := whole.Count()[report.Failed]
	warn(r.Run.Interrupted, "The run was interrupted, so this is not all.")
	warn(r.Run.Error != "", "The run ended with an error: %s", r.Run.Error)
	warn(wrong > 0, "Data were wrong in %d of %d cases.", wrong, len(whole.Cases))
	warn(len(left) > 0, "Not shown: %s.", strings.Join(left, ", "))
	s.Charts = plot.Charts(r)
	return s
}

// titleOf is the command and the devices.
func titleOf(r *report.Report) string {
	title, between := r.Run.Command, " on "
	for _, g := range report.GroupBy(r.Devices, func(d report.Device) string { return d.Name }) {
		title, between = title+between+g.Key, ", "
	}
	return title
}
