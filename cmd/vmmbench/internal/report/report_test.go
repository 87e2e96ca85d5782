package report

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/stat"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/verify"
)

func of[T any](x T) *T { return &x }

// sample is a report with one of everything.
func sample() *Report {
	r := New(
		Run{
			Command: "tour", Args: []string{"--seed", "7"}, Version: "v1", Started: "2026-11-20T10:00:00Z", Seconds: 1.5,
			Measure: &Measure{Seed: 7, Samples: 3, MinTime: 1e6, MaxTime: 2e9, Order: "random", Verify: verify.Full, Margin: 0.02},
		},
		Host{
			OS: "linux", Arch: "amd64", CPUs: 2, Memory: of(uint64(4 << 30)), Go: "go1.26",
			Limits: []Limit{{Name: "nofile", Value: of(uint64(1024))}, {Name: "memlock", Reason: "unlimited"}},
		},
	)
	r.Devices = []Device{{
		Open: "host:0", Name: "host memory", Memory: 1 << 30, Peers: []string{"host:1"},
		Features: []Feature{
			{Name: "vmm", Supported: of(true)}, {Name: "rdma", Supported: of(false), Reason: "not supported"},
			{Name: "pools", Reason: "busy"},
		},
		Reason: "memory info: device lost",
	}}
	axes := Axes{{"device", "host:0"}, {"direction", "d2d"}, {"size", uint64(2 << 20)}, {"mem", "vmm"}}
	stats := Stats{
		N: 1, Loops: 1, Stop: "samples", Median: 2e6, MAD: 1e5, Min: 1e6, Max: 3e6, P5: 1.1e6, P95: 2.9e6,
		Value: 1.048576,
	}
	copied, both, grown := stats, stats, stats
	copied.Traffic = of(2.097152)
	copied.N, copied.Low, copied.High, copied.ValueLow, copied.ValueHigh = 6, of(1e6), of(3e6), of(0.7), of(2.1)
	both.Both = &Both{Forward: 0.5, Reverse: 0.6}
	p99 := 2e6
	grown.Growth = &Growth{Steps: 2, StepP50: 1e3, StepP99: &p99, StepMax: 3e9, Copied: 4, Peak: 8, Moves: 1, Samples: [][]float64{{1, 2}}}
	r.Cases = []Case{
		{
			ID: "bw/d2d/vmm", Axes: axes, Unit: "GB/s", Bytes: 2 << 20, Status: Passed, Samples: []float64{1e6, 2e6, 3e6, 1e6, 2e6, 3e6},
			Stats: &copied, Verify: &verify.Result{Mode: verify.Full, Bytes: 2 << 20}, Flags: []string{"gated"},
		},
		{
			ID: "bw/both/vmm", Axes: axes, Unit: "GB/s", Bytes: 4 << 20, Status: Failed, Reason: "offset 5 (chunk 0)", Samples: []float64{2e6},
			Stats: &both, Flags: []string{},
			Verify: &verify.Result{Mode: verify.Edges, Bytes: 8192, Errors: 1, FirstBad: &verify.Bad{Offset: 5, Expected: 1, Got: 2, Holds: of(uint64(8))}},
		},
		{
			ID: "grow/2MiB/vmm", Axes: axes, Unit: "ms", Bytes: 2 << 20, Status: Passed, Samples: []float64{2e6},
			Stats: &grown, Verify: &verify.Result{Mode: verify.Off}, Flags: []string{},
		},
		{ID: "grow/2MiB/async", Axes: axes, Unit: "ms", Bytes: 2 << 20, Status: Waived, Reason: "no pool", Samples: []float64{}, Flags: []string{}},
	}
	r.Comparisons = []Comparison{
		{ID: "x", A: "a", B: "b", Ratio: of(1.001), Low: of(0.99), High: of(1.01), Margin: 0.02, Verdict: stat.Equal},
		{ID: "y", A: "a", B: "c", Margin: 0.02, Verdict: stat.Waived, Reason: "c: waived"},
		{ID: "z", A: "a", B: "d", Ratio: of(1.001), Low: of(0.9), High: of(1.1), Margin: 0.02, Verdict: stat.TooNoisy},
	}
	return r
}

// The golden files are the shape that others read.
func TestGolden(t *testing.T) {
	for _, format := range Formats {
		requireGolden(t, "testdata/report."+string(format), written(t, sample(), format))
	}
}

// requireGolden requires that a file has this text. UPDATE_GOLDEN=1 writes it.
func requireGolden(t *testing.T, file, text string) {
	t.Helper()
	if os.Getenv("UPDATE_GOLDEN") != "" {
		require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), text)
}

func TestInfoHasFeaturesAndLimits(t *testing.T) {
	r := sample()
	r.Run.Measure, r.Cases, r.Comparisons = nil, nil, nil
	r.Devices = append(r.Devices, r.Devices[0])
	r.Devices[1].Open = "host:1"
	var b bytes.Buffer
	require.NoError(t, Output{W: &b, Format: Table}.Finished(r))
	require.Regexp(t, `feature +host:0 +host:1`, b.String())
	require.Regexp(t, `pools +unknown: busy +unknown: busy`, b.String())
	require.Contains(t, b.String(), "unlimited")
}

// Numbers are numbers, and what is missing is null.
func TestJSONHasNoNumbersInStrings(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, Output{W: &b, Format: JSON}.Finished(sample()))
	require.NotContains(t, b.String(), "NaN")
	require.NotContains(t, b.String(), "N/A")
	var r struct {
		Cases []struct {
			Samples []float64 `json:"samples_ns"`
			Reason  *string   `json:"reason"`
			Stats   *struct {
				Median float64 `json:"median_ns"`
			} `json:"stats"`
		} `json:"cases"`
	}
	require.NoError(t, json.Unmarshal(b.Bytes(), &r))
	for _, c := range r.Cases {
		require.NotNil(t, c.Samples, "there is always an array")
	}
	require.Nil(t, r.Cases[0].Reason)
	require.Nil(t, r.Cases[3].Stats)
	require.Equal(t, "no pool", *r.Cases[3].Reason)
}

func TestExit(t *testing.T) {
	for _, c := range []struct {
		ends        []Status
		interrupted bool
		want        int
	}{
		{nil, false, ExitPassed},
		{[]Status{Passed, Waived}, false, ExitPassed},
		{[]Status{Waived, Waived}, false, ExitWaived},
		{[]Status{Passed, Error}, false, ExitError},
		{[]Status{Error, Failed}, false, ExitMismatch},
		{[]Status{Passed, Interrupted}, true, ExitInterrupted},
		{[]Status{Error, Interrupted}, true, ExitInterrupted},
		{[]Status{Failed, Interrupted}, true, ExitMismatch},
	} {
		r := New(Run{Interrupted: c.interrupted}, Host{})
		for _, s := range c.ends {
			r.Cases = append(r.Cases, Case{Status: s})
		}
		require.Equal(t, c.want, r.Exit(), "%v", c.ends)
	}
}

func TestFormatOf(t *testing.T) {
	for name, want := range map[string]Format{
		"a.txt": Table, "b/c.json": JSON, "d.ndjson": NDJSON, "f.bench": GoBench,
	} {
		got, err := FormatOf(name)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	for _, name := range []string{"a", "a.table", "a.xml", "a.md", "json"} {
		_, err := FormatOf(name)
		require.Error(t, err, name)
	}
}

func TestAxesKeepTheirOrder(t *testing.T) {
	b, err := json.Marshal(Axes{{"z", "1"}, {"a", uint64(2)}})
	require.NoError(t, err)
	require.Equal(t, `{"z":"1","a":2}`, string(b))
	b, err = json.Marshal(Axes{})
	require.NoError(t, err)
	require.Equal(t, `{}`, string(b))
	require.Equal(t, uint64(2), Axes{{"a", uint64(2)}}.Of("a"))
	require.Nil(t, Axes{}.Of("a"))
}

func TestCSVQuotesByRFC4180(t *testing.T) {
	r := sample()
	r.Cases[0].Reason = "one, \"two\"\nthree"
	var b bytes.Buffer
	require.NoError(t, Output{W: &b, Format: CSV}.Finished(r))
	require.Contains(t, b.String(), `"one, ""two""`)
	lines, err := csv.NewReader(&b).ReadAll()
	require.NoError(t, err)
	require.Len(t, lines, 1+len(r.Cases))
	column := slices.Index(lines[0], "reason")
	require.Equal(t, string(r.Cases[0].Reason), lines[1][column])
	require.Equal(t, "device=host:0 direction=d2d size=2097152 mem=vmm", lines[1][slices.Index(lines[0], "axes")], "sizes are numbers")
	require.Empty(t, lines[4][slices.Index(lines[0], "median_ns")], "what is missing is empty")
}

// A comparison with the baseline stands in the line of its case.
func TestCSVHasTheBaseline(t *testing.T) {
	r := fromFile(t, "tour.json")
	for i := range r.Cases {
		r.Cases[i].Samples = []float64{1, 2, 3}
	}
	r.Baseline, r.Comparisons = &Baseline{}, []Comparison{{A: r.Cases[1].ID, B: r.Cases[1].ID, Ratio: of(1.5), Verdict: stat.Slower}}
	lines, err := csv.NewReader(strings.NewReader(written(t, r, CSV))).ReadAll()
	require.NoError(t, err)
	require.Len(t, lines, 1+len(r.Cases))
	for i, c := range r.Cases {
		got := map[string]string{}
		for k, name := range lines[0] {
			got[name] = lines[1+i][k]
		}
		require.Equal(t, []string{c.ID, string(c.Status), strings.Join(c.Flags, ", ")}, []string{got["id"], got["status"], got["flags"]})
		if i == 1 {
			require.Equal(t, []string{"1.5", "", "slower"}, []string{got["ratio"], got["low"], got["verdict"]})
		} else {
			require.Empty(t, got["ratio"]+got["verdict"])
		}
		if c.Stats == nil {
			require.Empty(t, got["n"])
			continue
		}
		require.Equal(t, field{value: c.Stats.Median}.exact()+field{value: *c.Stats.ValueLow}.exact(), got["median_ns"]+got["value_low"])
	}
}
