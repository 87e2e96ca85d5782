package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/page"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
)

func (a *app) page() *cobra.Command {
	c := command(&cobra.Command{
		Use:   "report REPORT...",
		Short: "Make one HTML page of reports",
		Long: `Make one HTML page of reports that were written with -o FILE.json or -o FILE.ndjson:
what was found, the machine, pictures with their figures, all cases and comparisons, and
what the words mean. The page has all it needs in itself, and no script. It is light or
dark as the browser is set, fits phones, and can be printed.`,
		Example: `  vmmbench -o tour.json && vmmbench report tour.json -o tour.html
  vmmbench report host.json gpu.json -o both.html`,
	})
	c.Args = wantReports
	output := c.Flags().StringP("output", "o", "", "the page: a file with the suffix .html")
	c.RunE = func(_ *cobra.Command, files []string) error {
		if suffix := filepath.Ext(*output); suffix != ".html" && suffix != ".htm" {
			return usageError{errors.New("name the page: -o FILE.html")}
		}
		var reports []*report.Report
		for _, file := range files {
			r, err := loadReport(file)
			if err != nil {
				return err
			}
			reports = append(reports, r)
		}
		var b bytes.Buffer
		left, err := page.Write(&b, files, reports)
		if err != nil {
			return err
		}
		for i, file := range files {
			a.leftOut(file, left[i])
		}
		return os.WriteFile(*output, b.Bytes(), 0o666)
	}
	return c
}
