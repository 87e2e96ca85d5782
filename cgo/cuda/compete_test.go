//go:build cgo && linux

package cuda_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/exp/stats"

	"github.com/cuvmm/cuvmm/internal/testing/versus"
)

// Targets for ours, as multiples of C.
const (
	mostMedian = 1.05 // the upper end of the interval of the ratio of medians
	mostTail   = 1.3  // the ratio of the 99th percentiles
)

const seed = 3

// result is a job and, for each way, how many microseconds each round took.
type result struct {
	job
	took [][]float64
}

// compete runs n rounds of a job, after a few that do not count. In each round the
// ways run in a random order. They are undone when all have run, so that no way always
// runs after another's release; or with job.apart after each of them, so that all of
// them find the same free memory.
func (v *rivals) compete(n int, j job) result {
	v.Helper()
	random := rand.New(rand.NewPCG(seed, uint64(n)))
	warm := 1 + n/20
	took := make([][]float64, len(j.ways))
	for round := range warm + n {
		for k, i := range random.Perm(len(j.ways)) {
			if k == 0 || j.apart {
				j.prepare()
			}
			d := j.ways[i]()
			if round >= warm {
				took[i] = append(took[i], float64(d)/float64(time.Microsecond))
			}
			if k == len(j.ways)-1 || j.apart {
				j.undo()
				time.Sleep(j.rest) //nolint:forbidigo // the driver clears released memory in the background
			}
		}
	}
	return result{j, took}
}

// table has the results, one line for each rival. The target of the tail is for jobs
// with a hundred rounds or more.
func table(results ...result) string {
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "job\tagainst\tn\tours p50 us\tp99\ttheirs p50 us\tp99\tp50 ratio\t95 %\tp99 ratio\ttarget")
	for _, r := range results {
		ours := r.took[0]
		for i, theirs := range r.took[1:] {
			low, high := versus.Interval(ours, theirs)
			a, b := stats.Quantiles(ours, 0.5, 0.99), stats.Quantiles(theirs, 0.5, 0.99)
			median, tail := a[0]/b[0], a[1]/b[1]
			outcome := "-"
			if r.against[i] == "C" {
				outcome = versus.Verdict(high <= max(mostMedian, r.most) && (len(ours) < 100 || tail <= mostTail))
			}
			fmt.Fprintf(w, "%s\t%s\t%d\t%.1f\t%.1f\t%.1f\t%.1f\t%.3f\t[%.3f, %.3f]\t%.3f\t%s\n",
				r.name, r.against[i], len(ours), a[0], a[1], b[0], b[1], median, low, high, tail, outcome)
		}
	}
	w.Flush() //nolint:errcheck // a strings.Builder takes everything
	return text.String()
}

func mibs(n uint64) string {
	if n >= 1<<10*mib {
		return fmt.Sprintf("%d GiB", n/(1<<10*mib))
	}
	return fmt.Sprintf("%d MiB", n/mib)
}
