// Package page makes one HTML page of reports. It needs no network and no script: what it
// shows is in it. It is light or dark as the browser is set, and fits phones and paper.
package page

import (
	_ "embed" // the template and the styles
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
	Name   string
	Report *report.Report
	Wrong  int // cases
	Charts []*plot.Chart
}

// Write writes the page of reports. names are what they are called, such as their files.
func Write(w io.Writer, names []string, reports []*report.Report) error {
	var sections []section
	for i, r := range reports {
		sections = append(sections, section{names[i], r, r.Count()[report.Failed], plot.Charts(r)})
	}
	return pageTemplate.Execute(w, sections)
}
