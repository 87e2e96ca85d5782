package report

import (
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
)

// Format is a form a Report can be written in.
type Format string

// Formats.
const (
	Table    Format = "table"
	JSON     Format = "json"
	NDJSON   Format = "ndjson"
	Markdown Format = "md"
	GoBench  Format = "gobench"
)

var formats = []Format{Table, JSON, NDJSON, Markdown, GoBench}

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
func (f *Format) Type() string { return "table|json|ndjson|md|gobench" }

// FormatOf is the format that a file's name asks for.
func FormatOf(name string) (Format, error) {
	switch suffix := strings.TrimPrefix(filepath.Ext(name), "."); suffix {
	case "txt":
		return Table, nil
	case "bench":
		return GoBench, nil
	case "json", "ndjson", "md":
		return Format(suffix), nil
	}
	return "", fmt.Errorf("output file %q: the suffix must be .txt, .json, .ndjson, .md or .bench", name)
}

// Output is one place a Report goes to. Most forms are written at the end;
// ndjson is written as things happen, so that it survives a kill.
type Output struct {
	W      io.Writer
	Format Format
}

// Started writes what is known before the first case.
func (o Output) Started(r *Report) error {
	if o.Format != NDJSON {
		return nil
	}
	head := *r
	head.Cases, head.Comparisons = nil, nil
	if err := o.line("run", head.Run, "schema", r.Schema); err != nil {
		return err
	}
	if err := o.line("host", head.Host); err != nil {
		return err
	}
	for _, d := range r.Devices {
		if err := o.line("device", d); err != nil {
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
	return o.line("case", c)
}

// Comparison writes a comparison that has been made.
func (o Output) Comparison(c Comparison) error {
	if o.Format != NDJSON {
		return nil
	}
	return o.line("comparison", c)
}

// Finished writes the rest.
func (o Output) Finished(r *Report) error {
	switch o.Format {
	case JSON:
		e := json.NewEncoder(o.W)
		e.SetIndent("", "  ")
		return e.Encode(r)
	case NDJSON:
		return o.line("end", r.Run)
	case GoBench:
		return goBench(o.W, r)
	}
	return tables(o.W, r, o.Format == Markdown)
}

// line writes one object with the given keys and values, in one Write so that a
// kill leaves whole lines.
func (o Output) line(pairs ...any) error {
	var axes Axes
	for i := 0; i < len(pairs); i += 2 {
		axes = append(axes, Axis{Name: pairs[i].(string), Value: pairs[i+1]})
	}
	b, err := json.Marshal(axes)
	if err != nil {
		return err
	}
	_, err = o.W.Write(append(b, '\n'))
	return err
}

// goBench writes every sample as a line of testing's benchmarks, for benchstat.
func goBench(w io.Writer, r *Report) error {
	for _, c := range r.Cases {
		var name strings.Builder
		command, _, _ := strings.Cut(c.ID, "/")
		name.WriteString("Benchmark" + strings.ToUpper(command[:1]) + command[1:])
		for _, a := range c.Axes {
			fmt.Fprintf(&name, "/%s=%s", a.Name, text(a))
		}
		for _, ns := range c.Samples {
			if _, err := fmt.Fprintf(w, "%s 1 %.3f ns/op %.3f MB/s\n", name.String(), ns, float64(c.Bytes)/ns*1e3); err != nil {
				return err
			}
		}
	}
	return nil
}
