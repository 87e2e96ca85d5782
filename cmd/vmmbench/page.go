package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/page"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
)

func (a *app) page() *cobra.Command {
	c := command(&cobra.Command{
		Use:   "report REPORT...",
		Short: "Make an HTML page of reports, or another format of one",
		Long: `Make one HTML page of reports that were written with -o FILE.json or -o FILE.ndjson:
what was found, the machine, pictures with their figures, all cases and comparisons, and
what the words mean. The page has all it needs in itself, and no script. It is light or
dark as the browser is set, fits phones, and can be printed.
Or write one report in the format of another suffix: .txt, .json, .ndjson, .csv,
.bench.`,
		Example: `  vmmbench -o quick.json && vmmbench report quick.json -o quick.html
  vmmbench report host.json gpu.json -o both.html
  vmmbench report full.json --only grow,bw/d2d -o growth.txt`,
	})
	c.Args = wantReports
	output := c.Flags().StringP("output", "o", "", "the file, with the suffix .html, or that of another format")
	only := c.Flags().StringSlice("only", nil, "take the cases whose names begin so, as grow or grow/1GiB")
	c.RunE = func(c *cobra.Command, files []string) error {
		stop := a.endAtSignal(c.Context())
		defer stop()
		suffix := filepath.Ext(*output)
		html := suffix == ".html" || suffix == ".htm"
		format, err := report.FormatOf(*output)
		switch {
		case !html && err != nil:
			return usageError{errors.New("name the file: -o FILE.html, or .txt, .json, .ndjson, .csv, .bench")}
		case !html && len(files) > 1:
			return usageError{fmt.Errorf("%d reports: only an HTML page has several", len(files))}
		}
		var reports []*report.Report
		for _, file := range files {
			r, err := loadReport(file)
			if err != nil {
				return err
			}
			if len(*only) > 0 {
				if r = r.Only(*only...); len(r.Cases) == 0 {
					return usageError{fmt.Errorf("%s: no case is called %s", file, strings.Join(*only, ", "))}
				}
			}
			reports = append(reports, r)
		}
		var b bytes.Buffer
		if html {
			err = a.writePage(&b, files, reports)
		} else {
			err = report.Output{W: &b, Format: format}.Write(reports[0])
		}
		if err != nil {
			return err
		}
		return writeFile(*output, b.Bytes())
	}
	return c
}

// writePage writes an HTML page, and says on stderr what its pictures do not show.
func (a *app) writePage(w io.Writer, files []string, reports []*report.Report) error {
	left, err := page.Write(w, files, reports)
	if err != nil {
		return err
	}
	for i, file := range files {
		a.leftOut(file, left[i])
	}
	return nil
}
