package report

import (
	"encoding/csv"
	"fmt"
	"io"
	"slices"
	"strings"
)

// writeCSV writes a line for each case, by RFC 4180, with the comparison with the baseline if there
// is one. Its columns are fields of cases, of their statistics and of comparisons, and one with all
// axes. The other formats have all.
func writeCSV(w io.Writer, r *Report) error {
	columns := []string{"id", "status", "reason", "value", "unit", "value_low", "value_high", "n", "median_ns", "p5_ns", "p95_ns", "flags", "axes"}
	if r.Baseline != nil {
		columns = append(columns, "ratio", "low", "high", "verdict")
	}
	lines := [][]string{columns}
	for _, c := range r.Cases {
		line := make([]string, len(columns))
		add := func(list []field) {
			for _, f := range list {
				if at := slices.Index(columns, f.name); at >= 0 {
					line[at] = f.exact()
				}
			}
		}
		var axes []string
		for _, a := range c.Axes {
			axes = append(axes, a.Name+"="+fmt.Sprint(a.Value))
		}
		add(append(fields(c), field{"axes", strings.Join(axes, " ")}))
		add(fields(c.Stats))
		for _, x := range r.Comparisons {
			if x.ofRuns() && x.B == c.ID {
				add(without(fields(x), func(f field) bool { return f.name == "id" || f.name == "reason" }))
			}
		}
		lines = append(lines, line)
	}
	out := csv.NewWriter(w)
	out.UseCRLF = true
	return out.WriteAll(lines)
}
