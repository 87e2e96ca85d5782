package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/page"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/plot"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
)

func (a *app) report() *cobra.Command {
	c := command(&cobra.Command{
		Use:   "report REPORT...",
		Short: "Make an HTML page of reports, their pictures, or another format of one",
		Long: `Make one HTML page of reports that were written with -o FILE.json or -o FILE.ndjson. The
page has all it needs in itself. Or write one report in the format of another suffix.
--pictures writes the pictures of a page as SVG files, and prints their names.`,
		Example: `  vmmbench -o quick.json && vmmbench report quick.json -o quick.html
  vmmbench report host.json gpu.json -o both.html
  vmmbench report full.json --only grow,bw/d2d -o growth.csv
  vmmbench report quick.json --pictures pictures`,
	})
	c.Args = cobra.ArbitraryArgs
	output := c.Flags().StringP("output", "o", "", "the file, with the suffix .html, or that of another format")
	pictures := c.Flags().String("pictures", "", "a folder for the pictures, which is made")
	only := c.Flags().StringSlice("only", nil, "take the cases whose names begin so, as grow or grow/1GiB")
	c.RunE = func(c *cobra.Command, files []string) error {
		if len(files) == 0 || *output == "" && *pictures == "" {
			return usageError{errors.New("want the JSON files of reports, as -o FILE.json writes them, and -o FILE.html or --pictures DIR")}
		}
		reports, err := someOf(files, *only)
		if err == nil && *output != "" {
			err = writeReports(*output, files, reports)
		}
		if err == nil && *pictures != "" {
			err = a.writePictures(*pictures, files, reports)
		}
		return err
	}
	return c
}

// someOf reads reports, and takes of them the cases whose names begin so, if names are given.
func someOf(files, only []string) (list []*report.Report, err error) {
	for _, file := range files {
		r, err := loadReport(file)
		if err != nil {
			return nil, err
		}
		if len(only) > 0 {
			if r = r.Only(only...); len(r.Cases) == 0 {
				return nil, usageError{fmt.Errorf("%s: no case is called %s", file, strings.Join(only, ", "))}
			}
		}
		list = append(list, r)
	}
	return list, nil
}

// writeReports writes a page of reports, or one in the format of the file's suffix.
func writeReports(file string, names []string, reports []*report.Report) error {
	var b bytes.Buffer
	format, err := report.FormatOf(file)
	switch suffix := filepath.Ext(file); {
	case suffix == ".html" || suffix == ".htm":
		err = page.Write(&b, names, reports)
	case err != nil:
		return usageError{err}
	case len(reports) > 1:
		return usageError{fmt.Errorf("%d reports: only an HTML page has several", len(reports))}
	default:
		err = report.Output{W: &b, Format: format}.Write(reports[0])
	}
	if err != nil {
		return err
	}
	return writeFile(file, b.Bytes())
}

// writePictures writes the pictures of reports into a folder, and prints the names of the files.
// With several reports, the file of its report begins the name of each picture.
func (a *app) writePictures(folder string, files []string, reports []*report.Report) error {
	if err := os.MkdirAll(folder, 0o777); err != nil {
		return err
	}
	drawn := 0
	for i, r := range reports {
		prefix := ""
		if len(files) > 1 {
			prefix = fmt.Sprintf("%d-%s-", i+1, strings.TrimSuffix(filepath.Base(files[i]), filepath.Ext(files[i])))
		}
		for _, c := range plot.Charts(r) {
			name := filepath.Join(folder, prefix+c.Name+".svg")
			if err := writeFile(name, []byte(c.SVG(plot.Style))); err != nil {
				return err
			}
			if _, err := fmt.Fprintln(a.stdout, name); err != nil {
				return err
			}
			drawn++
		}
	}
	if drawn == 0 {
		return fmt.Errorf("nothing to draw in %s: pictures show growth, and bandwidth by size", strings.Join(files, ", "))
	}
	return nil
}
