package report

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/stat"
)

// grown is a report of growth to 1 GiB by 64 MiB, by the ways and the milliseconds given.
func grown(device string, ms map[string]float64) *Report {
	r := New(Run{Command: "grow", Args: []string{"grow", "--samples", "10"}, Measure: &Measure{Samples: 10, MaxTime: 2e9}}, Host{})
	for _, mem := range []string{"vmm", "vmm-kept", "cuMemAlloc-copy", "cuMemAlloc-double", "mallocAsync-copy", "mremap"} {
		took, ok := ms[mem]
		if !ok {
			continue
		}
		c := Case{
			ID: "grow/1GiB/" + mem, Unit: "ms", Bytes: 1 << 30, Status: Passed, Samples: []float64{},
			Axes:  Axes{{"device", device}, {"size", uint64(1 << 30)}, {"step", uint64(64 << 20)}, {"mem", mem}, {"write", "device"}},
			Stats: &Stats{N: 10, Loops: 1, Median: took * 1e6, Value: took, Low: of(took * 9e5), High: of(took * 1.1e6), Growth: &Growth{Steps: 16, Peak: 1 << 30}},
		}
		if !strings.HasPrefix(mem, "vmm") {
			c.Stats.Moves, c.Stats.Peak = 3, 3<<29
			ratio := ms["vmm"] / took
			verdict := stat.Faster
			if ratio > 1 {
				verdict = stat.Slower
			}
			r.Comparisons = append(r.Comparisons, Comparison{
				ID: "grow/1GiB: vmm against " + mem, A: c.ID, B: "grow/1GiB/vmm", Ratio: &ratio, Low: of(ratio * 0.8), High: of(ratio * 1.25), Margin: 0.02, Verdict: verdict,
			})
		}
		r.Cases = append(r.Cases, c)
	}
	return r
}

// The answer stands last, where a terminal shows it.
func TestFindingsStandLast(t *testing.T) {
	text := written(t, grown("cuda:0", map[string]float64{"vmm": 10, "mremap": 100}), Table)
	require.Less(t, strings.Index(text, "\nWords\n"), strings.Index(text, "\nGrowth in place "))
}

func TestPivot(t *testing.T) {
	r := grown("cuda:0", map[string]float64{"vmm": 10, "cuMemAlloc-copy": 100, "mremap": 5})
	require.Equal(t, "| mem | 1GiB |\n| --- | --- |\n| vmm | 10 ms |\n| cuMemAlloc-copy | 100 ms (10) |\n| mremap | 5 ms (0.5) |",
		Pivot(r, []string{"mem"}, "size"))
	require.Equal(t, "| size | vmm | cuMemAlloc-copy | mremap |\n| --- | --- | --- | --- |\n| 1GiB | 10 ms | 100 ms (10) | 5 ms (0.5) |",
		Pivot(r, []string{"size"}, "mem"))
	slower, firm, open, all := Slower(r)
	require.Equal(t, []int{1, 0, 2}, []int{firm, open, all})
	require.Equal(t, []string{"grow/1GiB: vmm against mremap takes 2 times as long (1.6 to 2.5)"}, slower)
	r.Comparisons[0].Verdict, r.Comparisons[1].Verdict = stat.TooNoisy, stat.TooNoisy
	_, firm, open, _ = Slower(r)
	require.Equal(t, []int{0, 1}, []int{firm, open}, "no firm verdict")
	r.Comparisons[1].Verdict = stat.Slower
	require.Contains(t, Pivot(r, []string{"size"}, "mem"), "100 ms (10?)")
	require.Empty(t, Pivot(r.Only("none"), []string{"size"}, "mem"))
}

func TestFigure(t *testing.T) {
	r := grown("cuda:0", map[string]float64{"vmm": 10, "cuMemAlloc-copy": 100})
	for what, want := range map[string]string{
		"time of grow/1GiB/vmm":                               "10 ms",
		"value of grow/1GiB/vmm":                              "10 ms",
		"peak_bytes of grow/1GiB/cuMemAlloc-copy":             "1.5 GiB",
		"peak_bytes of grow/1GiB/cuMemAlloc-copy per byte":    "1.50",
		"moves of grow/1GiB/cuMemAlloc-copy":                  "3",
		"ratio of grow/1GiB/cuMemAlloc-copy to grow/1GiB/vmm": "10",
		"comparisons of grow":                                 "1",
		"faster of grow":                                      "1",
		"too noisy of grow":                                   "0",
	} {
		got, err := r.Figure(what)
		require.NoError(t, err, what)
		require.Equal(t, want, got, what)
	}
	for _, what := range []string{"time", "cake of grow/1GiB/vmm", "time of none", "cake of grow", "ratio of grow/1GiB/vmm to grow/1GiB/cuMemAlloc-copy", "cake of grow/1GiB/vmm to grow/1GiB/cuMemAlloc-copy"} {
		_, err := r.Figure(what)
		require.Error(t, err, what)
	}
}

// Figures are all that a case has, and a table shows those of its kind.
func TestCaseFigures(t *testing.T) {
	r := sample()
	require.Empty(t, r.Cases[3].figures())
	texts := map[string]string{}
	for _, f := range r.Cases[2].figures() {
		texts[f.name] = f.String()
	}
	require.Equal(t, "1 us", texts["step_p50_ns"])
	require.Equal(t, "8 B", texts["peak_bytes"])
	require.Equal(t, "samples", texts["stop"])
	require.NotContains(t, texts, "forward")
	r.Cases[2].Stats.Pooled = &Pooled{Live: 4, Reserved: 6}
	p99 := 2e3
	r.Cases[2].Stats.Sharing = &Sharing{P99: &p99}
	text := written(t, r, Table)
	require.Contains(t, text, "reserved peak bytes")
}

// TestHeadline: a sentence for copies, one for copies between devices, and one for growth.
func TestFindings(t *testing.T) {
	r := grown("cuda:0", map[string]float64{"vmm": 10, "cuMemAlloc-copy": 100, "cuMemAlloc-double": 15, "mallocAsync-copy": 5})
	for i := range r.Comparisons {
		if r.Comparisons[i].A == "grow/1GiB/cuMemAlloc-double" {
			r.Comparisons[i].Verdict = stat.TooNoisy
		}
	}
	grew := "Growth in place (grow/1GiB/vmm) takes 10 ms; cuMemAlloc-copy takes 10 times as long (8 to 12.5); " +
		"cuMemAlloc-double takes 1.5 times as long (1.2 to 1.88), too noisy; mallocAsync-copy takes 0.5 times as long (0.4 to 0.625). " +
		"The peak is 1.0 GiB, 1.5 GiB with cuMemAlloc-copy, 1.5 GiB with cuMemAlloc-double, 1.5 GiB with mallocAsync-copy; the pointer stays."
	ratios := "Memory that grows against other memory, grow, within 2 %: 1 slower, 1 faster, 1 too noisy; " +
		"the slowest is grow/1GiB: vmm against mallocAsync-copy takes 2 times as long (1.6 to 2.5)."
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
		"Memory that grows against other memory, bw, within 2 %: 1 equal, 1 slower, 1 too noisy; the slowest is bw/h2d/b: x takes 1.1 times as long (1.05 to 1.2).",
		"Memory that grows against other memory, p2p, within 2 %: 1 equal.",
		grew,
	}, Findings(r))
	require.Empty(t, Findings(New(Run{}, Host{})))
}

// A floor is reached, or it is not: then there may be no figure at all.
func TestFloors(t *testing.T) {
	r := New(Run{AtLeast: []Floor{{Case: "bw/h2d/pinned/1GiB/vmm", Least: 50, Value: of(40.0)}}}, Host{})
	require.Regexp(t, `bw/h2d/pinned/1GiB/vmm +50 +40 +below its floor`, written(t, r, Table))
	r.Run.AtLeast[0].Value = nil
	require.Regexp(t, `bw/h2d/pinned/1GiB/vmm +50 +below its floor`, written(t, r, Table))
	r.Run.AtLeast[0].Value = of(50.0)
	require.Regexp(t, `bw/h2d/pinned/1GiB/vmm +50 +50 +reached`, written(t, r, Table))
}

// The share of a link is that of the fastest copy, and a link below what the GPU could do is named.
func TestLinkFindings(t *testing.T) {
	r := New(Run{}, Host{})
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
}

// Of few samples the interval is called a range, and one row has no column for what is usual.
func TestRangeAndOneRow(t *testing.T) {
	r := New(Run{Measure: &Measure{}}, Host{})
	c := Case{ID: "bw/h2d/pinned/1GiB/vmm", Unit: "GB/s", Status: Passed, Axes: Axes{{"direction", "h2d"}, {"engine", "ce"}, {"streams", 1}, {"mem", "vmm"}},
		Stats: &Stats{N: 10, Loops: 1, Value: 50, ValueLow: of(49.0), ValueHigh: of(51.0), Level: stat.Wide}}
	r.Cases = []Case{c}
	text := written(t, r, Table)
	require.Contains(t, text, "49 to 51, range")
	require.Contains(t, text, "range: an interval of fewer")
	r.Cases[0].Stats.Level = stat.Usual
	require.NotContains(t, written(t, r, Table), "range")
}
