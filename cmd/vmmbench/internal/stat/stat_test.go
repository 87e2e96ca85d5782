package stat

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
)

func TestSummarize(t *testing.T) {
	s := Summarize([]float64{5, 1, 4, 2, 3, 9})
	require.Equal(t, 6, s.N)
	require.Equal(t, 3.5, s.Median)
	require.Equal(t, 1.5, s.MAD)
	require.Equal(t, 1.0, s.Min)
	require.Equal(t, 9.0, s.Max)
	require.Equal(t, Interval{1, 9}, *s.Interval)

	one := Summarize([]float64{7})
	require.Nil(t, one.Interval)
	require.Zero(t, one.CV)
	require.Nil(t, Summarize(make([]float64, MinSamples-1)).Interval)
}

func TestRatio(t *testing.T) {
	a := []float64{1, 2, 3, 4, 5, 6}
	e, err := Ratio(a, []float64{2, 4, 6, 8, 10, 12, 100})
	require.NoError(t, err)
	require.InDelta(t, 2, e.Ratio, 1e-12)
	require.InDelta(t, 2, e.Interval.Low, 1e-12, "pairs are kept together, so what changes both alike cancels")
	require.InDelta(t, 2, e.Interval.High, 1e-12)

	_, err = Ratio(a[:5], a[:5])
	require.ErrorIs(t, err, ErrTooFew)
	_, err = Ratio([]float64{0, 1, 1, 1, 1, 1}, a)
	require.ErrorContains(t, err, "no time at all")
}

// The ranks of the interval of a median are known from tables.
func TestOutside(t *testing.T) {
	for n, want := range map[int]int{6: 0, 8: 0, 9: 1, 11: 1, 12: 2, 15: 3, 20: 5, 30: 9, 50: 17, 100: 39, 1000: 468, 5000: 2430} {
		require.Equal(t, want, outside(n), "%d samples", n)
	}
}

func TestJudge(t *testing.T) {
	for _, c := range []struct {
		low, high float64
		want      Verdict
	}{
		{0.99, 1.01, Equal},
		{0.98, 1.02, Equal},
		{1.03, 1.05, Slower},
		{0.90, 0.97, Faster},
		{0.97, 1.00, TooNoisy},
		{1.01, 1.05, TooNoisy},
		{0.5, 2, TooNoisy},
		{1.0195, 1.0205, AtMargin},
		{1, 1.04, AtMargin},
	} {
		e := Estimate{N: 20, Ratio: math.Sqrt(c.low * c.high), Interval: Interval{c.low, c.high}}
		require.Equal(t, c.want, Judge(e, 0.02), "%v", c)
	}
	e := Estimate{N: 30, Ratio: 1, Interval: Interval{0.96, 1.0404}}
	require.InDelta(t, 120, e.Needed(0.02), 10, "twice as narrow takes four times as many")
}

// simulation makes the samples of two contenders, of which b takes 1 + slow times as long.
type simulation func(r *rand.Rand, n int, slow float64) (a, b []float64)

// independent samples have a spread of 1 %.
func independent(r *rand.Rand, n int, slow float64) (a, b []float64) {
	for range n {
		a = append(a, 1+0.01*r.NormFloat64())
		b = append(b, (1+slow)*(1+0.01*r.NormFloat64()))
	}
	return a, b
}

// drifting is independent on a machine that gets faster and slower for both.
func drifting(r *rand.Rand, n int, slow float64) (a, b []float64) {
	a, b = independent(r, n, slow)
	at := 1.0
	for i := range a {
		at += 0.01 * r.NormFloat64()
		a[i], b[i] = at*a[i], at*b[i]
	}
	return a, b
}

// wandering samples resemble the one before: an autoregressive process with 0.9.
func wandering(r *rand.Rand, n int, slow float64) (a, b []float64) {
	x, y := r.NormFloat64(), r.NormFloat64()
	for range n {
		a = append(a, 1+0.01*x)
		b = append(b, (1+slow)*(1+0.01*y))
		x, y = 0.9*x+math.Sqrt(1-0.81)*r.NormFloat64(), 0.9*y+math.Sqrt(1-0.81)*r.NormFloat64()
	}
	return a, b
}

// placed samples depend on where the memory lies, by 1 %. It is allocated ten times.
func placed(r *rand.Rand, n int, slow float64) (a, b []float64) {
	var x, y float64
	for i := range n {
		if i%(n/10) == 0 {
			x, y = 0.01*r.NormFloat64(), 0.01*r.NormFloat64()
		}
		a = append(a, 1+x+0.003*r.NormFloat64())
		b = append(b, (1+slow)*(1+y+0.003*r.NormFloat64()))
	}
	return a, b
}

// skewed samples are never faster than 1, and now and then much slower.
func skewed(r *rand.Rand, n int, slow float64) (a, b []float64) {
	for range n {
		a = append(a, 1+0.01*r.ExpFloat64()*r.ExpFloat64())
		b = append(b, (1+slow)*(1+0.01*r.ExpFloat64()*r.ExpFloat64()))
	}
	return a, b
}

// tally is how often each verdict came, and how often the interval had the truth.
type tally struct {
	seeds   int
	verdict map[Verdict]int
	covered int
}

func (t tally) of(v Verdict) float64 { return float64(t.verdict[v]) / float64(t.seeds) }

func simulate(t *testing.T, s simulation, n int, slow float64) tally {
	t.Helper()
	c := tally{seeds: testgate.Effort(1000, 1000, 20_000), verdict: map[Verdict]int{}}
	for seed := range uint64(c.seeds) {
		a, b := s(rand.New(rand.NewPCG(seed, 1)), n, slow)
		e, err := Ratio(a, b)
		require.NoError(t, err)
		c.verdict[Judge(e, 0.02)]++
		if e.Interval.Low <= 1+slow && 1+slow <= e.Interval.High {
			c.covered++
		}
	}
	return c
}

// With a spread of 1 % and 30 samples the verdict is right, and firm.
func TestVerdicts(t *testing.T) {
	same := simulate(t, independent, 30, 0)
	require.GreaterOrEqual(t, same.of(Equal), 0.95)
	require.LessOrEqual(t, same.of(Slower), 0.01)
	require.LessOrEqual(t, simulate(t, independent, 30, 0.03).of(Equal), 0.05)
	require.GreaterOrEqual(t, simulate(t, independent, 30, 0.05).of(Slower), 0.95)
	require.GreaterOrEqual(t, simulate(t, independent, 30, -0.05).of(Faster), 0.95)
	require.GreaterOrEqual(t, simulate(t, drifting, 30, 0.03).of(Slower), 0.75)
	require.GreaterOrEqual(t, simulate(t, drifting, 30, 0).of(Equal), 0.95)
}

// Samples that depend on each other give few firm verdicts that are wrong.
func TestVerdictsOfDependentSamples(t *testing.T) {
	for name, s := range map[string]simulation{"wandering": wandering, "placed": placed} {
		for _, n := range []int{30, 60, 100} {
			same := simulate(t, s, n, 0)
			require.LessOrEqual(t, same.of(Slower)+same.of(Faster), 0.05, "%s, %d samples", name, n)
			slower := simulate(t, s, n, 0.03)
			require.LessOrEqual(t, slower.of(Equal)+slower.of(Faster), 0.05, "%s, %d samples, 3 %%", name, n)
		}
	}
}

// TestUnwidened is the control: without widening, many verdicts on wandering samples are
// firm and wrong.
func TestUnwidened(t *testing.T) {
	wrong := 0
	for seed := range uint64(1000) {
		a, b := wandering(rand.New(rand.NewPCG(seed, 1)), 30, 0.03)
		e, err := Ratio(a, b)
		require.NoError(t, err)
		logs := make([]float64, len(a))
		for i := range logs {
			logs[i] = math.Log(b[i] / a[i])
		}
		if w := widening(logs); w > 1 {
			m := math.Log(e.Ratio)
			e.Interval.Low, e.Interval.High = math.Exp(m-(m-math.Log(e.Interval.Low))/w), math.Exp(m+(math.Log(e.Interval.High)-m)/w)
		}
		if v := Judge(e, 0.02); v == Equal || v == Faster {
			wrong++
		}
	}
	require.Greater(t, wrong, 50)
}

// Every interval that is printed as one of 95 % is one, whatever the distribution.
func TestCoverage(t *testing.T) {
	for name, s := range map[string]simulation{"independent": independent, "drifting": drifting, "skewed": skewed} {
		for _, n := range []int{6, 7, 8, 9, 10, 12, 15, 20, 30, 60} {
			c := simulate(t, s, n, 0)
			require.GreaterOrEqual(t, c.covered, c.seeds*93/100, "%s, %d samples", name, n)
		}
	}
	// The same for a single median.
	for _, n := range []int{6, 7, 8, 9, 12, 30} {
		covered := 0
		for seed := range uint64(1000) {
			a, _ := skewed(rand.New(rand.NewPCG(seed, 1)), n, 0)
			if of := Summarize(a).Interval; of.Low <= skewedMedian && skewedMedian <= of.High {
				covered++
			}
		}
		require.GreaterOrEqual(t, covered, 930, "%d samples", n)
	}
}

// skewedMedian is the median of a skewed sample, from many of them.
var skewedMedian = func() float64 {
	a, _ := skewed(rand.New(rand.NewPCG(7, 7)), 200_000, 0)
	return Quantile(a, 0.5)
}()

func TestDrifts(t *testing.T) {
	flat, rising := make([]float64, 20), make([]float64, 20)
	for i := range flat {
		flat[i] = 100 + float64(i%3)*0.1
		rising[i] = 100 + float64(i)*2
	}
	require.False(t, Drifts(flat, 0.02))
	require.True(t, Drifts(rising, 0.02))
	require.False(t, Drifts([]float64{1, 2, 3}, 0.02), "three samples show no drift")
}

// However much wider the interval of a time has to be, it stays above 0.
func TestIntervalOfTimesIsPositive(t *testing.T) {
	var samples []float64
	for i := range 20 {
		samples = append(samples, 10+float64(i%10*i%10)*9) // far apart
	}
	for i := range 10 {
		samples[i] = 1 + float64(i)/10
	}
	s := Summarize(samples)
	require.True(t, s.Correlated)
	require.Positive(t, s.Interval.Low)
	require.LessOrEqual(t, s.Interval.Low, s.Median)
	require.GreaterOrEqual(t, s.Interval.High, s.Median)
}
