package stat

// Conclusion says how the time of b compares with that of a.
type Conclusion string

// The values of Conclusion. Equal means that the whole interval lies inside the
// margin, which is a result. Unclear means that there is no result.
const (
	Equal   Conclusion = "equal"
	Slower  Conclusion = "slower"
	Faster  Conclusion = "faster"
	Unclear Conclusion = "unclear"
)

// Conclude compares by an equivalence test. ratio is the interval of time b over
// time a. margin says how far from 1 the ratio may be and still count as equal:
// 0.02 for 2 %.
func Conclude(ratio Interval, margin float64) Conclusion {
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
