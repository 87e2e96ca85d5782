package benchdoc

import (
	"bytes"
	"errors"
	"fmt"
	"html"
	"slices"
	"strings"

	"github.com/cuvmm/cuvmm/cmd/internal/size"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/plot"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
)

// maxPicture is how large a picture may be, in bytes.
const maxPicture = 60_000

// blocks make what can be shown.
var blocks = map[string]func(f *filler, kind string, list []source) (string, error){
	"origin":   each(origin),
	"findings": each(findings),
	"times":    each(func(s source) string { return markdownTable(report.GrowthTimes(s.Report)) }),
	"growth":   each(func(s source) string { return markdownTable(report.GrowthDetails(s.Report)) }),
	"tables":   each(tables),
	"slower":   slower,
	"picture":  picture,
	"words":    words,
}

// each shows the reports one after the other.
func each(show func(source) string) func(*filler, string, []source) (string, error) {
	return func(_ *filler, _ string, list []source) (string, error) {
		var parts []string
		for _, s := range list {
			part := show(s)
			if part == "" {
				return "", fmt.Errorf("%s has nothing of that", s.file)
			}
			parts = append(parts, part)
		}
		return strings.Join(parts, "\n\n"), nil
	}
}

// origin says where the figures of a report come from.
func origin(s source) string {
	parts := []string{machineOf(s.Report)}
	for _, d := range s.Devices {
		if d.State != nil && d.State.DriverVersion != "" {
			parts = append(parts, fmt.Sprintf("driver %s (%s)", d.State.DriverVersion, d.Driver))
			break // a machine has one
		}
	}
	host := fmt.Sprintf("%d CPUs", s.Host.CPUs)
	if s.Host.CPU != "" {
		host += ", " + string(s.Host.CPU)
	}
	if s.Host.Memory != nil {
		host += ", " + size.Approx(*s.Host.Memory)
	}
	commit := string(s.Run.Version)
	if commit == "" || commit == "(devel)" {
		commit = "unknown"
	}
	day, _, _ := strings.Cut(s.Run.Started, "T")
	parts = append(parts, host, kernel(s.Report), "commit "+commit, day)
	if s.Run.Interrupted {
		parts = append(parts, "interrupted, so this is not all")
	}
	command := strings.Join(append([]string{"vmmbench"}, s.Run.Args...), " ")
	return fmt.Sprintf("%s. All samples: [%s](%s/%s).\n\n    %s", strings.Join(parts, "; "), s.file, dataDir, s.file, command)
}

// machineOf names the devices.
func machineOf(r *report.Report) string {
	var names []string
	count := map[string]int{}
	for _, d := range r.Devices {
		if count[d.Name]++; count[d.Name] == 1 {
			names = append(names, d.Name)
		}
	}
	for i, name := range names {
		if n := count[name]; n > 1 {
			names[i] = fmt.Sprintf("%d %s", n, name)
		}
	}
	return strings.Join(names, ", ")
}

// kernel is the name of the operating system with the first two numbers of its version.
func kernel(r *report.Report) string {
	name := r.Host.OS
	if name == "linux" {
		name = "Linux"
	}
	numbers := strings.SplitN(string(r.Host.Kernel), ".", 3)
	return strings.TrimSpace(name + " " + strings.Join(numbers[:min(2, len(numbers))], "."))
}

// findings are the sentences that say what was found.
func findings(s source) string {
	var lines []string
	for _, sentence := range report.Findings(s.Report) {
		lines = append(lines, "- "+sentence)
	}
	return strings.Join(lines, "\n")
}

// tables are all tables of a report, as vmmbench prints them.
func tables(s source) string {
	var parts []string
	for _, p := range report.Figures(s.Report) {
		if p.Heading != "" {
			parts = append(parts, "**"+p.Heading+"**")
		}
		if p.Markdown != "" {
			parts = append(parts, p.Markdown)
		}
		parts = append(parts, p.Sentences...)
	}
	// On a page they are folded.
	return fmt.Sprintf("<details>\n<summary>All figures of %s</summary>\n\n%s\n\n</details>", s.file, strings.Join(parts, "\n\n"))
}

// slower is where memory that grows is slower than the other.
func slower(_ *filler, _ string, list []source) (string, error) {
	var header []string
	var rows [][]string
	open, all := 0, 0
	for _, s := range list {
		columns, found, openHere, of := report.Slower(s.Report)
		header = append([]string{"machine"}, columns...)
		open, all = open+openHere, all+of
		for _, row := range found {
			rows = append(rows, append([]string{machineOf(s.Report)}, row...))
		}
	}
	if all == 0 {
		return "", errors.New("there are no comparisons")
	}
	text := fmt.Sprintf("Of %d comparisons memory that grows is slower in %d.", all, len(rows))
	if open > 0 {
		text += fmt.Sprintf(" In %d more its ratio is above the margin too, but the verdict is not firm.", open)
	}
	return text + "\n\n" + markdownTable(header, rows), nil
}

// words explains the words of the tables.
func words(_ *filler, _ string, list []source) (string, error) {
	var lines []string
	for _, s := range list {
		for _, p := range report.Figures(s.Report) {
			for _, w := range p.Words {
				if line := "- " + w.Word + ": " + w.Means; !slices.Contains(lines, line) {
					lines = append(lines, line)
				}
			}
		}
	}
	return strings.Join(lines, "\n"), nil
}

// picture draws the pictures of a kind, for light and for dark pages.
func picture(f *filler, kind string, list []source) (string, error) {
	if !slices.Contains(plot.Kinds, plot.Kind(kind)) {
		return "", fmt.Errorf("want picture:KIND, of %v", plot.Kinds)
	}
	var parts []string
	for _, s := range list {
		charts, left := plot.Charts(s.Report, plot.Kind(kind))
		if len(charts) == 0 {
			return "", fmt.Errorf("%s: %s", s.file, strings.Join(left, "; "))
		}
		for _, c := range charts {
			name := "images/bench-" + strings.TrimSuffix(s.file, ".json") + "-" + c.Name
			// A phone shrinks what is wide, and its text with it.
			var sources strings.Builder
			for _, width := range []struct {
				media, name string
				points      int
			}{{"(max-width: 500px) and ", "-narrow", plot.Narrow}, {"", "", plot.Wide}} {
				for _, theme := range plot.Themes {
					file := name + width.name + "-" + theme.Name + ".svg"
					if err := f.draw(c, theme, width.points, file); err != nil {
						return "", err
					}
					fmt.Fprintf(&sources, "  <source media=\"%s(prefers-color-scheme: %s)\" srcset=\"%s\">\n", width.media, theme.Name, file)
				}
			}
			parts = append(parts, fmt.Sprintf("<picture>\n%s  <img src=\"%s-%s.svg\" width=\"%d\" alt=\"%s\">\n</picture>",
				&sources, name, plot.Light.Name, plot.Wide, html.EscapeString(c.Title+". "+c.Alt)))
		}
	}
	return strings.Join(parts, "\n\n"), nil
}

// draw adds a picture to the files.
func (f *filler) draw(c *plot.Chart, theme plot.Theme, width int, file string) error {
	var b bytes.Buffer
	if err := c.SVG(&b, theme, width, c.Name); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	if b.Len() > maxPicture {
		return fmt.Errorf("%s: %d bytes, over %d", file, b.Len(), maxPicture)
	}
	if old := f.files[file]; old != nil && !bytes.Equal(old, b.Bytes()) {
		return fmt.Errorf("%s: two pictures have this name", file)
	}
	f.files[file] = b.Bytes()
	return nil
}

// markdownTable is a table, empty if it has no rows.
func markdownTable(header []string, rows [][]string) string {
	if len(rows) == 0 {
		return ""
	}
	var b strings.Builder
	line := func(cells []string) {
		for _, cell := range cells {
			b.WriteString("| " + strings.ReplaceAll(cell, "|", `\|`) + " ")
		}
		b.WriteString("|\n")
	}
	line(header)
	line(slices.Repeat([]string{"---"}, len(header)))
	for _, row := range rows {
		line(row)
	}
	return strings.TrimSuffix(b.String(), "\n")
}
