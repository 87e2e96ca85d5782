package promstats

import (
	"reflect"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Row is one number of a struct and its metric.
type Row struct {
	Field string // its name, as in "Creates" or "Conns.Accepted"; promoted ones have no path
	Name  string // the metric's; one that ends in _total is a counter, any other one a gauge
	Help  string
}

// Set is the metrics of a struct S. It does not change, so it is safe for concurrent use.
type Set[S any] struct {
	metrics []metric
}

// metric is a Row whose field was found.
type metric struct {
	field []int
	desc  *prometheus.Desc
	kind  prometheus.ValueType
}

// NewSet returns the metrics of the rows. All of them have the labels of; the values of the labels
// named each are told to Collect. Rows of fields that S does not have are left out: a test of each
// table looks for them with Mismatches.
func NewSet[S any](rows []Row, of prometheus.Labels, each ...string) Set[S] {
	var s Set[S]
	labels := prometheus.Labels{}
	for name, value := range of {
		labels[name] = LabelValue(value)
	}
	for _, r := range rows {
		field, ok := find(reflect.TypeFor[S](), r.Field)
		if !ok {
			continue
		}
		kind := prometheus.GaugeValue
		if strings.HasSuffix(r.Name, "_total") {
			kind = prometheus.CounterValue
		}
		s.metrics = append(s.metrics, metric{field, prometheus.NewDesc(r.Name, r.Help, each, labels), kind})
	}
	return s
}

// LabelValue is text as the value of a label: a client panics at what is not UTF-8, as paths may be.
func LabelValue(text string) string { return strings.ToValidUTF8(text, "\uFFFD") }

// Describe sends a description of each metric.
func (s Set[S]) Describe(to chan<- *prometheus.Desc) {
	for _, m := range s.metrics {
		to <- m.desc
	}
}

// Collect sends the numbers of x: durations in seconds, all others as they are.
func (s Set[S]) Collect(to chan<- prometheus.Metric, x S, each ...string) {
	v := reflect.ValueOf(x)
	for _, m := range s.metrics {
		to <- prometheus.MustNewConstMetric(m.desc, m.kind, number(v.FieldByIndex(m.field)), each...)
	}
}

// Collector returns a collector of a struct that it reads once for each time it is asked.
func Collector[S any](rows []Row, of prometheus.Labels, read func() S) prometheus.Collector {
	return collector[S]{NewSet[S](rows, of), read}
}

type collector[S any] struct {
	Set[S]
	read func() S
}

func (c collector[S]) Collect(to chan<- prometheus.Metric) { c.Set.Collect(to, c.read()) }

// find is the number at a path, by names, in a struct.
func find(t reflect.Type, path string) (index []int, ok bool) {
	for name := range strings.SplitSeq(path, ".") {
		if t.Kind() != reflect.Struct {
			return nil, false
		}
		f, ok := t.FieldByName(name)
		if !ok {
			return nil, false
		}
		index, t = append(index, f.Index...), f.Type
	}
	return index, isNumber(t)
}

func isNumber(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Int, reflect.Int64, reflect.Uint32, reflect.Uint64, reflect.Float64:
		return true
	}
	return false
}

// number is a number as a metric has it.
func number(v reflect.Value) float64 {
	if d, ok := v.Interface().(time.Duration); ok {
		return d.Seconds()
	}
	switch {
	case v.CanInt():
		return float64(v.Int())
	case v.CanUint():
		return float64(v.Uint())
	}
	return v.Float()
}

// Mismatches returns what is wrong with the table of a struct: fields that have no row, rows that
// have no field, and fields or names that several have. Fields that are meant to have none are but.
// Numbers are looked for in embedded structs, and in those that a field has.
func Mismatches[S any](rows []Row, but ...string) (wrong []string) {
	fields, left, names := map[string]int{}, map[string]bool{}, map[string]bool{}
	for _, name := range but {
		left[name] = true
	}
	for _, r := range rows {
		fields[r.Field]++
		if names[r.Name] {
			wrong = append(wrong, r.Name+" is there twice")
		}
		names[r.Name] = true
	}
	walk(reflect.TypeFor[S](), "", left, func(path string) {
		if n := fields[path]; n == 0 && !left[path] {
			wrong = append(wrong, path+" has no metric")
		} else if n > 1 || n == 1 && left[path] {
			wrong = append(wrong, path+" is listed twice")
		}
		delete(fields, path)
		delete(left, path)
	})
	for path := range fields {
		wrong = append(wrong, path+" is no number")
	}
	for path := range left {
		wrong = append(wrong, path+" does not exist")
	}
	return wrong
}

// walk calls visit with the path of each field of a struct, and of the structs that it has.
func walk(t reflect.Type, at string, left map[string]bool, visit func(path string)) {
	for f := range t.Fields() {
		switch path := at + f.Name; {
		case f.Anonymous:
			walk(f.Type, at, left, visit)
		case f.Type.Kind() == reflect.Struct && !left[path]:
			walk(f.Type, path+".", left, visit)
		default:
			visit(path)
		}
	}
}
