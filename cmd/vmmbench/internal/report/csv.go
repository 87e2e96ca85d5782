package report

import (
	"encoding/csv"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/verify"
)

// csvColumn is a column. of returns its value for a case, comparison that for a
// comparison. If it is nil, the column is empty in such lines.
type csvColumn struct {
	name       string
	of         func(Case) string
	comparison func(Comparison) string
}

// csvColumns has a column for each axis of any case, those of all cases, and those of
// comparisons. The first says which of the two a line is.
func csvColumns(r *Report) []csvColumn {
	list := []csvColumn{
		{"record", func(Case) string { return "case" }, func(Comparison) string { return "comparison" }},
		{"id", func(c Case) string { return c.ID }, func(c Comparison) string { return c.ID }},
	}
	cases := byID(r.Cases)
	// A comparison has the axes in which its sides do not differ.
	for _, name := range axesOf(r) {
		list = append(list, csvColumn{
			name, func(c Case) string { return csvAxis(c.Axes.Of(name)) },
			func(c Comparison) string {
				a, b := csvAxis(cases[c.A].Axes.Of(name)), csvAxis(cases[c.B].Axes.Of(name))
				if a != b {
					return ""
				}
				return b
			},
		})
	}
	list = append(list,
		csvColumn{"unit", func(c Case) string { return c.Unit }, nil},
		csvColumn{"bytes", func(c Case) string { return csvNumber(c.Bytes) }, nil},
		csvColumn{"status", func(c Case) string { return string(c.Status) }, nil},
		csvColumn{"reason", func(c Case) string { return string(c.Reason) }, func(c Comparison) string { return string(c.Reason) }},
		csvColumn{"flags", func(c Case) string { return strings.Join(c.Flags, " ") }, nil},
	)
	list = append(list, csvStats()...)
	return append(list,
		csvColumn{"a", nil, func(c Comparison) string { return c.A }},
		csvColumn{"b", nil, func(c Comparison) string { return c.B }},
		csvColumn{"ratio", nil, func(c Comparison) string { return csvOptional(c.Ratio) }},
		csvColumn{"ratio_low", nil, func(c Comparison) string { return csvOptional(c.Low) }},
		csvColumn{"ratio_high", nil, func(c Comparison) string { return csvOptional(c.High) }},
		csvColumn{"margin", nil, func(c Comparison) string { return csvNumber(c.Margin) }},
		csvColumn{"verdict", nil, func(c Comparison) string { return string(c.Verdict) }},
	)
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

// csvStats are the columns of what was measured. A case without it has empty ones.
func csvStats() []csvColumn {
	stats := func(name string, of func(*Stats) string) csvColumn {
		return csvColumn{name, func(c Case) string {
			if c.Stats == nil {
				return ""
			}
			return of(c.Stats)
		}, nil}
	}
	// Some columns are of what only some cases have.
	ways := func(name string, of func(*Both) float64) csvColumn {
		return stats(name, func(s *Stats) string {
			if s.Both == nil {
				return ""
			}
			return csvNumber(of(s.Both))
		})
	}
	soak := func(name string, of func(*Soak) string) csvColumn {
		return stats(name, func(s *Stats) string {
			if s.Soak == nil {
				return ""
			}
			return of(s.Soak)
		})
	}
	growth := func(name string, of func(*Growth) string) csvColumn {
		return stats(name, func(s *Stats) string {
			if s.Growth == nil {
				return ""
			}
			return of(s.Growth)
		})
	}
	sharing := func(name string, of func(*Sharing) string) csvColumn {
		return stats(name, func(s *Stats) string {
			if s.Sharing == nil {
				return ""
			}
			return of(s.Sharing)
		})
	}
	pooled := func(name string, of func(*Pooled) string) csvColumn {
		return stats(name, func(s *Stats) string {
			if s.Pooled == nil {
				return ""
			}
			return of(s.Pooled)
		})
	}
	checked := func(name string, of func(*verify.Result) string) csvColumn {
		return csvColumn{name, func(c Case) string {
			if c.Verify == nil {
				return ""
			}
			return of(c.Verify)
		}, nil}
	}
	return []csvColumn{
		stats("n", func(s *Stats) string { return csvNumber(s.N) }),
		stats("loops", func(s *Stats) string { return csvNumber(s.Loops) }),
		stats("stop", func(s *Stats) string { return s.Stop }),
		stats("value", func(s *Stats) string { return csvNumber(s.Value) }),
		stats("value_low", func(s *Stats) string { return csvOptional(s.ValueLow) }),
		stats("value_high", func(s *Stats) string { return csvOptional(s.ValueHigh) }),
		stats("traffic", func(s *Stats) string { return csvOptional(s.Traffic) }),
		ways("forward", func(b *Both) float64 { return b.Forward }),
		ways("reverse", func(b *Both) float64 { return b.Reverse }),
		stats("median_ns", func(s *Stats) string { return csvNumber(s.Median) }),
		stats("mad_ns", func(s *Stats) string { return csvNumber(s.MAD) }),
		stats("min_ns", func(s *Stats) string { return csvNumber(s.Min) }),
		stats("p5_ns", func(s *Stats) string { return csvNumber(s.P5) }),
		stats("p95_ns", func(s *Stats) string { return csvNumber(s.P95) }),
		stats("max_ns", func(s *Stats) string { return csvNumber(s.Max) }),
		soak("soak_p50_ns", func(x *Soak) string { return csvNumber(x.P50) }),
		soak("soak_p99_ns", func(x *Soak) string { return csvOptional(x.P99) }),
		soak("soak_p999_ns", func(x *Soak) string { return csvOptional(x.P999) }),
		soak("soak_slowest_ns", func(x *Soak) string { return csvNumber(x.Slowest) }),
		soak("soak_slowest_at_seconds", func(x *Soak) string { return csvNumber(x.SlowestAt) }),
		growth("steps", func(g *Growth) string { return csvNumber(g.Steps) }),
		growth("step_p50_ns", func(g *Growth) string { return csvNumber(g.StepP50) }),
		growth("step_p99_ns", func(g *Growth) string { return csvNumber(g.StepP99) }),
		growth("step_max_ns", func(g *Growth) string { return csvNumber(g.StepMax) }),
		growth("bytes_copied", func(g *Growth) string { return csvNumber(g.Copied) }),
		growth("peak_bytes", func(g *Growth) string { return csvNumber(g.Peak) }),
		growth("moves", func(g *Growth) string { return csvNumber(g.Moves) }),
		stats("timer_ns", func(s *Stats) string { return csvOptional(s.Timer) }),
		sharing("p99_ns", func(x *Sharing) string { return csvNumber(x.P99) }),
		sharing("reader_fds", func(x *Sharing) string { return csvNumber(x.ReaderFDs) }),
		pooled("live_peak_bytes", func(x *Pooled) string { return csvNumber(x.Live) }),
		pooled("reserved_peak_bytes", func(x *Pooled) string { return csvNumber(x.Reserved) }),
		pooled("failed_allocs", func(x *Pooled) string { return csvNumber(x.Failures) }),
		checked("verify", func(v *verify.Result) string { return string(v.Mode) }),
		checked("verify_bytes", func(v *verify.Result) string { return csvNumber(v.Bytes) }),
		checked("verify_bytes_by_device", func(v *verify.Result) string { return csvNumber(v.ByDevice) }),
		checked("verify_errors", func(v *verify.Result) string { return csvNumber(v.Errors) }),
	}
}

// csvNumber prints a number so that nothing of it is lost.
func csvNumber[T int | uint64 | float64](x T) string {
	if f, ok := any(x).(float64); ok {
		return strconv.FormatFloat(f, 'f', -1, 64)
	}
	return fmt.Sprint(x)
}

// csvOptional prints a number that may be missing.
func csvOptional[T int | float64](x *T) string {
	if x == nil {
		return ""
	}
	return csvNumber(*x)
}

// csvAxis prints the value of an axis, sizes in bytes.
func csvAxis(value any) string {
	switch v := value.(type) {
	case nil:
		return ""
	case float64:
		return csvNumber(v)
	}
	return fmt.Sprint(value)
}

// writeCSV writes a line for each case and each comparison, by RFC 4180. It has no
// samples; the other formats do.
func writeCSV(w io.Writer, r *Report) error {
	out := csv.NewWriter(w)
	out.UseCRLF = true
	columns := csvColumns(r)
	line := make([]string, len(columns))
	// write writes a line; of is its value in a column.
	write := func(of func(csvColumn) string) error {
		for i, column := range columns {
			line[i] = of(column)
		}
		return out.Write(line)
	}
	if err := write(func(column csvColumn) string { return column.name }); err != nil {
		return err
	}
	for _, c := range r.Cases {
		err := write(func(column csvColumn) string {
			if column.of == nil {
				return ""
			}
			return column.of(c)
		})
		if err != nil {
			return err
		}
	}
	for _, c := range r.Comparisons {
		err := write(func(column csvColumn) string {
			if column.comparison == nil {
				return ""
			}
			return column.comparison(c)
		})
		if err != nil {
			return err
		}
	}
	out.Flush()
	return out.Error()
}
