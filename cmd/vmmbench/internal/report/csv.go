package report

import (
	"encoding/csv"
	"io"
	"slices"
	"strconv"
	"strings"
)

// csvColumn is a column. of returns its value for a case, empty if there is none.
type csvColumn struct {
	name string
	of   func(Case) string
}

// csvColumns has a column for each axis of any case, and those of all cases.
func csvColumns(r *Report) []csvColumn {
	list := []csvColumn{{"id", func(c Case) string { return c.ID }}}
	var seen []string
	for _, c := range r.Cases {
		for _, a := range c.Axes {
			if slices.Contains(seen, a.Name) {
				continue
			}
			seen = append(seen, a.Name)
			list = append(list, csvColumn{a.Name, func(c Case) string { return csvAxis(c.Axes.Of(a.Name)) }})
		}
	}
	// A case without statistics, or without a check, has empty columns for them.
	whole := func(n uint64) string { return strconv.FormatUint(n, 10) }
	stats := func(name string, of func(*Stats) float64) csvColumn {
		return csvColumn{name, func(c Case) string {
			if c.Stats == nil {
				return ""
			}
			return strconv.FormatFloat(of(c.Stats), 'f', -1, 64)
		}}
	}
	bound := func(name string, of func(*Stats) *float64) csvColumn {
		return csvColumn{name, func(c Case) string {
			if c.Stats == nil || of(c.Stats) == nil {
				return ""
			}
			return strconv.FormatFloat(*of(c.Stats), 'f', -1, 64)
		}}
	}
	checked := func(name string, of func(Case) string) csvColumn {
		return csvColumn{name, func(c Case) string {
			if c.Verify == nil {
				return ""
			}
			return of(c)
		}}
	}
	return append(list,
		csvColumn{"unit", func(c Case) string { return c.Unit }},
		csvColumn{"bytes", func(c Case) string { return whole(c.Bytes) }},
		csvColumn{"status", func(c Case) string { return string(c.Status) }},
		csvColumn{"reason", func(c Case) string { return string(c.Reason) }},
		csvColumn{"flags", func(c Case) string { return strings.Join(c.Flags, " ") }},
		stats("n", func(s *Stats) float64 { return float64(s.N) }),
		stats("value", func(s *Stats) float64 { return s.Value }),
		bound("value_low", func(s *Stats) *float64 { return s.ValueLow }),
		bound("value_high", func(s *Stats) *float64 { return s.ValueHigh }),
		stats("median_ns", func(s *Stats) float64 { return s.Median }),
		stats("mad_ns", func(s *Stats) float64 { return s.MAD }),
		stats("min_ns", func(s *Stats) float64 { return s.Min }),
		stats("p5_ns", func(s *Stats) float64 { return s.P5 }),
		stats("p95_ns", func(s *Stats) float64 { return s.P95 }),
		stats("max_ns", func(s *Stats) float64 { return s.Max }),
		checked("verify", func(c Case) string { return string(c.Verify.Mode) }),
		checked("verify_bytes", func(c Case) string { return whole(c.Verify.Bytes) }),
		checked("verify_errors", func(c Case) string { return whole(c.Verify.Errors) }),
	)
}

// csvAxis prints the value of an axis, sizes in bytes.
func csvAxis(value any) string {
	switch v := value.(type) {
	case string:
		return v
	case uint64:
		return strconv.FormatUint(v, 10)
	case int:
		return strconv.Itoa(v)
	}
	return ""
}

// writeCSV writes a line for each case, by RFC 4180. It has no samples; the other
// formats do.
func writeCSV(w io.Writer, r *Report) error {
	out := csv.NewWriter(w)
	out.UseCRLF = true
	columns := csvColumns(r)
	line := make([]string, len(columns))
	for i, column := range columns {
		line[i] = column.name
	}
	if err := out.Write(line); err != nil {
		return err
	}
	for _, c := range r.Cases {
		for i, column := range columns {
			line[i] = column.of(c)
		}
		if err := out.Write(line); err != nil {
			return err
		}
	}
	out.Flush()
	return out.Error()
}
