package benchdoc

import (
	"bytes"
	"errors"
	"fmt"
	"html"
	"slices"
	"strings"

	"github.com/cuvmm/cuvmm/cmd/internal/size"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/page"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/plot"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
)

// maxPicture is how large a picture may be, in bytes.
const maxPicture = 60_000

// blocks make what can be shown.
var blocks = map[string]func(f *filler, options map[string]string, list []source) (string, error){
	"findings": findings,
	"table":    pivot,
	"reports":  reports,
	"slower":   slower,
	"picture":  picture,
}

// maxPage is how large the page of a report may be, in bytes.
const maxPage = 300 << 10

func pageName(file string) string { return strings.TrimSuffix(file, ".json") + ".html" }

// pageOf is the page of a report, nil if it is too large to keep.
func pageOf(file string, r *report.Report) ([]byte, error) {
	var b bytes.Buffer
	if _, err := page.Write(&b, []string{file}, []*report.Report{r}); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if b.Len() > maxPage {
		return nil, nil
	}
	return b.Bytes(), nil
}

// reports is a list of where the figures come from, with the reports of each and their pages, which have
// the commands.
func reports(f *filler, _ map[string]string, list []source) (string, error) {
	var runs []string
	reports := map[string][]string{}
	for _, s := range list {
		driver := ""
		for _, d := range s.Devices {
			if d.State != nil && d.State.DriverVersion != "" {
				driver = fmt.Sprintf("driver %s (%s), ", d.State.DriverVersion, d.Driver)
				break // a machine has one
			}
		}
		host := fmt.Sprintf("%d CPUs, %s", s.Host.CPUs, kernel(s.Report))
		if s.Host.Memory != nil {
			host += ", " + size.Approx(*s.Host.Memory)
		}
		day, _, _ := strings.Cut(s.Run.Started, "T")
		commit := string(s.Run.Version)
		if commit == "" || commit == "(devel)" {
			commit = "unknown"
		}
		if s.Run.Interrupted {
			day += ", interrupted"
		}
		data := fmt.Sprintf("[%s](%s/%s)", s.file, dataDir, s.file)
		if name := dataDir + "/" + pageName(s.file); f.files[name] != nil {
			data += fmt.Sprintf(", [page](%s)", name)
		}
		run := fmt.Sprintf("%s, %s%s, commit %s, %s", machineOf(s.Report), driver, host, commit, day)
		if reports[run] == nil {
			runs = append(runs, run)
		}
		reports[run] = append(reports[run], data)
	}
	var b strings.Builder
	for _, run := range runs {
		fmt.Fprintf(&b, "- %s: %s\n", run, strings.Join(reports[run], "; "))
	}
	return b.String(), nil
}

// pivot is a table of what was measured, of one report after the other.
func pivot(_ *filler, options map[string]string, list []source) (string, error) {
	if options["rows"] == "" || options["column"] == "" {
		return "", errors.New("want rows=AXIS,AXIS and column=AXIS")
	}
	var parts []string
	for _, s := range list {
		part := markdownTable(report.Pivot(s.Report, strings.Split(options["rows"], ","), options["column"]))
		if part == "" {
			return "", fmt.Errorf("%s has nothing of that", s.file)
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, "\n\n"), nil
}

// machineOf names the devices.
func machineOf(r *report.Report) string {
	var names []string
	for _, g := range report.GroupBy(r.Devices, func(d report.Device) string { return d.Name }) {
		if n := len(g.Of); n > 1 {
			g.Key = fmt.Sprintf("%d %s", n, g.Key)
		} else if uuid := string(g.Of[0].UUID); uuid != "" && strings.HasPrefix(g.Of[0].Open, "cuda") {
			g.Key += " " + uuid[:min(8, len(uuid))]
		}
		names = append(names, g.Key)
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

// findings are the sentences that say what was found, of one report after the other.
func findings(_ *filler, _ map[string]string, list []source) (string, error) {
	var lines []string
	for _, s := range list {
		found := report.Findings(s.Report)
		if len(found) == 0 {
			return "", fmt.Errorf("%s has nothing of that", s.file)
		}
		for _, sentence := range found {
			lines = append(lines, fmt.Sprintf("- %s ([%s](%s/%s))", sentence, s.file, dataDir, s.file))
		}
	}
	return strings.Join(lines, "\n"), nil
}

// slower is where memory that grows is slower than the other.
func slower(_ *filler, _ map[string]string, list []source) (string, error) {
	var lines []string
	firm, open, all := 0, 0, 0
	for _, s := range list {
		found, firmHere, openHere, of := report.Slower(s.Report)
		firm, open, all = firm+firmHere, open+openHere, all+of
		for _, x := range found {
			lines = append(lines, fmt.Sprintf("- [%s](%s/%s): %s", x.Case, dataDir, s.file, x.Says))
		}
	}
	if all == 0 {
		return "", errors.New("there are no comparisons")
	}
	text := fmt.Sprintf("Of %d comparisons memory that grows is slower in %d.", all, firm)
	if open > 0 {
		text += fmt.Sprintf(" In %d more its ratio is above the margin too, but the verdict is not firm.", open)
	}
	return text + "\n\n" + strings.Join(lines, "\n"), nil
}

// picture draws the pictures of a kind, for light and for dark pages.
func picture(f *filler, options map[string]string, list []source) (string, error) {
	kind := options["kind"]
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
					fmt.Fprintf(&sources, "<source media=\"%s(prefers-color-scheme: %s)\" srcset=\"%s\">", width.media, theme.Name, file)
				}
			}
			parts = append(parts, fmt.Sprintf("<picture>%s\n<img src=\"%s-%s.svg\" width=\"%d\" alt=\"%s\">\n</picture>",
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
	return report.NewTable(header, rows).RenderMarkdown()
}
