package benchdoc

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/plot"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
)

// block makes what stands in a block: m[1] says what.
func (f *filler) block(m []string) (text string, err error) {
	switch words := strings.Fields(m[1]); words[0] {
	case "reports":
		text = f.list()
	case "slower":
		text, err = f.slower()
	case "table":
		text, err = f.table(words[1:])
	default:
		err = errors.New("want reports, slower or table")
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w", m[1], err)
	}
	return fmt.Sprintf("<!-- bench %s -->\n\n%s\n<!-- /bench -->", m[1], text), nil
}

// names are those of all reports.
func (f *filler) names() []string { return slices.Sorted(maps.Keys(f.reports)) }

// list has where the figures come from, with the pages, which have the whole machine.
func (f *filler) list() string {
	var b strings.Builder
	for _, name := range f.names() {
		fmt.Fprintf(&b, "- [%s](%s), [page](%s): %s\n", name, dataDir+name, dataDir+pageName(name), plot.Origin(f.reports[name]))
	}
	return b.String()
}

// slower is where memory that grows is slower than the other.
func (f *filler) slower() (string, error) {
	var b strings.Builder
	firm, open, all := 0, 0, 0
	for _, name := range f.names() {
		found, firmHere, openHere, of := report.Slower(f.reports[name])
		firm, open, all = firm+firmHere, open+openHere, all+of
		for _, x := range found {
			fmt.Fprintf(&b, "- [%s](%s): %s\n", x.Case, dataDir+name, x.Says)
		}
	}
	if all == 0 {
		return "", errors.New("there are no comparisons")
	}
	text := fmt.Sprintf("Of %d comparisons memory that grows is slower in %d.", all, firm)
	if open > 0 {
		text += fmt.Sprintf(" In %d more its ratio is above the margin too, but the verdict is not firm.", open)
	}
	return text + "\n\n" + b.String(), nil
}

// table is a table of what a report has measured: FILE rows=AXIS,AXIS column=AXIS only=CASE,CASE.
func (f *filler) table(words []string) (string, error) {
	options := map[string]string{}
	var r *report.Report
	for _, word := range words {
		if key, value, ok := strings.Cut(word, "="); ok {
			options[key] = value
		} else {
			r = f.reports[word]
		}
	}
	switch {
	case r == nil:
		return "", fmt.Errorf("no such report in docs/%s", dataDir)
	case options["rows"] == "" || options["column"] == "":
		return "", errors.New("want rows=AXIS,AXIS and column=AXIS")
	case options["only"] != "":
		r = r.Only(strings.Split(options["only"], ",")...)
	}
	header, rows := report.Pivot(r, strings.Split(options["rows"], ","), options["column"])
	if len(rows) == 0 {
		return "", errors.New("there is nothing of that")
	}
	line := func(cells []string) string { return "| " + strings.Join(cells, " | ") + " |\n" }
	text := line(header) + line(slices.Repeat([]string{"---"}, len(header)))
	for _, row := range rows {
		text += line(row)
	}
	return text, nil
}
