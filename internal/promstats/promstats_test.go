package promstats

import (
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
)

type Inner struct{ Done uint64 }

type outer struct {
	Inner
	Bytes uint64
	Took  time.Duration
	Conns Inner
	Name  string
}

var right = []Row{
	{"Done", "x_done_total", "Done."}, {"Bytes", "x_bytes", "Bytes."}, {"Took", "x_took_seconds", "Time."},
	{"Conns.Done", "x_conns_done_total", "Done by connections."},
}

// TestMismatches: what a table lacks, and what it has too much, is found.
func TestMismatches(t *testing.T) {
	t.Parallel()
	require.Empty(t, Mismatches[outer](right, "Name"))
	for want, rows := range map[string][]Row{
		"Bytes has no metric":          slices.Delete(slices.Clone(right), 1, 2),
		"Bytes is listed twice":        append(slices.Clone(right), Row{"Bytes", "x_more_bytes", ""}),
		"x_bytes is there twice":       append(slices.Clone(right), Row{"Bytes", "x_bytes", ""}),
		"Gone is no number":            append(slices.Clone(right), Row{"Gone", "x_gone", ""}),
		"Name is listed twice":         append(slices.Clone(right), Row{"Name", "x_name", ""}),
		"Conns.Done.More is no number": append(slices.Clone(right), Row{"Conns.Done.More", "x_more", ""}),
	} {
		require.Contains(t, Mismatches[outer](rows, "Name"), want)
	}
	require.Equal(t, []string{"Name has no metric"}, Mismatches[outer](right))
	require.Equal(t, []string{"Nothing does not exist"}, Mismatches[outer](right, "Name", "Nothing"))
}

// TestCollector: one read for all numbers; rows without a field, or whose field is a text, are left
// out.
func TestCollector(t *testing.T) {
	t.Parallel()
	reads := 0
	rows := append(slices.Clone(right), Row{"Gone", "x_gone", "None."}, Row{"Name", "x_name", "None."}, Row{"Bytes.More", "x_more", "None."})
	c := Collector(rows, prometheus.Labels{"of": "a"}, func() outer {
		reads++
		return outer{Inner{1}, 2, 3 * time.Second, Inner{4}, "five"}
	})
	r := prometheus.NewPedanticRegistry()
	require.NoError(t, r.Register(c))
	require.Error(t, r.Register(Collector(right, prometheus.Labels{"of": "a"}, func() outer { return outer{} })))
	require.Zero(t, reads)
	families, err := r.Gather()
	require.NoError(t, err)
	require.Equal(t, 1, reads)
	got := map[string]float64{}
	for _, f := range families {
		m := f.GetMetric()
		require.Len(t, m, 1)
		require.Len(t, m[0].GetLabel(), 1)
		require.Equal(t, "a", m[0].GetLabel()[0].GetValue())
		got[f.GetName()] = m[0].GetGauge().GetValue() + m[0].GetCounter().GetValue()
	}
	require.Equal(t, map[string]float64{"x_done_total": 1, "x_bytes": 2, "x_took_seconds": 3, "x_conns_done_total": 4}, got)
}

// TestAnyText: a label has the text that it can have.
func TestAnyText(t *testing.T) {
	t.Parallel()
	r := prometheus.NewPedanticRegistry()
	require.NoError(t, r.Register(Collector(right, prometheus.Labels{"socket": "/tmp/\xff"}, func() outer { return outer{} })))
	all, err := r.Gather()
	require.NoError(t, err)
	require.Equal(t, "/tmp/\uFFFD", all[0].Metric[0].Label[0].GetValue())
}
