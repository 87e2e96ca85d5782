package report

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/stat"
)

// TestHeadline: a sentence for copies, one for copies between devices, and one for growth.
func TestFindings(t *testing.T) {
	r := grown("cuda:0", map[string]float64{"vmm": 10, "cuMemAlloc-copy": 100, "cuMemAlloc-double": 15, "mallocAsync-copy": 5})
	for i := range r.Comparisons {
		if r.Comparisons[i].A == "grow/1GiB/cuMemAlloc-double" {
			r.Comparisons[i].Verdict = stat.TooNoisy
		}
	}
	grew := "Growth in place (grow/1GiB/vmm) takes 10 ms; cuMemAlloc-copy takes 10 times as long (95 % 8 to 12.5); " +
		"cuMemAlloc-double takes 1.5 times as long (95 % 1.2 to 1.88, too noisy); mallocAsync-copy takes 0.5 times as long (95 % 0.4 to 0.625). " +
		"The peak is 1.0 GiB, 1.5 GiB with cuMemAlloc-copy, 1.5 GiB with cuMemAlloc-double, 1.5 GiB with mallocAsync-copy; the pointer stays."
	ratios := "Memory that grows against other memory, grow, within 2 %: 1 slower, 1 faster, 1 too noisy; " +
		"the slowest, grow/1GiB: vmm against mallocAsync-copy, takes 2 times as long (95 % 1.6 to 2.5)."
	require.Equal(t, []string{ratios, grew}, Findings(r))
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
		ratios,
		"Memory that grows against other memory, bw, within 2 %: 1 equal, 1 slower, 1 too noisy; the slowest, bw/h2d/b: x, takes 1.1 times as long (95 % 1.05 to 1.2).",
		"Memory that grows against other memory, p2p, within 2 %: 1 equal.",
		grew,
	}, Findings(r))
	require.Empty(t, Findings(New(Run{}, Host{})))
}

// The share of a link is that of the fastest copy, and a link below what the GPU could do is named.
func TestLinkFindings(t *testing.T) {
	r := New(Run{AtLeast: []Floor{{Case: "bw/h2d/pinned/1GiB/vmm", Least: 50, Value: of(40.0)}}}, Host{})
	for _, c := range []struct{ id, direction, host string }{{"bw/h2d/pinned/1GiB/vmm", "h2d", "pinned"}, {"bw/both/pinned/1GiB/vmm", "both", "pinned"}} {
		r.Cases = append(r.Cases, Case{ID: c.id, Unit: "GB/s", Status: Passed, Axes: Axes{{"device", "cuda:0"}, {"direction", c.direction}, {"host", c.host}}, Stats: &Stats{Value: 7}})
	}
	r.Cases = append(r.Cases, Case{ID: "p2p/write/cuda:0-cuda:1/vmm", Unit: "GB/s", Status: Passed,
		Axes: Axes{{"from", "cuda:0"}, {"to", "cuda:1"}, {"direction", "write"}}, Stats: &Stats{Value: 387}})
	state := &DeviceState{PCIeGeneration: of(uint64(1)), PCIeWidth: of(uint64(8)), PCIeGenerationMax: of(uint64(5)), PCIeWidthMax: of(uint64(16))}
	end := *state
	end.PCIeGeneration = of(uint64(3))
	r.Devices = []Device{{Open: "cuda:0", Arch: "sm_90", State: state, StateEnd: &end}, {Open: "cuda:1", Arch: "sm_90"}}
	r.Topology = []Link{{From: "cuda:0", To: "cuda:1", NVLinks: of(18)}, {From: "cuda:1", To: "cuda:0"}}
	require.Equal(t, []string{
		"One way over PCIe Gen3 x8, where the GPU could do Gen5 x16 (8 GB/s): 7 GB/s, 89 %.",
		"One way over 18 NVLinks (450 GB/s): 387 GB/s, 86 %.",
	}, Findings(r)[:2])
	require.Regexp(t, `bw/h2d/pinned/1GiB/vmm +50 +40 +below its floor`, written(t, r, Table))
	r.Run.AtLeast[0].Value = nil
	require.Regexp(t, `bw/h2d/pinned/1GiB/vmm +50 +below its floor`, written(t, r, Table))
	r.Run.AtLeast[0].Value = of(50.0)
	require.Regexp(t, `bw/h2d/pinned/1GiB/vmm +50 +50 +reached`, written(t, r, Table))
}

// Of few samples the interval is called a range, and one row has no column for what is usual.
func TestRangeAndOneRow(t *testing.T) {
	r := New(Run{Measure: &Measure{}}, Host{})
	c := Case{ID: "bw/h2d/pinned/1GiB/vmm", Unit: "GB/s", Status: Passed, Axes: Axes{{"direction", "h2d"}, {"engine", "ce"}, {"streams", 1}, {"mem", "vmm"}},
		Stats: &Stats{N: 10, Loops: 1, Value: 50, ValueLow: of(49.0), ValueHigh: of(51.0), Level: stat.Wide}}
	r.Cases = []Case{c}
	text := written(t, r, Table)
	require.Contains(t, text, "49 to 51 (range)")
	require.Contains(t, text, "range: an interval of fewer")
	r.Cases[0].Stats.Level = stat.Usual
	require.NotContains(t, written(t, r, Table), "range")
}
