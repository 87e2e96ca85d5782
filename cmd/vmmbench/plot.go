package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/plot"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
	"github.com/cuvmm/cuvmm/internal/said"
)

// endAtSignal has the first signal end the process, until stop is called: who draws has
// nothing to complete.
func (a *app) endAtSignal(ctx context.Context) (stop func() bool) {
	return context.AfterFunc(ctx, func() { a.settings.exit(report.ExitInterrupted) })
}

func (a *app) plot() *cobra.Command {
	c := command(&cobra.Command{
		Use:   "plot REPORT...",
		Short: "Draw the figures of reports as SVG or PNG",
		Long: `Draw the figures of reports that were written with -o FILE.json or -o FILE.ndjson.
The kinds of pictures:
  growth     time over the bytes appended so far
  ratios     comparisons with their intervals and the margin, those that differ most first
  bandwidth  GB/s by size
  matrix     copies between devices, for each pair
A line's band and the bar through a mark are the 95 % interval of the median. The names
of the files go to stdout. What no picture shows is named on stderr. If there is nothing
to draw, plot fails.`,
		Example: `  vmmbench grow -o grow.json && vmmbench plot grow.json -o pictures
  vmmbench plot grow.json --kind growth --theme dark -o growth.png`,
	})
	c.Args = wantReports
	output, theme, themes := ".", choice{value: plot.Light.Name}, map[string]plot.Theme{}
	for _, t := range plot.Themes {
		theme.of, themes[t.Name] = append(theme.of, t.Name), t
	}
	format := choice{value: plot.Formats[0], of: plot.Formats}
	var kinds choices
	for _, k := range plot.Kinds {
		kinds.of = append(kinds.of, string(k))
	}
	kinds.values = kinds.of
	f := c.Flags()
	f.StringVarP(&output, "output", "o", output, "a folder, which is made; or, for a single picture, a file with the suffix .svg or .png")
	f.Var(&kinds, "kind", "kinds of pictures")
	f.Var(&theme, "theme", "colors for light or dark pages")
	f.Var(&format, "format", "format of pictures in a folder")
	width := f.Int("width", plot.Wide, "width of a picture, in points")
	c.RunE = func(c *cobra.Command, files []string) error {
		stop := a.endAtSignal(c.Context())
		defer stop()
		// A single file has its format in its name.
		single, err := pictureFormat(output)
		switch {
		case err != nil:
			return usageError{err}
		case single != "" && f.Changed("format"):
			return usageError{errors.New("--format is for a folder: the suffix of a file is its format")}
		case *width < 300 || *width > 4000:
			return usageError{fmt.Errorf("--width %d: want 300 to 4000", *width)}
		}
		pictures, err := a.pictures(files, kinds)
		if err != nil {
			return err
		}
		style := pictureStyle{themes[theme.value], format.value, *width}
		if single != "" {
			style.format = single
			if len(pictures) != 1 {
				return usageError{fmt.Errorf("-o %s is one file, but there are %d pictures: name a folder, or one --kind", output, len(pictures))}
			}
			return a.writePicture(style, pictures[0], output)
		}
		for _, p := range pictures {
			if err := a.writePicture(style, p, filepath.Join(output, p.name+"."+format.value)); err != nil {
				return err
			}
		}
		return nil
	}
	return c
}

// wantReports refuses a command line without files.
func wantReports(_ *cobra.Command, args []string) error {
	if len(args) == 0 {
		return usageError{errors.New("no report: name the JSON file of one, as -o FILE.json writes it")}
	}
	return nil
}

// pictureFormat is the format for the suffix of a file's name, empty for a folder.
func pictureFormat(name string) (string, error) {
	if info, err := os.Stat(name); err == nil && info.IsDir() || strings.HasSuffix(name, "/") {
		return "", nil
	}
	suffix := strings.ToLower(strings.TrimPrefix(filepath.Ext(name), "."))
	if suffix != "" && !slices.Contains(plot.Formats, suffix) {
		return "", fmt.Errorf("-o %s: pictures are .%s files; if this is to be a folder, end it in /", name, strings.Join(plot.Formats, " or ."))
	}
	return suffix, nil
}

// picture is a picture and the name of its file.
type picture struct {
	name string
	*plot.Chart
}

// pictures are those of all reports. With several, the file of its report begins the name
// of each picture.
func (a *app) pictures(files []string, kinds choices) ([]picture, error) {
	var list []picture
	// Of a kind that was asked for, it is said if the report has nothing to draw.
	var asked []plot.Kind
	if len(kinds.values) < len(kinds.of) {
		for _, k := range kinds.values {
			asked = append(asked, plot.Kind(k))
		}
	}
	for i, file := range files {
		r, err := loadReport(file)
		if err != nil {
			return nil, err
		}
		prefix := ""
		if len(files) > 1 {
			prefix = fmt.Sprintf("%d-%s-", i+1, strings.TrimSuffix(filepath.Base(file), filepath.Ext(file)))
		}
		charts, left := plot.Charts(r, asked...)
		for _, c := range charts {
			list = append(list, picture{prefix + c.Name, c})
		}
		a.leftOut(file, left)
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("nothing to draw in %s: pictures show growth, comparisons, bandwidth by size, and pairs of devices", strings.Join(files, ", "))
	}
	return list, nil
}

// leftOut says on stderr what no picture shows.
func (a *app) leftOut(file string, left []string) {
	for _, what := range left {
		_, _ = fmt.Fprintf(said.Screen(a.stderr), "%s: not drawn: %s\n", file, what)
	}
}

// pictureStyle is how pictures are drawn.
type pictureStyle struct {
	theme  plot.Theme
	format string
	width  int
}

// writePicture writes a picture and prints the name of its file.
func (a *app) writePicture(style pictureStyle, p picture, name string) error {
	var b bytes.Buffer
	if err := p.Write(&b, style.format, style.theme, style.width); err != nil {
		return fmt.Errorf("%s: %w", p.Name, err)
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o777); err != nil {
		return err
	}
	if err := writeFile(name, b.Bytes()); err != nil {
		return err
	}
	_, err := fmt.Fprintln(a.stdout, name)
	return err
}
