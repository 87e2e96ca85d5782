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
	TooFew      Verdict = "too few"       // samples, for an interval
	TooNoisy    Verdict = "too noisy"     // the interval is too wide; see Estimate.Needed
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
	case e.halfWidth() <= math.Log1p(margin) && e.Needed(margin) == 0:
		return AtMargin
	}
	return TooNoisy
}

// halfWidth is how far the interval reaches from the ratio, as a logarithm.
func (e Estimate) halfWidth() float64 {
	m := math.Log(e.Ratio)
	return max(math.Log(e.Interval.High)-m, m-math.Log(e.Interval.Low))
}

// mostSamples is more than anyone waits for.
const mostSamples = 10_000

// Needed is about how many samples would give a result, if the ratio stays what it is: an
// interval gets narrower with the square root of their number. It is 0 if that would be
// more than mostSamples.
func (e Estimate) Needed(margin float64) int {
	width := e.halfWidth()
	gap := math.Abs(math.Abs(math.Log(e.Ratio)) - math.Log1p(margin)) // from the ratio to the border of the margin
	n := math.Ceil(float64(e.N) * width * width / (gap * gap))
	if !(n <= mostSamples) { // also for a gap of 0
		return 0
	}
	return int(n)
}
