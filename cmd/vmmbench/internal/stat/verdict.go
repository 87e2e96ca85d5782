package stat

// Verdict says how b compares with a.
type Verdict string

// Verdicts. Equal is a finding, not a lack of one: the whole interval lies
// inside the margin. Unclear is the lack of one.
const (
	Equal   Verdict = "equal"
	Slower  Verdict = "slower"
	Faster  Verdict = "faster"
	Unclear Verdict = "unclear"
)

// Judge decides by equivalence: of is the interval of time b over time a, and
// margin is how far from 1 still counts as the same, 0.02 for 2 %.
func Judge(of Interval, margin float64) Verdict {
	switch {
	case of.Low >= 1-margin && of.High <= 1+margin:
		return Equal
	case of.Low > 1+margin:
		return Slower
	case of.High < 1-margin:
		return Faster
	}
	return Unclear
}
