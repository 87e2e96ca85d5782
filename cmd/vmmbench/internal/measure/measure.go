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
	At    time.Duration // when Run took it, since its begin
}

// Longest is the sample as long as the longest of its parts, which run at once.
func (s Sample) Longest() Sample {
	for _, ns := range s.Parts {
		s.NS = max(s.NS, ns)
	}
	return s
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
	WarmTime  time.Duration // each contender works at least this long before its first sample
	MinBlocks int           // blocks that are measured whatever MaxTime says; at least one is
	MaxLoops  int           // repetitions in a sample at most; 0 means no limit
	Seed      uint64
	Now       func() time.Time // the clock of MaxTime

	// Renew gives the contenders other memory, in that order, and returns an error for each.
	// How fast memory is depends on where it lies, by a per cent or more, and that does not
	// change while it is kept. Samples over several placements show how large that is. It is
	// called Rounds-1 times; nil keeps what there is.
	Renew  func(ctx context.Context, order []int) []error
	Rounds int
}

// Outcome is the result of one contender. Samples are per repetition.
type Outcome struct {
	Samples []Sample
	Loops   int
	Places  []int // samples on each placement of the memory, one after the other
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
	r := &run{Config: c, start: c.Now(), contenders: contenders, out: make([]Outcome, len(contenders)), rounds: 1}
	for i := range contenders {
		r.calibrate(ctx, i)
	}
	stop := r.blocks(ctx)
	// An error that ctx caused is no failure of the contender.
	for i := range r.out {
		switch err := r.out[i].Err; {
		case err == nil:
			r.out[i].Stop = stop
		case errors.Is(err, ctx.Err()):
			r.out[i].Stop = Interrupted
		default:
			r.out[i].Stop = Failed
		}
	}
	return r.out
}

// run is one call of Run.
type run struct {
	Config
	start      time.Time
	contenders []Func
	out        []Outcome
	renewing   time.Duration // how long Renew has taken
	rounds     int           // placements so far
}

func (r *run) outOfTime() bool { return r.Now().Sub(r.start) >= r.MaxTime }

// progress is the part of the samples that has been taken, or of MaxTime that is over,
// whichever is more.
func (r *run) progress(block int) float64 {
	return max(float64(block)/float64(r.Samples), float64(r.Now().Sub(r.start))/float64(r.MaxTime))
}

// blocks measures block after block.
func (r *run) blocks(ctx context.Context) Stop {
	order := make([]int, len(r.contenders))
	for i := range order {
		order[i] = i
	}
	draw := rand.New(rand.NewPCG(r.Seed, 1))
	shuffle := func() {
		draw.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	}
	round := 0
	for block := range r.Samples {
		if block >= max(1, r.MinBlocks) && r.outOfTime() {
			return OutOfTime
		}
		if at := min(int(r.progress(block)*float64(r.Rounds)), r.Rounds-1); at > round && block > 0 {
			round++
			shuffle() // the first to open gets the memory that was given back last
			r.renew(ctx, order, block < r.MinBlocks)
		}
		shuffle()
		for _, i := range order {
			if r.out[i].Err != nil {
				continue
			}
			if ctx.Err() != nil {
				return Interrupted
			}
			s, ok := r.sample(ctx, i)
			// Only long runs have been seen, for another reason.
			if block == 0 && ok && s.NS < float64(r.MinTime)/2 && r.out[i].Loops != r.MaxLoops {
				r.calibrate(ctx, i)
				s, ok = r.sample(ctx, i)
			}
			if ok {
				s.At = r.Now().Sub(r.start)
				out := &r.out[i]
				out.Samples = append(out.Samples, s.per(out.Loops))
				out.Places = append(out.Places, make([]int, r.rounds-len(out.Places))...)
				out.Places[r.rounds-1]++
			}
		}
	}
	return Enough
}

// sample takes one sample, and keeps the error if it fails.
func (r *run) sample(ctx context.Context, i int) (Sample, bool) {
	s, err := r.contenders[i](ctx, r.out[i].Loops)
	if err != nil {
		r.out[i].Err = err
	}
	return s, err == nil
}

// renew calls Renew, and has each contender work once on its new memory, without a sample.
// If that takes long, as for large memory that has to be cleared, it is done less often,
// unless it must be.
func (r *run) renew(ctx context.Context, order []int, must bool) {
	if r.Renew == nil || ctx.Err() != nil || r.renewing > r.MaxTime/2 && !must {
		return
	}
	begun := r.Now()
	var open []int
	for _, i := range order {
		if r.out[i].Err == nil {
			open = append(open, i)
		}
	}
	for k, err := range r.Renew(ctx, open) {
		if i := open[k]; err != nil {
			r.out[i].Err = err
		} else {
			r.sample(ctx, i)
		}
	}
	r.rounds++
	r.renewing += r.Now().Sub(begun)
}

// calibrate warms a contender up, and finds how many repetitions make a sample of MinTime.
// Each contender has its own number: one of them may take a thousand times as long as
// another. The number follows the least time of a repetition that was seen: a stall makes a
// sample longer, never shorter.
func (r *run) calibrate(ctx context.Context, i int) {
	out, begun, least, most := &r.out[i], r.Now(), math.Inf(1), math.MaxInt32
	if r.MaxLoops > 0 {
		most = r.MaxLoops
	}
	out.Loops = 1
	for n := 1; ctx.Err() == nil; n++ {
		s, ok := r.sample(ctx, i)
		if !ok {
			return
		}
		least = min(least, s.NS/float64(out.Loops))
		want := min(out.Loops*10, most) // a first run may be much slower than the next
		if least > 0 {
			want = int(min(max(math.Ceil(1.2*float64(r.MinTime)/least), 1), float64(want)))
		}
		spent := r.Now().Sub(begun)
		enough := float64(out.Loops)*least >= float64(r.MinTime) || out.Loops >= most
		tried := n >= minCalibrations || most == 1 || r.MinTime == 0 || spent >= r.MaxTime/20
		if enough && tried && spent >= r.WarmTime || r.outOfTime() {
			out.Loops = min(out.Loops, want)
			return
		}
		out.Loops = want
	}
}

// minCalibrations is how many samples show how long a repetition takes, unless they take
// long. If a stall hits three samples of ten, it hits all of these once in 400 times.
const minCalibrations = 5

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
