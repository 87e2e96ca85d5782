// Package measure times contenders against each other. It measures in blocks:
// each contender once in a block, in an order drawn from a seed. So whatever slows
// the machine for a while slows all of them.
package measure

import (
	"context"
	"errors"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"time"
)

// Sample is one timing. NS is in nanoseconds. Parts are the nanoseconds of the
// parts, if the contender has any: the steps of a growth, the two directions of a
// copy.
type Sample struct {
	NS    float64
	Parts []float64
}

// Func does the work loops times and returns the time of all together. The time
// does not include setting up and checking. If ctx is done, Func may stop with its
// error.
type Func func(ctx context.Context, loops int) (Sample, error)

// Stop says why a measurement ended.
type Stop string

// Reasons to stop.
const (
	Enough      Stop = "samples"  // as many as were asked for
	OutOfTime   Stop = "max-time" // Config.MaxTime is over
	Interrupted Stop = "interrupted"
	Failed      Stop = "error"
)

// Config says how to measure.
type Config struct {
	Samples   int           // of each contender
	MinTime   time.Duration // a sample repeats the work until it takes this long
	MaxTime   time.Duration // of the whole comparison
	MinBlocks int           // blocks that are measured whatever MaxTime says; at least one is
	MaxLoops  int           // repetitions in a sample at most; 0 means no limit
	Fixed     bool          // keep the order as given, instead of drawing it
	Seed      uint64
	Now       func() time.Time // the clock of MaxTime
}

// Outcome is the result of one contender. Samples are per repetition.
type Outcome struct {
	Samples []Sample
	Loops   int
	Stop    Stop
	Err     error
}

// Times returns the totals of the samples.
func (o Outcome) Times() []float64 {
	ns := make([]float64, len(o.Samples))
	for i, s := range o.Samples {
		ns[i] = s.NS
	}
	return ns
}

// Run measures contenders against each other. If one fails, the others go on, and
// its samples so far are kept. If ctx is done, Run returns what there is; an
// unfinished sample does not count.
func Run(ctx context.Context, c Config, contenders []Func) []Outcome {
	start := c.Now()
	out := make([]Outcome, len(contenders))
	loops := warmUp(ctx, c, contenders, out)
	order := make([]int, len(contenders))
	for i := range order {
		order[i] = i
		out[i].Loops = loops
	}
	r := rand.New(rand.NewPCG(c.Seed, 1))

	stop := Enough
blocks:
	for block := range c.Samples {
		if block >= max(1, c.MinBlocks) && c.Now().Sub(start) >= c.MaxTime {
			stop = OutOfTime
			break
		}
		if !c.Fixed {
			r.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
		}
		for _, i := range order {
			if out[i].Err != nil {
				continue
			}
			if ctx.Err() != nil {
				stop = Interrupted
				break blocks
			}
			s, err := contenders[i](ctx, loops)
			if err != nil {
				out[i].Err = err
				continue
			}
			out[i].Samples = append(out[i].Samples, s.per(loops))
		}
	}
	// An error that ctx caused is no failure of the contender.
	for i := range out {
		switch err := out[i].Err; {
		case err == nil:
			out[i].Stop = stop
		case errors.Is(err, ctx.Err()):
			out[i].Stop = Interrupted
		default:
			out[i].Stop = Failed
		}
	}
	return out
}

// warmUp runs each contender and finds how many repetitions make a sample long
// enough. All contenders have the same number, so that none has its memory warmer
// in the cache than another.
func warmUp(ctx context.Context, c Config, contenders []Func, out []Outcome) int {
	most := c.MaxLoops
	if most <= 0 {
		most = math.MaxInt32
	}
	loops := 1
	for i, f := range contenders {
		if ctx.Err() != nil {
			return loops
		}
		s, err := f(ctx, 1)
		for err == nil && s.NS < float64(c.MinTime) && loops < most && ctx.Err() == nil {
			loops = nextLoops(loops, most, s.NS, float64(c.MinTime))
			s, err = f(ctx, loops)
		}
		out[i].Err = err
	}
	return loops
}

// nextLoops returns the number of repetitions to try after one that took ns
// nanoseconds and not want. It grows at most tenfold at a time, because a first
// run may be much slower than the next.
func nextLoops(loops, most int, ns, want float64) int {
	factor := 10.0
	if ns > 0 {
		factor = min(factor, 1.2*want/ns)
	}
	next := math.Ceil(float64(loops) * factor)
	return int(min(max(next, float64(loops+1)), float64(most)))
}

// per returns the sample divided by its number of repetitions.
func (s Sample) per(loops int) Sample {
	s.NS /= float64(loops)
	for i := range s.Parts {
		s.Parts[i] /= float64(loops)
	}
	return s
}

// Seed derives a seed for name from the seed of the run.
func Seed(run uint64, name string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(name)) // never fails
	return run ^ h.Sum64()
}
