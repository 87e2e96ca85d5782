package stat

import "math"

// Verdict says how the time of b compares with that of a.
type Verdict string

// The values of Verdict. The first three are results: the whole interval lies inside the
// margin, or outside of it. The others say why there is none.
const (
	Equal       Verdict = "equal"
	Slower      Verdict = "slower"
	Faster      Verdict = "faster"
	Waived      Verdict = "waived"        // this machine cannot do one of the two
	NotMeasured Verdict = "not measured"  // one of the two failed, ended with an error, or was interrupted
	TooFew      Verdict = "too few"       // samples or places, for an interval
	TooNoisy    Verdict = "too noisy"     // the interval is too wide
	AtMargin    Verdict = "at the margin" // the difference is about as large as the margin, so more samples would not help
)

// Verdicts returns all of them.
func Verdicts() []Verdict {
	return []Verdict{Equal, Slower, Faster, Waived, NotMeasured, TooFew, TooNoisy, AtMargin}
}

// Firm reports whether a verdict is a result.
func (v Verdict) Firm() bool { return v == Equal || v == Slower || v == Faster }

// Judge compares by an equivalence test. margin says how far from 1 the ratio may be and
// still count as equal: 0.02 for 2 %. The defaults are in flags.go of vmmbench.
func Judge(e Estimate, margin float64) Verdict {
	switch of := e.Interval; {
	case of.Low >= 1-margin && of.High <= 1+margin:
		return Equal
	case of.Low > 1+margin:
		return Slower
	case of.High < 1-margin:
		return Faster
	case nearMargin(e, margin):
		return AtMargin
	}
	return TooNoisy
}

// nearMargin reports whether the ratio is as far from 1 as the margin, within a tenth of it,
// and the interval is narrow enough to know that.
func nearMargin(e Estimate, margin float64) bool {
	m, border := math.Log(e.Ratio), math.Log1p(margin)
	width := max(math.Log(e.Interval.High)-m, m-math.Log(e.Interval.Low))
	return width <= border && math.Abs(math.Abs(m)-border) <= border/10
}
