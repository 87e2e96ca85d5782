package report

import (
	"encoding/csv"
	"io"
	"slices"
	"strings"
)

// record is a line of CSV: values by the names of their columns.
type record map[string]string

// csvColumns has a column for each axis of any case, those of all cases, and those of
// comparisons. The first says which of the two a line is.
func csvColumns(r *Report) []string {
	list := append([]string{"record", "id"}, axesOf(r)...)
	list = append(list, "unit", "bytes", "status", "reason", "flags")
	for _, m := range metrics {
		list = append(list, m.Name)
	}
	return append(list, "verify", "verify_bytes", "verify_bytes_by_device", "verify_errors",
		"a", "b", "ratio", "ratio_low", "ratio_high", "margin", "verdict")
}

// axesOf returns the axes of all cases, in the order in which they come.
func axesOf(r *Report) []string {
	var list []string
	for _, c := range r.Cases {
		for _, a := range c.Axes {
			if !slices.Contains(list, a.Name) {
				list = append(list, a.Name)
			}
		}
	}
	return list
}

// record is the line of a case.
func (c *Case) record() record {
	line := record{
		"record": "case", "id": c.ID, "unit": c.Unit, "bytes": exact(c.Bytes), "status": string(c.Status),
		"reason": string(c.Reason), "flags": strings.Join(c.Flags, " "),
	}
	for _, a := range c.Axes {
		line[a.Name] = exact(a.Value)
	}
	for _, m := range c.Metrics() {
		line[m.Name] = exact(m.Value)
	}
	if v := c.Verify; v != nil {
		line["verify"], line["verify_bytes"] = string(v.Mode), exact(v.Bytes)
		line["verify_bytes_by_device"], line["verify_errors"] = exact(v.ByDevice), exact(v.Errors)
	}
	return line
}

// record is the line of a comparison. It has the axes in which its sides do not differ.
func (c *Comparison) record(a, b Case) record {
	line := record{
		"record": "comparison", "id": c.ID, "reason": string(c.Reason), "a": c.A, "b": c.B, "ratio": exact(c.Ratio),
		"ratio_low": exact(c.Low), "ratio_high": exact(c.High), "margin": exact(c.Margin), "verdict": string(c.Verdict),
	}
	for _, axis := range b.Axes {
		if value := exact(axis.Value); value == exact(a.Axes.Of(axis.Name)) {
			line[axis.Name] = value
		}
	}
	return line
}

// writeCSV writes a line for each case and each comparison, by RFC 4180. It has no
// samples; the other formats do.
func writeCSV(w io.Writer, r *Report) error {
	out := csv.NewWriter(w)
	out.UseCRLF = true
	columns := csvColumns(r)
	lines := [][]string{columns}
	add := func(of record) {
		line := make([]string, len(columns))
		for i, name := range columns {
			line[i] = of[name]
		}
		lines = append(lines, line)
	}
	for i := range r.Cases {
		add(r.Cases[i].record())
	}
	cases := byID(r.Cases)
	for i := range r.Comparisons {
		c := &r.Comparisons[i]
		add(c.record(cases[c.A], cases[c.B]))
	}
	return out.WriteAll(lines)
}
