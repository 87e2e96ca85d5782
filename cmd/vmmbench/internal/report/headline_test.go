package report

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/stat"
)

// TestHeadline: a sentence for copies, one for copies between devices, and one for growth.
func TestHeadline(t *testing.T) {
	r := grown("cuda:0", map[string]float64{"vmm": 10, "cuMemAlloc-copy": 100, "cuMemAlloc-double": 15, "mallocAsync-copy": 5})
	for i := range r.Comparisons {
		if r.Comparisons[i].A == "grow/1GiB/cuMemAlloc-double" {
			r.Comparisons[i].Verdict = stat.TooNoisy
		}
	}
	grew := "Growth to 1GiB by 64MiB in place: 10 times faster than copying at each step; 2 times slower than copying at each step " +
		"from the driver's pool; against doubling not certain: 1.5 times as fast, 95 % 1.2 to 1.88; the peak is 1.0 GiB instead of 1.5 GiB; the pointer stays."
	require.Equal(t, []string{grew}, Headline(r))
	for i, verdict := range []stat.Verdict{stat.Equal, stat.Slower, stat.TooNoisy, stat.Equal} {
		id, axes := "bw/h2d/"+string(rune('a'+i)), Axes{{"direction", "h2d"}, {"host", "pinned"}}
		if i == 3 {
			id, axes = "p2p/0-1/d", Axes{{"from", "cuda:0"}, {"to", "cuda:1"}}
		}
		for _, mem := range []string{"cuMemAlloc", "vmm"} {
			r.Cases = append(r.Cases, Case{ID: id + "/" + mem, Status: Passed, Axes: append(axes[:2:2], Axis{"mem", mem}), Stats: &Stats{N: 10, Loops: 1}})
		}
		r.Comparisons = append(r.Comparisons, Comparison{ID: id + ": x", A: id + "/cuMemAlloc", B: id + "/vmm", Ratio: of(1.1), Low: of(1.05), High: of(1.2), Margin: 0.02, Verdict: verdict})
	}
	require.Equal(t, []string{
		"Copies in memory that grows: as fast as in other memory, within 2 %, in 1 of 3; slower: h2d/b (1.1 times as long); not certain: h2d/c.",
		"Copies between devices in memory that grows: as fast as in other memory, within 2 %, in 1 of 1.",
		grew,
	}, Headline(r))
	require.Empty(t, Headline(New(Run{}, Host{})))
}
