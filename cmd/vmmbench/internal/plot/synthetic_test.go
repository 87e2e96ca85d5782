package plot

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cmd/internal/size"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/stat"
)

// synthetic makes a report as of a machine with eight GPUs. No machine has measured it: it
// is to show what pictures of such a report look like.
type synthetic struct {
	*report.Report
	random *rand.Rand
}

const gpuReport = "testdata/gpu.json"

// UPDATE_GOLDEN=1 writes the report.
func TestSyntheticReport(t *testing.T) {
	s := &synthetic{random: rand.New(rand.NewPCG(1, 2))}
	free := uint64(138 << 30)
	s.Report = report.New(report.Run{
		Command: "tour", Args: []string{"--device", "cuda:all"}, Version: "v0.0.0-synthetic", Started: "2026-11-20T10:00:00Z", Seconds: 29,
		Measure: &report.Measure{Seed: 1, Samples: 10, MinTime: 1e6, MaxTime: 5e9, Order: "random", Verify: "full", Margin: 0.02},
	}, report.Host{OS: "linux", Arch: "amd64", CPU: "no processor", CPUs: 128, Go: "go1.26", Limits: []report.Limit{}})
	for i := range 8 {
		s.Devices = append(s.Devices, report.Device{
			Open: fmt.Sprintf("cuda:%d", i), Name: "NVIDIA Synthetic", Driver: "580.0", Memory: 139 << 30, Free: &free,
			Peers: []string{}, Features: []report.Feature{},
		})
	}
	s.growths()
	s.copies()
	s.pairs()

	got, err := json.Marshal(s.Report)
	require.NoError(t, err)
	if os.Getenv("UPDATE_GOLDEN") != "" {
		require.NoError(t, os.WriteFile(gpuReport, append(got, '\n'), 0o644))
	}
	want, err := os.ReadFile(gpuReport)
	require.NoError(t, err)
	require.JSONEq(t, string(want), string(got))
}

// around are n values with a spread of part, to four digits.
func (s *synthetic) around(ns, part float64, n int) (list []float64) {
	for range n {
		v := ns * math.Exp(part*s.random.NormFloat64())
		list = append(list, math.Round(v*100)/100)
	}
	return list
}

// add adds a case that took these nanoseconds.
func (s *synthetic) add(id, unit string, bytes uint64, samples []float64, axes ...report.Axis) *report.Case {
	sum := stat.Summarize(samples)
	value := func(ns float64) float64 {
		switch unit {
		case "GB/s":
			return float64(bytes) / ns
		case "us":
			return ns / 1e3
		}
		return ns / 1e6
	}
	st := &report.Stats{N: sum.N, Loops: 1, Stop: "samples", Median: sum.Median, Min: sum.Min, Max: sum.Max, P5: sum.P5, P95: sum.P95, Value: value(sum.Median)}
	if of := sum.Interval; of != nil {
		low, high := value(of.Low), value(of.High)
		low, high = min(low, high), max(low, high)
		st.Low, st.High, st.ValueLow, st.ValueHigh = &of.Low, &of.High, &low, &high
	}
	s.Cases = append(s.Cases, report.Case{
		ID: id, Axes: axes, Unit: unit, Bytes: bytes, Status: report.Passed, Samples: samples, Stats: st, Flags: []string{},
	})
	return &s.Cases[len(s.Cases)-1]
}

// compare adds the comparison of the last case with an earlier one.
func (s *synthetic) compare(with string) {
	b := s.Cases[len(s.Cases)-1]
	a := s.Cases[slices.IndexFunc(s.Cases, func(c report.Case) bool { return c.ID == with })]
	group := parent(b.ID)
	label, other := b.ID[len(group)+1:], with[len(group)+1:]
	c := report.Comparison{ID: group + ": " + label + " against " + other, A: with, B: b.ID, Margin: 0.02, Verdict: stat.TooFew}
	if e, err := stat.Ratio(a.Samples, b.Samples); err == nil {
		c.Ratio, c.Low, c.High, c.Verdict = &e.Ratio, &e.Interval.Low, &e.Interval.High, stat.Judge(e, 0.02)
	}
	s.Comparisons = append(s.Comparisons, c)
}

// growths grows to 8 GiB by 256 MiB.
func (s *synthetic) growths() {
	const target, step = uint64(8 << 30), uint64(256 << 20)
	for _, of := range []struct {
		mem  string
		ns   func(i int) float64 // of step i
		tail float64
	}{
		{"cuMemAlloc-copy", func(i int) float64 { return 4e5 + 2.6e5*float64(i) }, 0.3},
		{"mallocAsync-copy", func(i int) float64 { return 9e4 + 1.2e5*float64(i) }, 0.1},
		{"vmm-whole", func(i int) float64 { return 1.2e5 }, 0.05},
		{"vmm", func(i int) float64 { return 1.3e5 + 3e5*math.Exp(-float64(i)) }, 0.08},
	} {
		var all [][]float64
		var totals []float64
		for range 10 {
			var steps []float64
			total := 0.0
			for i := range int(target / step) {
				steps = append(steps, s.around(of.ns(i), of.tail, 1)...)
				total += steps[i]
			}
			all, totals = append(all, steps), append(totals, total)
		}
		c := s.add("grow/8GiB/"+of.mem, "ms", target, totals,
			report.Axis{Name: "device", Value: "cuda:0"}, report.Axis{Name: "size", Value: target}, report.Axis{Name: "step", Value: step}, report.Axis{Name: "mem", Value: of.mem})
		steps := slices.Concat(all...)
		p99 := stat.Quantile(steps, 0.99)
		c.Stats.Growth = &report.Growth{
			Steps: int(target / step), StepP50: stat.Quantile(steps, 0.5), StepP99: &p99, StepMax: stat.Quantile(steps, 1),
			Peak: target, Samples: all,
		}
	}
	for _, mem := range []string{"cuMemAlloc-copy", "mallocAsync-copy", "vmm-whole"} {
		s.compare("grow/8GiB/" + mem)
	}
}

// copies are of several sizes, and get faster with them.
func (s *synthetic) copies() {
	for _, of := range []struct {
		direction, host string
		most            float64
	}{{"h2d", "pinned", 55}, {"d2d", "none", 2100}} {
		for n := uint64(1 << 20); n <= 1<<30; n *= 8 {
			group := fmt.Sprintf("bw/%s/%s/%s", of.direction, of.host, size.Format(n))
			for _, mem := range []string{"cuMemAlloc", "vmm"} {
				s.add(group+"/"+mem, "GB/s", n, s.around(5e3+float64(n)/of.most, 0.006, 10),
					report.Axis{Name: "direction", Value: of.direction}, report.Axis{Name: "host", Value: of.host}, report.Axis{Name: "size", Value: n}, report.Axis{Name: "mem", Value: mem})
			}
			s.compare(group + "/cuMemAlloc")
		}
	}
}

// pairs are between eight devices, one of which has a slow link and one none.
func (s *synthetic) pairs() {
	const n = uint64(512 << 20)
	for from := range 8 {
		for to := range 8 {
			if from == to {
				continue
			}
			group := fmt.Sprintf("p2p/write/512MiB/cuda:%d-cuda:%d", from, to)
			for _, mem := range []string{"none", "enable", "vmm"} {
				speed := 38.0
				if mem != "none" {
					speed = 390
				}
				if from == 3 || to == 3 {
					speed /= 4
				}
				c := s.add(group+"/"+mem, "GB/s", n, s.around(float64(n)/speed, 0.01, 3),
					report.Axis{Name: "from", Value: fmt.Sprintf("cuda:%d", from)}, report.Axis{Name: "to", Value: fmt.Sprintf("cuda:%d", to)},
					report.Axis{Name: "direction", Value: "write"}, report.Axis{Name: "size", Value: n}, report.Axis{Name: "mem", Value: mem})
				if mem != "none" && (from == 7) != (to == 7) && from+to == 7 {
					c.Status, c.Reason, c.Stats, c.Samples = report.Waived, "no path", nil, []float64{}
				}
			}
		}
	}
}
