package report

import (
	"encoding/csv"
	"io"
	"reflect"
	"strings"
)

// csvColumns has a column for each axis of any case, those of all cases, and those of
// comparisons. The first says which of the two a line is.
func csvColumns(r *Report) []string {
	list := append([]string{"record", "id"}, axesOf(r.Cases)...)
	list = append(list, "unit", "bytes", "status", "reason", "flags")
	for _, m := range metrics {
		list = append(list, m.Name)
	}
	return append(list, "verify", "verify_bytes", "verify_bytes_by_device", "verify_errors",
		"a", "b", "ratio", "ratio_low", "ratio_high", "margin", "verdict")
}

// record is the line of a case: values by the names of their columns.
func (c *Case) record() map[string]any {
	line := map[string]any{}
	fieldValues(reflect.ValueOf(*c), "", line)
	for _, m := range c.Metrics() {
		line[m.Name] = m.Value
	}
	line["record"], line["flags"], line["verify"] = "case", strings.Join(c.Flags, " "), line["verify_mode"]
	for _, a := range c.Axes {
		line[a.Name] = a.Value
	}
	return line
}

// record is the line of a comparison. It has the axes in which its sides do not differ.
func (c *Comparison) record(a, b Case) map[string]any {
	line := map[string]any{}
	fieldValues(reflect.ValueOf(*c), "", line)
	line["record"], line["ratio_low"], line["ratio_high"] = "comparison", line["low"], line["high"]
	for _, axis := range b.Axes {
		if exact(axis.Value) == exact(a.Axes.Of(axis.Name)) {
			line[axis.Name] = axis.Value
		}
	}
	return line
}

// writeCSV writes a line for each case and each comparison, by RFC 4180. It has no
// samples; the other formats do.
func writeCSV(w io.Writer, r *Report) error {
	columns := csvColumns(r)
	lines := [][]string{columns}
	add := func(of map[string]any) {
		line := make([]string, len(columns))
		for i, name := range columns {
			line[i] = exact(of[name])
		}
		lines = append(lines, line)
	}
	for _, c := range r.Cases {
		add(c.record())
	}
	cases := byID(r.Cases)
	for _, c := range r.Comparisons {
		add(c.record(cases[c.A], cases[c.B]))
	}
	out := csv.NewWriter(w)
	out.UseCRLF = true
	return out.WriteAll(lines)
}
