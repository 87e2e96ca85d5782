package benchdoc

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/plot"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
)

// tableOf is a block with a table: the report, the axes of its rows and of its columns, and the
// cases, if not all.
var tableOf = regexp.MustCompile(`^table (\S+) rows=(\S+) column=(\S+?)(?: only=(\S+))?$`)

// block makes what stands in a block: m[1] says what.
func (f *filler) block(m []string) (text string, err error) {
	table := tableOf.FindStringSubmatch(m[1])
	switch {
	case m[1] == "reports":
		text = f.list()
	case m[1] == "slower":
		text = f.slower()
	case table != nil:
		text, err = f.table(table)
	default:
		err = errors.New("want reports, slower, or table FILE rows=AXIS,AXIS column=AXIS only=CASE,CASE")
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w", m[1], err)
	}
	return fmt.Sprintf("<!-- bench %s -->\n\n%s\n<!-- /bench -->", m[1], text), nil
}

// names are those of all reports.
func (f *filler) names() []string { return slices.Sorted(maps.Keys(f.reports)) }

// list has where the figures come from, by machine and commit, with the pages, which have the whole machine.
func (f *filler) list() string {
	var b strings.Builder
	command := map[string]string{}
	for _, of := range report.GroupBy(f.names(), func(name string) (origin string) {
		command[name], origin, _ = strings.Cut(plot.Origin(f.reports[name]), " · ")
		return origin
	}) {
		fmt.Fprintf(&b, "%s:\n\n", of.Key)
		for _, name := range of.Of {
			fmt.Fprintf(&b, "- [%s](%s), [page](%s): %s\n", name, dataDir+name, dataDir+pageName(name), command[name])
		}
		b.WriteString("\n")
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// slower is where memory that grows is slower than the other.
func (f *filler) slower() string {
	lines, slower, open, all := "", 0, 0, 0
	for _, name := range f.names() {
		found, slowerHere, openHere, of := report.Slower(f.reports[name])
		slower, open, all = slower+slowerHere, open+openHere, all+of
		for _, says := range found {
			lines += fmt.Sprintf("- [%s](%s): %s\n", name, dataDir+name, says)
		}
	}
	return fmt.Sprintf("Of %d comparisons memory that grows is slower in %d. In %d more its ratio is above the margin too, "+
		"but the verdict is not firm.\n\n%s", all, slower, open, lines)
}

// table is a table of what a report has measured, as tableOf has it.
func (f *filler) table(m []string) (text string, err error) {
	r := f.reports[m[1]]
	if r == nil {
		return "", fmt.Errorf("it is not in docs/%s", dataDir)
	}
	if m[4] != "" {
		r = r.Only(strings.Split(m[4], ",")...)
	}
	text = report.Pivot(r, strings.Split(m[2], ","), m[3])
	if text == "" {
		return "", errors.New("there is nothing of that")
	}
	return text + "\n", nil
}
