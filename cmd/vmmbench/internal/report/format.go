package report

import (
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
)

// Format is a format that a Report can be written in.
type Format string

// Formats.
const (
	Table    Format = "table"
	JSON     Format = "json"
	NDJSON   Format = "ndjson"
	CSV      Format = "csv"
	Markdown Format = "md"
	GoBench  Format = "gobench"

	// As NVIDIA's nvbandwidth prints its own cases, of which there are none in most reports.
	NVBandwidth     Format = "nvbandwidth"
	NVBandwidthJSON Format = "nvbandwidth-json"
)

var formats = []Format{Table, JSON, NDJSON, CSV, Markdown, GoBench, NVBandwidth, NVBandwidthJSON}

// Set implements pflag.Value.
func (f *Format) Set(s string) error {
	if !slices.Contains(formats, Format(s)) {
		return fmt.Errorf("format %q: want one of %v", s, formats)
	}
	*f = Format(s)
	return nil
}

func (f *Format) String() string { return string(*f) }

// Type implements pflag.Value.
func (f *Format) Type() string {
	var words []string
	for _, x := range formats {
		words = append(words, string(x))
	}
	return strings.Join(words, "|")
}

// FormatOf returns the format for the suffix of a file's name.
func FormatOf(name string) (Format, error) {
	switch suffix := strings.TrimPrefix(filepath.Ext(name), "."); suffix {
	case "txt":
		return Table, nil
	case "bench":
		return GoBench, nil
	case "json", "ndjson", "csv", "md":
		return Format(suffix), nil
	case "html", "htm":
		return "", fmt.Errorf("output file %q: a page is made later: write FILE.json, then vmmbench report FILE.json -o FILE.html", name)
	}
	return "", fmt.Errorf("output file %q: the suffix must be .txt, .json, .ndjson, .csv, .md or .bench", name)
}

// Output is one place that a Report goes to. Most formats are written at the end.
// ndjson is written line by line, so that a killed run leaves what it had.
type Output struct {
	W      io.Writer
	Format Format
}

// Started writes what is known before the first case. Only ndjson does.
func (o Output) Started(r *Report) error {
	if o.Format != NDJSON {
		return nil
	}
	if err := o.line(map[string]any{"schema": r.Schema, "run": r.Run}); err != nil {
		return err
	}
	return o.machine(r)
}

// machine writes the host and the devices.
func (o Output) machine(r *Report) error {
	if err := o.line(map[string]any{"host": r.Host}); err != nil {
		return err
	}
	for _, d := range r.Devices {
		if err := o.line(map[string]any{"device": d}); err != nil {
			return err
		}
	}
	return nil
}

// Case writes a case that has ended.
func (o Output) Case(c Case) error {
	if o.Format != NDJSON {
		return nil
	}
	return o.line(map[string]any{"case": c})
}

// Comparison writes a comparison that has been made.
func (o Output) Comparison(c Comparison) error {
	if o.Format != NDJSON {
		return nil
	}
	return o.line(map[string]any{"comparison": c})
}

// Finished writes what has not been written yet.
func (o Output) Finished(r *Report) error {
	switch o.Format {
	case JSON:
		e := json.NewEncoder(o.W)
		e.SetIndent("", "  ")
		return e.Encode(r)
	case NDJSON:
		if r.Baseline != nil {
			if err := o.line(map[string]any{"baseline": r.Baseline}); err != nil {
				return err
			}
		}
		// Once more, with their state at the end.
		if err := o.machine(r); err != nil {
			return err
		}
		return o.line(map[string]any{"end": r.Run})
	case CSV:
		return writeCSV(o.W, r)
	case GoBench:
		return writeGoBench(o.W, r)
	case NVBandwidth:
		return writeNVBandwidth(o.W, r)
	case NVBandwidthJSON:
		return writeNVBandwidthJSON(o.W, r)
	}
	return tables(o.W, r, o.Format == Markdown)
}

// line writes one object. It is one Write, so that a killed run leaves whole lines.
func (o Output) line(object map[string]any) error {
	b, err := json.Marshal(object)
	if err != nil {
		return err
	}
	_, err = o.W.Write(append(b, '\n'))
	return err
}
