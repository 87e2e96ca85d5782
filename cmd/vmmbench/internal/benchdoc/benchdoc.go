// Package benchdoc makes what documents show of reports of vmmbench in docs/benchmarks: tables
// and pictures of docs/benchmarks.md, a page for each report, and single figures of
// docs/benchmarks.md, docs/fast.md, docs/coming-from/others.md and README.md.
//
// A table stands in a block, between two comments. The tool replaces the text there:
//
//	<!-- bench table h200-growth.json rows=mem column=size only=grow/8GiB -->
//	<!-- /bench -->
//
// The block reports lists all reports, and slower what memory that grows is slower than.
//
// A picture is an image whose file is named for a report and a picture of it. A single figure is
// the text of a link to the report, whose title says which one it is:
//
//	![Growing to 8GiB](images/bench-h200-growth-growth-8gib.svg)
//	[11.03 ms](benchmarks/h200-growth.json "time of grow/8GiB/vmm")
//
// The texts are replaced. report.Report.Figure has what a title may say. Figures that other
// programs measured are in docs/benchmarks/programs; the title is their name.
package benchdoc

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/page"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
)

// dataDir has reports and their pages, below the folder of the documents.
const dataDir = "benchmarks/"

// documents have tables, pictures and figures. The first one has to be there.
var documents = []string{"benchmarks.md", "fast.md", "coming-from/others.md", "../README.md"}

// files makes the documents of dir, their data, pictures and pages anew. It returns them by
// their names below dir, and changes nothing.
func files(dir string) (map[string][]byte, error) {
	f, err := read(os.DirFS(dir))
	if err != nil {
		return nil, err
	}
	for name, r := range f.reports {
		if err := f.keep(name, r); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	for _, name := range documents {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if os.IsNotExist(err) && name != documents[0] {
			continue
		}
		if err == nil {
			f.made[name], err = f.fill(string(text))
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return f.made, nil
}

// keep makes the files of a report: its data and its page.
func (f *filler) keep(name string, r *report.Report) (err error) {
	var html bytes.Buffer
	if f.made[dataDir+name], err = encode(r); err != nil {
		return err
	}
	err = page.Write(&html, []string{name}, []*report.Report{r})
	f.made[dataDir+pageName(name)] = html.Bytes()
	return err
}

func pageName(file string) string { return strings.TrimSuffix(file, ".json") + ".html" }
