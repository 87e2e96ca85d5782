package stat

// Verdict says how the time of b compares with that of a.
type Verdict string

// The values of Verdict. Equal means that the whole interval lies inside the
// margin, which is a result. Unclear means that there is no result.
const (
	Equal   Verdict = "equal"
	Slower  Verdict = "slower"
	Faster  Verdict = "faster"
	Unclear Verdict = "unclear"
)

// Judge compares by an equivalence test. ratio is the interval of time b over
// time a. margin says how far from 1 the ratio may be and still count as equal:
// 0.02 for 2 %.
func Judge(ratio Interval, margin float64) Verdict {
	switch {
	case ratio.Low >= 1-margin && ratio.High <= 1+margin:
		return Equal
	case ratio.Low > 1+margin:
		return Slower
	case ratio.High < 1-margin:
		return Faster
	}
	return Unclear
}
