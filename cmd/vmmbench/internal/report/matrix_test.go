package report

import (
	"fmt"
	"testing"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/verify"
)

// pairs is a report of three devices, the last of which has no path.
func pairs() *Report {
	r := sample()
	r.Devices, r.Cases, r.Comparisons = nil, nil, nil
	add := func(from, to int, direction, mem, valueUnit string, n uint64, value float64) {
		c := Case{
			ID: fmt.Sprintf("p2p/%s/%d/%d-%d/%s", direction, n, from, to, mem),
			Axes: Axes{
				{"from", fmt.Sprintf("cuda:%d", from)}, {"to", fmt.Sprintf("cuda:%d", to)},
				{"direction", direction}, {"size", n}, {"mem", mem},
			},
			Unit: valueUnit, Bytes: n, Status: Passed, Samples: []float64{1, 2, 3}, Flags: []string{"gated"},
			Stats:  &Stats{N: 3, Loops: 1, Stop: "samples", Value: value},
			Verify: &verify.Result{Mode: verify.Full, Bytes: n},
		}
		if mem == "vmm" && (from == 2 || to == 2) {
			c.Status, c.Reason, c.Stats, c.Verify, c.Samples, c.Flags = Waived, "no path", nil, nil, []float64{}, []string{}
		}
		r.Cases = append(r.Cases, c)
	}
	for from := range 3 {
		for to := range 3 {
			if from != to {
				add(from, to, "write", "none", "GB/s", 64<<20, 38.2)
				add(from, to, "write", "vmm", "GB/s", 64<<20, 390+float64(from))
				add(from, to, "read", "vmm", "us", 4, 1.25)
			}
		}
	}
	r.Cases[0].Status, r.Cases[0].Reason = Failed, "offset 5 (chunk 0)"
	return r
}

func TestMatricesGolden(t *testing.T) {
	requireGolden(t, "testdata/pairs.table", written(t, pairs(), Table))
}
