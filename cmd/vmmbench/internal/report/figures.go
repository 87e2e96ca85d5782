package report

import (
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
	if p := c.Stats.Pooled; p != nil {
		list = append(list, field{"reserved_of_live", float64(p.Reserved) / float64(max(p.Live, 1))})
	}
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
//	time of grow/8GiB/vmm                              the median
//	value of bw/d2d/none/1GiB/vmm                      the median in its unit
//	peak_bytes of grow/8GiB/vmm                        any figure, by its name in JSON
//	peak_bytes of grow/8GiB/vmm per byte               over what the case handles
//	ratio of grow/8GiB/mremap to grow/8GiB/vmm         of a comparison: of times, taken in pairs
//	interval of grow/8GiB/mremap to grow/8GiB/vmm      its 95 % interval
//	equal of bw                                        how many comparisons below a name have a verdict
//	comparisons of bw                                  how many there are that have a ratio
//
// A time or a value of too few samples for an interval is an error.
func (r *Report) Figure(what string) (string, error) {
	name, id, ok := strings.Cut(what, " of ")
	if !ok {
		return "", fmt.Errorf("%q: want FIGURE of CASE", what)
	}
	id, perByte := strings.CutSuffix(id, " per byte")
	from, to, pair := strings.Cut(id, " to ")
	cases := byID(r.Cases)
	a, found := cases[from]
	switch {
	case pair:
		return r.pairFigure(name, a, cases[to])
	case !found || a.Stats == nil:
		return r.count(name, id)
	case a.Stats.Low == nil && (name == "time" || name == "value"):
		return "", fmt.Errorf("%s has %d samples: too few to be published", from, a.Stats.N)
	case name == "time":
		return formatTime(a.Stats.Median), nil
	case name == "value":
		return a.figure(), nil
	}
	i := slices.IndexFunc(a.figures(), func(f field) bool { return f.name == name })
	if i < 0 {
		return "", fmt.Errorf("%s has no %s", from, name)
	}
	f := a.figures()[i]
	if x, _ := f.number(); perByte && a.Bytes > 0 {
		return fmt.Sprintf("%.2f", x/float64(a.Bytes)), nil
	}
	return f.String(), nil
}

// pairFigure is how case a relates to case b.
func (r *Report) pairFigure(name string, a, b Case) (string, error) {
	if a.Stats == nil || b.Stats == nil {
		return "", fmt.Errorf("%s of two cases: one is not there", name)
	}
	for _, x := range r.Comparisons {
		ratio, low, high, print := x.Ratio, x.Low, x.High, threeDigits
		if x.A == a.ID && x.B == b.ID { // the figures are the other way round
			low, high, print = x.High, x.Low, inverse
		} else if x.A != b.ID || x.B != a.ID {
			continue
		}
		switch {
		case ratio == nil || low == nil || high == nil:
		case name == "ratio":
			return print(*ratio), nil
		case name == "interval":
			return interval(low, high, x.Level, print), nil
		}
	}
	return "", fmt.Errorf("no %s of %s to %s", name, a.ID, b.ID)
}

// count is how many comparisons of cases below a name have a verdict, with a hyphen for each
// space of it.
func (r *Report) count(verdict, below string) (string, error) {
	wanted := stat.Verdict(strings.ReplaceAll(verdict, "-", " "))
	n, all := 0, 0
	for _, x := range r.Comparisons {
		if x.ofRuns() || x.Ratio == nil || !strings.HasPrefix(x.B, strings.TrimSuffix(below, "/")+"/") {
			continue
		}
		all++
		if x.Verdict == wanted || verdict == "comparisons" {
			n++
		}
	}
	if all == 0 || verdict != "comparisons" && !slices.Contains(stat.Verdicts(), wanted) {
		return "", fmt.Errorf("no case, and no verdicts: %s of %s", verdict, below)
	}
	return strconv.Itoa(n), nil
}

// interval prints an interval for a column called 95 %, nothing if there is none.
func interval(low, high *float64, level float64, print func(float64) string) string {
	if low == nil || high == nil {
		return ""
	}
	s := print(*low) + " to " + print(*high)
	if level > stat.Usual {
		s += " (range)"
	}
	return s
}

// within prints an interval for a sentence.
func within(low, high *float64, level float64, print func(float64) string) string {
	s := interval(low, high, stat.Usual, print)
	switch {
	case s == "":
		return "too few samples"
	case level > stat.Usual:
		return "range " + s
	}
	return "95 % " + s
}

// ratio and interval print what a comparison has found, if it has.
func (c *Comparison) ratio() string {
	if c.Ratio == nil {
		return ""
	}
	return threePlaces(*c.Ratio)
}

func (c *Comparison) interval() string { return interval(c.Low, c.High, c.Level, threePlaces) }

// within and turned print the interval for a sentence: of the ratio, and of that of A over B.
func (c *Comparison) within() string { return within(c.Low, c.High, c.Level, fourDigits) }

func (c *Comparison) turned() string { return within(c.High, c.Low, c.Level, inverse) }

func threePlaces(x float64) string { return fmt.Sprintf("%.3f", x) }

func threeDigits(x float64) string { return fmt.Sprintf("%.3g", x) }

func inverse(x float64) string { return threeDigits(1 / x) }

func fourDigits(x float64) string { return digits(x, 4) }

// digits prints a number with so many digits, or more if its integer part has more.
func digits(x float64, n int) string {
	if math.Abs(x) >= math.Pow10(n) {
		return strconv.FormatFloat(x, 'f', 0, 64)
	}
	return strconv.FormatFloat(x, 'g', n, 64)
}

// formatTime prints nanoseconds in the unit that fits.
func formatTime(ns float64) string {
	switch {
	case ns < 1e3:
		return digits(ns, 3) + " ns"
	case ns < 1e6:
		return fourDigits(ns/1e3) + " us"
	case ns < 1e9:
		return fourDigits(ns/1e6) + " ms"
	}
	return fourDigits(ns/1e9) + " s"
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
