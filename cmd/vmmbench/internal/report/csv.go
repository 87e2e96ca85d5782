package report

import (
	"encoding/csv"
	"io"
	"strings"
)

// writeCSV writes a line for each case, by RFC 4180, with the comparison with the baseline if there
// is one. The other formats have all.
func writeCSV(w io.Writer, r *Report) error {
	lines := [][]string{{"id", "status", "reason", "value", "unit", "low", "high", "n", "median_ns", "p5_ns", "p95_ns", "flags", "axes"}}
	if r.Baseline != nil {
		lines[0] = append(lines[0], "ratio", "ratio_low", "ratio_high", "verdict")
	}
	against := map[string]Comparison{}
	for _, c := range r.Comparisons {
		if c.ofRuns() {
			against[c.B] = c
		}
	}
	for _, c := range r.Cases {
		var axes []string
		for _, a := range c.Axes {
			axes = append(axes, a.Name+"="+exact(a.Value))
		}
		line := []string{c.ID, string(c.Status), string(c.Reason), "", c.Unit, "", "", "", "", "", "", strings.Join(c.Flags, " "), strings.Join(axes, " ")}
		if s := c.Stats; s != nil {
			line[3] = exact(s.Value)
			copy(line[5:], []string{exact(s.ValueLow), exact(s.ValueHigh), exact(s.N), exact(s.Median), exact(s.P5), exact(s.P95)})
		}
		if r.Baseline != nil {
			x := against[c.ID]
			line = append(line, exact(x.Ratio), exact(x.Low), exact(x.High), string(x.Verdict))
		}
		lines = append(lines, line)
	}
	out := csv.NewWriter(w)
	out.UseCRLF = true
	return out.WriteAll(lines)
}
