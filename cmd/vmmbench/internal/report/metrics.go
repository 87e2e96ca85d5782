package report

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"github.com/cuvmm/cuvmm/cmd/internal/size"
)

// Metric is a figure of a case. Value is nil where the case does not have it.
type Metric struct {
	Name  string // in JSON and in CSV
	Unit  string // ns, bytes; empty for counts and for what has the unit of the case
	Value any    // an int, uint64, float64 or string
	Means string

	label string // its column, if a table shows it
	table string // the table that shows it, after the name of the command
}

// Tables of metrics that only some cases have.
const (
	tableSteps   = "its steps"
	tableReaders = "its readers"
	tablePools   = "what it held"
	tableSoak    = "repeated for long"
)

// metrics are all of them, in the order of CSV. Their values are fields of Stats.
var metrics = []Metric{
	{Name: "n", label: "n", Means: "samples"},
	{Name: "loops"},
	{Name: "stop"},
	{Name: "value", label: "median", Means: "the middle one of the samples"},
	{Name: "value_low"},
	{Name: "value_high"},
	{Name: "bandwidth", label: "bandwidth", Means: "bytes over the median time, in GB/s"},
	{Name: "traffic", label: "traffic", Means: "bytes read and written, twice the payload"},
	{Name: "forward", label: "forward", Means: "the copies from host to device, or by the device in from, over their own time"},
	{Name: "reverse", label: "reverse", Means: "the copies the other way, over their own time"},
	{Name: "median_ns", Unit: "ns"},
	{Name: "mad_ns", Unit: "ns"},
	{Name: "min_ns", Unit: "ns"},
	{Name: "p5_ns", Unit: "ns"},
	{Name: "p95_ns", Unit: "ns"},
	{Name: "max_ns", Unit: "ns"},
	{Name: "soak_p50_ns", Unit: "ns", table: tableSoak, label: "p50", Means: "half of the samples took no longer"},
	{Name: "soak_p99_ns", Unit: "ns", table: tableSoak, label: "p99", Means: "99 of 100 samples took no longer"},
	{Name: "soak_p999_ns", Unit: "ns", table: tableSoak, label: "p99.9", Means: "999 of 1,000 samples took no longer"},
	{Name: "soak_slowest_ns", Unit: "ns", table: tableSoak, label: "slowest", Means: "the longest sample"},
	{Name: "soak_slowest_at_seconds", table: tableSoak, label: "after s", Means: "seconds from the beginning to the slowest sample"},
	{Name: "steps"},
	{Name: "step_p50_ns", Unit: "ns", table: tableSteps, label: "step p50", Means: "median time of one step"},
	{Name: "step_p99_ns", Unit: "ns", table: tableSteps, label: "step p99", Means: "99 of 100 steps took no longer"},
	{Name: "step_max_ns", Unit: "ns", table: tableSteps, label: "step max", Means: "the longest step"},
	{Name: "bytes_copied", Unit: "bytes", table: tableSteps, label: "copied", Means: "bytes that growing itself copied"},
	{Name: "peak_bytes", Unit: "bytes", table: tableSteps, label: "peak", Means: "the most memory held at once"},
	{Name: "moves", table: tableSteps, label: "moves", Means: "how often the address changed, which makes pointers to it invalid"},
	{Name: "timer_ns", Unit: "ns"},
	{Name: "p99_ns", Unit: "ns", table: tableReaders, label: "p99", Means: "99 of 100 samples took no longer"},
	{Name: "reader_fds", table: tableReaders, label: "reader fds", Means: "descriptors that one reader keeps open"},
	{Name: "live_peak_bytes", Unit: "bytes", table: tablePools, label: "live peak", Means: "the most bytes of blocks at once, as asked for"},
	{Name: "reserved_peak_bytes", Unit: "bytes", table: tablePools, label: "reserved peak", Means: "the most memory that the pool held"},
	{Name: "reserved_of_live", table: tablePools, label: "of live", Means: "reserved peak over live peak"},
	{Name: "failed_allocs", table: tablePools, label: "no memory", Means: "allocations that failed for want of it"},
}

// Metrics are the figures that a case has.
func (c *Case) Metrics() []Metric {
	var list []Metric
	if c.Stats == nil {
		return nil
	}
	values := map[string]any{}
	fieldValues(reflect.ValueOf(*c.Stats), "", values)
	if p := c.Stats.Pooled; p != nil {
		values["reserved_of_live"] = float64(p.Reserved) / float64(max(p.Live, 1))
	}
	if c.Axes.text("mode") == "keep" && c.Stats.Median > 0 { // of sleep, where the unit is of time and the contents are copied
		values["bandwidth"] = float64(c.Bytes) / c.Stats.Median
	}
	for _, m := range metrics {
		if m.Value = values[m.Name]; m.Value != nil {
			list = append(list, m)
		}
	}
	return list
}

// fieldValues adds the fields of a struct by their names in JSON, after a prefix: strings, and
// numbers that are not missing.
func fieldValues(v reflect.Value, prefix string, values map[string]any) {
	for i := range v.NumField() {
		name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
		f := v.Field(i)
		if f.Kind() == reflect.Pointer {
			if f.IsNil() {
				continue
			}
			f = f.Elem()
		}
		switch {
		case f.Kind() == reflect.Struct:
			if name != "" {
				name += "_"
			}
			fieldValues(f, name, values)
		case f.Kind() != reflect.Slice:
			values[prefix+name] = f.Interface()
		}
	}
}

// number returns the value as a number, if it is one.
func (m Metric) number() (float64, bool) {
	if _, text := m.Value.(string); text || m.Value == nil {
		return 0, false
	}
	x, err := strconv.ParseFloat(exact(m.Value), 64)
	return x, err == nil
}

// String prints the value for people.
func (m Metric) String() string {
	x, isNumber := m.number()
	switch {
	case !isNumber:
		return exact(m.Value)
	case m.Unit == "ns":
		return formatTime(x)
	case m.Unit == "bytes":
		return size.Approx(uint64(x))
	}
	return fourDigits(x)
}

// exact prints a value so that nothing of it is lost, and nil as nothing.
func exact(v any) string {
	switch at := reflect.ValueOf(v); {
	case !at.IsValid() || at.Kind() == reflect.Pointer && at.IsNil():
		return ""
	case at.Kind() == reflect.Pointer:
		return exact(at.Elem().Interface())
	case at.Kind() == reflect.Float64:
		return strconv.FormatFloat(at.Float(), 'f', -1, 64)
	}
	return fmt.Sprint(v)
}
