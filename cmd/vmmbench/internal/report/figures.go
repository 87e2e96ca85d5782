package report

import (
	"cmp"
	"fmt"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/cuvmm/cuvmm/cmd/internal/size"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/stat"
)

// field is a field of an object, by its name in JSON.
type field struct {
	name  string
	value any
}

// fields are those of a struct that are not null, in their order, without lists of structs. A field
// of a struct within it has the name of that before its own.
func fields(object any) (list []field) {
	v := reflect.Indirect(reflect.ValueOf(object))
	if !v.IsValid() {
		return nil
	}
	for i := range v.NumField() {
		name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
		f := v.Field(i)
		null := (f.Kind() == reflect.Pointer || f.Kind() == reflect.Slice) && f.IsNil()
		if null || f.Kind() == reflect.Slice && f.Type().Elem().Kind() == reflect.Struct {
			continue
		}
		if f = reflect.Indirect(f); f.Kind() != reflect.Struct {
			list = append(list, field{name, f.Interface()})
			continue
		}
		for _, inner := range fields(f.Interface()) {
			list = append(list, field{strings.TrimPrefix(name+"_"+inner.name, "_"), inner.value})
		}
	}
	return list
}

// number returns the value as a number, if it is one.
func (f field) number() (float64, bool) {
	switch v := reflect.ValueOf(f.value); {
	case v.CanFloat():
		return v.Float(), true
	case v.CanInt():
		return float64(v.Int()), true
	case v.CanUint():
		return float64(v.Uint()), true
	}
	return 0, false
}

// title is the name for people.
func (f field) title() string { return strings.ReplaceAll(strings.TrimSuffix(f.name, "_ns"), "_", " ") }

// exact prints the value so that nothing of it is lost.
func (f field) exact() string {
	if x, ok := f.number(); ok {
		return strconv.FormatFloat(x, 'f', -1, 64)
	}
	return f.String()
}

// byteFields are the names of fields whose numbers are bytes.
var byteFields = regexp.MustCompile(`bytes|(memory|free|cache|granularity|recommended)$`)

// String prints the value for people.
func (f field) String() string {
	x, isNumber := f.number()
	switch v := reflect.ValueOf(f.value); {
	case isNumber && strings.HasSuffix(f.name, "_ns"):
		return formatTime(x)
	case isNumber && byteFields.MatchString(f.name):
		return size.Approx(uint64(x))
	case isNumber:
		return fourDigits(x)
	case v.Kind() == reflect.Bool:
		return yesNo(new(v.Bool()))
	case strings.HasSuffix(f.name, "throttle") && v.Len() == 0:
		return "nothing"
	case v.Kind() == reflect.Slice:
		var list []string
		for i := range v.Len() {
			list = append(list, field{value: v.Index(i).Interface()}.String())
		}
		return strings.Join(list, ", ")
	case v.Kind() == reflect.String:
		return v.String()
	}
	return ""
}

// figures are the fields of the statistics, and what is computed of them.
func (c *Case) figures() []field {
	if c.Stats == nil {
		return nil
	}
	list := fields(c.Stats)
	if c.Axes.text("mode") == "keep" && c.Stats.Median > 0 { // of sleep, where the unit is of time and the contents are copied
		list = append(list, field{"bandwidth", float64(c.Bytes) / c.Stats.Median})
	}
	return list
}

// figure is what was measured, with its unit.
func (c *Case) figure() string {
	if c.Unit == "ns" || c.Unit == "us" || c.Unit == "ms" {
		return formatTime(c.Stats.Median)
	}
	return fourDigits(c.Stats.Value) + " " + c.Unit
}

// Figure returns a figure of the report by what it is, as a document prints it:
//
//	time of grow/8GiB/vmm                              the median; value for one that is no time
//	peak_bytes of grow/8GiB/vmm                        any figure, by its name in JSON
//	peak_bytes of grow/8GiB/vmm per byte               over what the case handles
//	ratio of grow/8GiB/mremap to grow/8GiB/vmm         of a comparison: of times, taken in pairs
//	equal of bw                                        how many comparisons below a name have a verdict
//	comparisons of bw                                  how many there are that have a ratio
//
// A time or a value of too few samples for an interval is an error.
func (r *Report) Figure(what string) (string, error) {
	name, id, _ := strings.Cut(what, " of ")
	id, perByte := strings.CutSuffix(id, " per byte")
	for _, x := range r.Comparisons {
		if x.A+" to "+x.B == id && name == "ratio" && x.Low != nil {
			return inverse(*x.Ratio), nil
		}
	}
	c := byID(r.Cases)[id]
	if c.Stats == nil {
		return r.count(name, id)
	}
	if name == "time" || name == "value" {
		if c.Stats.Low == nil {
			return "", fmt.Errorf("%s has %d samples: too few to be published", id, c.Stats.N)
		}
		return c.figure(), nil
	}
	for _, f := range c.figures() {
		if f.name != name {
			continue
		}
		if x, _ := f.number(); perByte && c.Bytes > 0 {
			return fmt.Sprintf("%.2f", x/float64(c.Bytes)), nil
		}
		return f.String(), nil
	}
	return "", fmt.Errorf("%s has no %s", id, name)
}

// count is how many comparisons of cases below a name have a verdict, or a ratio.
func (r *Report) count(verdict, below string) (string, error) {
	made := without(r.Comparisons, func(c Comparison) bool {
		return c.ofRuns() || c.Ratio == nil || !strings.HasPrefix(c.B, below+"/")
	})
	if len(made) == 0 || verdict != "comparisons" && !slices.Contains(stat.Verdicts(), stat.Verdict(verdict)) {
		return "", fmt.Errorf("there is no such case or verdict: %s of %s", verdict, below)
	}
	return strconv.Itoa(len(without(made, func(c Comparison) bool {
		return verdict != "comparisons" && c.Verdict != stat.Verdict(verdict)
	}))), nil
}

// interval prints an interval, nothing if there is none.
func interval(low, high *float64, level float64, print func(float64) string) string {
	if low == nil || high == nil {
		return ""
	}
	s := print(*low) + " to " + print(*high)
	if level > stat.Usual {
		s += ", range"
	}
	return s
}

// times says how many times as long one of the two takes, by a ratio with its interval.
func times(ratio float64, low, high *float64, level float64, print func(float64) string) string {
	return fmt.Sprintf("takes %s times as long (%s)", print(ratio), cmp.Or(interval(low, high, level, print), "too few samples"))
}

func threePlaces(x float64) string { return fmt.Sprintf("%.3f", x) }

func inverse(x float64) string { return fmt.Sprintf("%.3g", 1/x) }

// fourDigits prints a number with four digits, or more if its integer part has more.
func fourDigits(x float64) string {
	if math.Abs(x) >= 1e4 {
		return strconv.FormatFloat(x, 'f', 0, 64)
	}
	return strconv.FormatFloat(x, 'g', 4, 64)
}

// formatTime prints nanoseconds in the unit that fits.
func formatTime(ns float64) string {
	units := []string{" ns", " us", " ms", " s"}
	for ns >= 1e3 && len(units) > 1 {
		ns, units = ns/1e3, units[1:]
	}
	return fourDigits(ns) + units[0]
}

func yesNo(b *bool) string {
	switch {
	case b == nil:
		return ""
	case *b:
		return "yes"
	}
	return "no"
}
