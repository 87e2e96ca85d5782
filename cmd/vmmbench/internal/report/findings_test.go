package report

import (
	"fmt"
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

// A finding names every rival, what each costs, and what kept chunks give.
func TestGrowthFinding(t *testing.T) {
	r := grown("cuda:0", map[string]float64{"vmm": 10, "vmm-kept": 8, "cuMemAlloc-copy": 100, "cuMemAlloc-double": 15, "mallocAsync-copy": 40})
	require.Equal(t, []string{
		"Growing to 1GiB by 64MiB in place took 10 ms, and 1.0 GiB at the peak; the pointer stays. " +
			"Copying only when full, to twice the size, took 15 ms, in pairs 1.5 times as long (95 % 1.2 to 1.88), and 1.5 GiB at the peak; the pointer moves 3 times. " +
			"Allocating and copying at each step took 100 ms, in pairs 10 times as long (95 % 8 to 12.5), and 1.5 GiB at the peak; the pointer moves 3 times. " +
			"Copying at each step from the pool, which keeps its memory, took 40 ms, in pairs 4 times as long (95 % 3.2 to 5), and 1.5 GiB at the peak; the pointer moves 3 times. " +
			"In place from kept chunks (vmm-kept, Device.SetReleaseThreshold) took 8 ms.",
	}, Findings(r))

	// If the pool wins, it is said why.
	pool := map[string]float64{"vmm": 10, "mallocAsync-copy": 5}
	require.Contains(t, Findings(grown("cuda:0", pool))[0], "while there is little to copy")
	require.Contains(t, Findings(grown("host:0", pool))[0], "because it keeps its pages: here the first write to a new page costs more than copying an old one. --mem vmm,kept,async")
	pool["vmm-kept"] = 6
	require.Contains(t, Findings(grown("host:0", pool))[0], "Kept chunks keep theirs, too")
	require.Empty(t, Findings(grown("host:0", map[string]float64{"vmm": 10, "vmm-kept": 8})), "there is no rival")
	require.Empty(t, Findings(grown("host:0", map[string]float64{"mremap": 10})))
	one := grown("host:0", map[string]float64{"vmm": 10, "mremap": 8})
	one.Cases[0].Stats.Steps = 1
	require.Empty(t, Findings(one), "one step is no growth")
	one.Cases[0].Stats.Steps, one.Comparisons, one.Cases[1].Stats.Moves = 2, nil, 1
	require.Contains(t, Findings(one)[0], "mremap took 8 ms, and 1.5 GiB at the peak; the pointer moves once.")
	for i := range one.Cases {
		one.Cases[i].Axes[4].Value = "none"
	}
	require.Contains(t, Findings(one)[0], "Growing to 1GiB by 64MiB, nothing written, in place took")
}

func TestCopyFindings(t *testing.T) {
	r := New(Run{}, Host{})
	for i, verdict := range []stat.Verdict{stat.Equal, stat.Slower, stat.TooNoisy} {
		id := fmt.Sprintf("bw/h2d/%d", i)
		for _, mem := range []string{"cuMemAlloc", "vmm"} {
			r.Cases = append(r.Cases, Case{ID: id + "/" + mem, Status: Passed, Axes: Axes{{"direction", "h2d"}, {"host", "pinned"}, {"mem", mem}}, Stats: &Stats{N: 10, Loops: 1}})
		}
		r.Comparisons = append(r.Comparisons, Comparison{ID: id + ": x", A: id + "/cuMemAlloc", B: id + "/vmm", Ratio: of(1.1), Low: of(1.05), High: of(1.2), Margin: 0.02, Verdict: verdict})
	}
	require.Equal(t, []string{
		"Of 3 copies in memory that grows, 1 take as long as in other memory, within 2 %; of 1 it cannot be told, because this machine is too noisy for so few samples (h2d/2).",
		"H2d/1 in vmm takes 1.1 times as long as in cuMemAlloc (95 % 1.05 to 1.2).",
	}, Findings(r))
}

// After a run stand the commands to try, for what it lacks.
func TestNext(t *testing.T) {
	r := grown("cuda:0", map[string]float64{"vmm": 10, "cuMemAlloc-copy": 100})
	require.Equal(t, []step{{"A page with pictures and all figures:", "vmmbench grow --samples 10 -o run.json && vmmbench report run.json -o run.html"}}, next(r))
	host := grown("host:0", map[string]float64{"vmm": 10})
	host.Devices = []Device{{Open: "host:0"}}
	require.Equal(t, "vmmbench grow --samples 10 --device cuda:0", next(host)[0].command, "whoever asked for no device hears that there is no GPU")
	host.Run.Args = append(host.Run.Args, "--device", "host")
	require.Len(t, next(host), 1)
	r.Comparisons[0].Verdict = stat.TooNoisy
	r.Comparisons = append(r.Comparisons, Comparison{Verdict: stat.Waived})
	require.Equal(t, step{"1 of 1 comparisons have no verdict. With more samples, on CPUs near the GPU (--numa, --cpus) and without other work they may:", "vmmbench grow --samples 30 --max-time 6s"}, next(r)[0])
	r.Run.Command = CommandQuick
	require.Contains(t, next(r)[1].command, "--preset nvbandwidth")
	require.Contains(t, next(r)[2].command, "--preset full")
	r.Run.Command = CommandCompare
	require.Empty(t, next(r))
	r.Run.Command, r.Cases[0].Status = "grow", Failed
	require.Contains(t, next(r)[0].command, "--verify full")
	require.Equal(t, "vmmbench", next(New(Run{}, Host{}))[0].command)
	text := written(t, grown("cuda:0", map[string]float64{"vmm": 10, "mremap": 100}), Table)
	require.Less(t, strings.Index(text, "\nGrowing to "), strings.Index(text, "\nWords\n"))
	require.Less(t, strings.Index(text, "\nNext\n"), strings.Index(text, "\nGrowth to "), "the answer is last")
}

func TestPivot(t *testing.T) {
	r := grown("cuda:0", map[string]float64{"vmm": 10, "cuMemAlloc-copy": 100, "mremap": 5})
	header, rows := Pivot(r, []string{"mem"}, "size")
	require.Equal(t, []string{"mem", "1GiB"}, header)
	require.Equal(t, [][]string{{"vmm", "10 ms"}, {"cuMemAlloc-copy", "100 ms (10)"}, {"mremap", "5 ms (0.5)"}}, rows)
	header, rows = Pivot(r, []string{"size"}, "mem")
	require.Equal(t, []string{"size", "vmm", "cuMemAlloc-copy", "mremap"}, header)
	require.Equal(t, [][]string{{"1GiB", "10 ms", "100 ms (10)", "5 ms (0.5)"}}, rows)

	// One comparison in a row has columns of its own.
	two := r.Only("grow/1GiB/vmm", "grow/1GiB/mremap")
	two.Cases[1].Unit = "GB/s"
	header, rows = Pivot(two, []string{"size"}, "mem")
	require.Equal(t, []string{"size", "vmm", "mremap", "ratio of times", "95 %", "verdict"}, header)
	require.Equal(t, [][]string{{"1GiB", "10 ms", "5 GB/s", "2.000", "1.600 to 2.500", "slower"}}, rows)
	two.Comparisons = nil
	_, rows = Pivot(two, []string{"size"}, "mem")
	require.Equal(t, [][]string{{"1GiB", "10 ms", "5 GB/s", "", "", ""}}, rows)

	slower, firm, open, all := Slower(r)
	require.Equal(t, []int{1, 0, 2}, []int{firm, open, all})
	require.Equal(t, []SlowerCase{{"grow/1GiB", "2 times as long as mremap (95 % 1.6 to 2.5)"}}, slower)
	part, left := r.First(2)
	require.Len(t, part.Cases, 2)
	require.Equal(t, []string{"the last 1 of 3 cases", "1 of 2 comparisons"}, left)
}

func TestFigure(t *testing.T) {
	r := grown("cuda:0", map[string]float64{"vmm": 10, "cuMemAlloc-copy": 100})
	for what, want := range map[string]string{
		"time of grow/1GiB/vmm":                                  "10 ms",
		"interval of grow/1GiB/vmm":                              "9 ms to 11 ms",
		"value of grow/1GiB/vmm":                                 "10 ms",
		"peak_bytes of grow/1GiB/cuMemAlloc-copy":                "1.5 GiB",
		"peak_bytes of grow/1GiB/cuMemAlloc-copy per byte":       "1.50",
		"moves of grow/1GiB/cuMemAlloc-copy":                     "3",
		"ratio of grow/1GiB/cuMemAlloc-copy to grow/1GiB/vmm":    "10",
		"ratio of grow/1GiB/vmm to grow/1GiB/cuMemAlloc-copy":    "0.1",
		"interval of grow/1GiB/cuMemAlloc-copy to grow/1GiB/vmm": "8 to 12.5",
		"medians of grow/1GiB/cuMemAlloc-copy to grow/1GiB/vmm":  "10",
		"comparisons of grow":                                    "1",
		"faster of grow":                                         "1",
		"too-noisy of grow":                                      "0",
	} {
		got, err := r.Figure(what)
		require.NoError(t, err, what)
		require.Equal(t, want, got, what)
	}
	for _, what := range []string{"time", "cake of grow/1GiB/vmm", "time of none", "cake of grow", "ratio of grow/1GiB/vmm to none", "cake of grow/1GiB/vmm to grow/1GiB/cuMemAlloc-copy"} {
		_, err := r.Figure(what)
		require.Error(t, err, what)
	}
}

// Metrics are all that a case has, and a table shows those of its kind.
func TestMetrics(t *testing.T) {
	r := sample()
	require.Empty(t, r.Cases[3].Metrics())
	names := map[string]string{}
	for _, m := range r.Cases[2].Metrics() {
		names[m.Name] = m.String()
	}
	require.Equal(t, "1 us", names["step_p50_ns"])
	require.Equal(t, "8 B", names["peak_bytes"])
	require.Equal(t, "samples", names["stop"])
	require.NotContains(t, names, "forward")
	r.Cases[2].Stats.Pooled = &Pooled{Live: 4, Reserved: 6}
	p99 := 2e3
	r.Cases[2].Stats.Sharing = &Sharing{P99: &p99}
	text := written(t, r, Table)
	require.Contains(t, text, "GROW, what it held")
	require.Contains(t, text, "1.5 ")
	require.NotContains(t, text, "reader fds", "it has no reader")
}
