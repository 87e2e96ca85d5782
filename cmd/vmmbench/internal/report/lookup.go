package report

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/stat"
)

// Figure returns a figure of the report by what it is, as a document prints it:
//
//	time of grow/8GiB/vmm                              the median
//	interval of grow/8GiB/vmm                          its 95 % interval
//	value of bw/d2d/none/1GiB/vmm                      the median in its unit
//	peak_bytes of grow/8GiB/vmm                        any metric, by its name in JSON
//	peak_bytes of grow/8GiB/vmm per byte               over what the case handles
//	ratio of grow/8GiB/mremap to grow/8GiB/vmm         of a comparison: of times, taken in pairs
//	interval of grow/8GiB/mremap to grow/8GiB/vmm      its 95 % interval
//	medians of grow/8GiB/mremap to grow/8GiB/vmm       one median over the other
//	equal of bw                                        how many comparisons below a name have a verdict
//	comparisons of bw                                  how many there are that have a ratio
func (r *Report) Figure(what string) (string, error) {
	name, of, ok := strings.Cut(what, " of ")
	if !ok {
		return "", fmt.Errorf("%q: want FIGURE of CASE", what)
	}
	of, perByte := strings.CutSuffix(of, " per byte")
	from, to, pair := strings.Cut(of, " to ")
	cases := byID(r.Cases)
	a, found := cases[from]
	switch {
	case pair:
		return r.pairFigure(name, a, cases[to])
	case !found || a.Stats == nil:
		return r.count(name, of)
	case name == "time":
		return formatTime(a.Stats.Median), nil
	case name == "interval" && a.Stats.Low != nil:
		return interval(a.Stats.Low, a.Stats.High, formatTime), nil
	case name == "value":
		return a.figure(), nil
	}
	for _, m := range a.Metrics() {
		if m.Name != name {
			continue
		}
		if x, ok := m.number(); ok && perByte && a.Bytes > 0 {
			return fmt.Sprintf("%.2f", x/float64(a.Bytes)), nil
		}
		return m.String(), nil
	}
	return "", fmt.Errorf("%s has no %s", from, name)
}

// pairFigure is how case a relates to case b.
func (r *Report) pairFigure(name string, a, b Case) (string, error) {
	if a.Stats == nil || b.Stats == nil {
		return "", fmt.Errorf("%s of two cases: one is not there", name)
	}
	if name == "medians" {
		return threeDigits(a.Stats.Median / b.Stats.Median), nil
	}
	// Of b over a, the figures are the other way round.
	inverse := func(x float64) string { return threeDigits(1 / x) }
	for _, x := range r.Comparisons {
		switch of := x.A + " " + x.B; {
		case x.Ratio == nil || x.Low == nil || x.High == nil:
		case name == "ratio" && of == b.ID+" "+a.ID:
			return threeDigits(*x.Ratio), nil
		case name == "ratio" && of == a.ID+" "+b.ID:
			return inverse(*x.Ratio), nil
		case name == "interval" && of == b.ID+" "+a.ID:
			return interval(x.Low, x.High, threeDigits), nil
		case name == "interval" && of == a.ID+" "+b.ID:
			return interval(x.High, x.Low, inverse), nil
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
	return fmt.Sprint(n), nil
}

func threeDigits(x float64) string { return fmt.Sprintf("%.3g", x) }
