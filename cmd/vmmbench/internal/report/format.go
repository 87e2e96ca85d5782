package report

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/cuvmm/cuvmm/internal/said"
)

// Format is a format that a Report can be written in.
type Format string

// Formats.
const (
	Table   Format = "table"
	JSON    Format = "json"
	NDJSON  Format = "ndjson"
	CSV     Format = "csv"
	GoBench Format = "gobench"
)

// Formats are all of them.
var Formats = []Format{Table, JSON, NDJSON, CSV, GoBench}

// FormatOf returns the format for the suffix of a file's name.
func FormatOf(name string) (Format, error) {
	suffix := strings.TrimPrefix(filepath.Ext(name), ".")
	format := map[string]Format{"txt": Table, "json": JSON, "ndjson": NDJSON, "csv": CSV, "bench": GoBench}[suffix]
	switch {
	case suffix == "html" || suffix == "htm":
		return "", fmt.Errorf("output file %q: a page is made later: write FILE.json, then vmmbench report FILE.json -o FILE.html", name)
	case format == "":
		return "", fmt.Errorf("output file %q: the suffix must be .txt, .json, .ndjson, .csv or .bench", name)
	}
	return format, nil
}

// Output is one place that a Report goes to. Most formats are written at the end.
// ndjson is written line by line, so that a killed run leaves what it had.
type Output struct {
	W      io.Writer
	Format Format
	Width  int // of a line of tables, if it may be more than 80
}

// line is a line of ndjson, which has one of these; the first has the schema too.
type line struct {
	Run        *Run        `json:"run,omitempty"`
	Schema     string      `json:"schema,omitempty"`
	Host       *Host       `json:"host,omitempty"`
	Device     *Device     `json:"device,omitempty"`
	Topology   []Link      `json:"topology,omitempty"`
	Case       *Case       `json:"case,omitempty"`
	Comparison *Comparison `json:"comparison,omitempty"`
	Baseline   *Baseline   `json:"baseline,omitempty"`
	End        *Run        `json:"end,omitempty"`
}

// lines writes some if the format has them. Each is one Write, so that a killed run leaves whole
// lines.
func (o Output) lines(list ...line) error {
	if o.Format != NDJSON {
		return nil
	}
	for _, x := range list {
		b, err := json.Marshal(x)
		if err == nil {
			_, err = o.W.Write(append(b, '\n'))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// machineLines are the host, the devices and the links between them.
func machineLines(r *Report) []line {
	list := []line{{Host: &r.Host}}
	for i := range r.Devices {
		list = append(list, line{Device: &r.Devices[i]})
	}
	if len(r.Topology) > 0 {
		list = append(list, line{Topology: r.Topology})
	}
	return list
}

// Started writes what is known before the first case. Only ndjson does, and Case and Comparison
// write what has ended and what has been compared.
func (o Output) Started(r *Report) error {
	return o.lines(append([]line{{Schema: r.Schema, Run: &r.Run}}, machineLines(r)...)...)
}

// Case writes a case.
func (o Output) Case(c Case) error { return o.lines(line{Case: &c}) }

// Comparison writes a comparison.
func (o Output) Comparison(c Comparison) error { return o.lines(line{Comparison: &c}) }

// Write writes a whole report, as a run writes it part by part.
func (o Output) Write(r *Report) error {
	err := o.Started(r)
	for _, c := range r.Cases {
		err = cmp.Or(err, o.Case(c))
	}
	for _, c := range r.Comparisons {
		err = cmp.Or(err, o.Comparison(c))
	}
	return cmp.Or(err, o.Finished(r))
}

// Finished writes what has not been written yet.
func (o Output) Finished(r *Report) error {
	shown := said.Screen(o.W) // for people: a report may be somebody else's
	switch o.Format {
	case JSON:
		e := json.NewEncoder(o.W)
		e.SetIndent("", "  ")
		return e.Encode(r)
	case NDJSON:
		var list []line
		if r.Baseline != nil {
			list = []line{{Baseline: r.Baseline}}
		}
		// The machine once more, with its state at the end.
		return o.lines(append(append(list, machineLines(r)...), line{End: &r.Run})...)
	case CSV:
		return writeCSV(o.W, r)
	case GoBench:
		return writeGoBench(shown, r)
	}
	return tables(shown, r, o.Width)
}
