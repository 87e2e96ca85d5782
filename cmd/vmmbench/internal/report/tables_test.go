package report

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	termtext "github.com/jedib0t/go-pretty/v6/text"
	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/stat"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/verify"
)

// fromFile reads a report of a real run, from which the samples were left out.
func fromFile(t testing.TB, name string) *Report {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", name))
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	r, err := Read(f)
	require.NoError(t, err)
	return r
}

// requireFits requires that prose is no wider than a terminal, and that tables are not much wider.
func requireFits(t *testing.T, what, text string) {
	t.Helper()
	for line := range strings.Lines(text) {
		most := 80
		if strings.HasPrefix(line, " ") || strings.HasPrefix(line, "──") {
			most = 120
		}
		require.LessOrEqual(t, termtext.StringWidth(strings.TrimRight(line, " \n")), most, "%s: %s", what, line)
	}
}

func TestTablesOfRuns(t *testing.T) {
	for _, name := range []string{"tour", "full", "grow"} {
		r := fromFile(t, name+".json")
		text := written(t, r, Table)
		requireGolden(t, "testdata/"+name+".table", text)
		requireFits(t, name, text)
		for _, c := range r.Cases {
			if c.Status == Passed {
				require.Contains(t, text, fourDigits(c.Stats.Value), "%s: every case is there", c.ID)
			}
		}
	}
}

// Nothing in a report makes a table too large: long names and reasons are wrapped, many
// devices have many matrices.
func TestTablesFit(t *testing.T) {
	r := fromFile(t, "tour.json")
	r.Host.CPU = "Intel(R) Xeon(R) Platinum 8480+ CPU @ 2.00GHz of a machine with a long name"
	r.Devices[0].Reason = "memory info: device lost; and so were many other things, which take a while to tell"
	r.Cases[1].Status, r.Cases[1].Stats = Error, nil
	r.Cases[1].Reason = "needs about 1099511627776 bytes of host memory, 25769803776 are free: out of memory"
	r.Comparisons[0].Reason, r.Comparisons[0].Verdict = Text(r.Cases[1].ID+": error"), stat.NotMeasured
	r.Comparisons[0].Ratio, r.Comparisons[0].Low, r.Comparisons[0].High = nil, nil, nil
	text := written(t, r, Table)
	requireFits(t, "long", text)
	require.Contains(t, text, "not measured: there is no ratio")

	r = pairs()
	one := r.Cases[0]
	r.Cases = nil
	for from := range 8 {
		for to := range 8 {
			if from == to {
				continue
			}
			for _, mem := range []string{"none", "enable", "vmm"} {
				c := one
				c.ID = fmt.Sprintf("p2p/write/64MiB/cuda:%d-cuda:%d/%s", from, to, mem)
				c.Axes = Axes{{"from", fmt.Sprintf("cuda:%d", from)}, {"to", fmt.Sprintf("cuda:%d", to)}, {"direction", "write"}, {"size", uint64(64 << 20)}, {"mem", mem}}
				c.Status, c.Reason = Passed, ""
				stats := *one.Stats
				stats.Value = 396.7
				c.Stats = &stats
				r.Cases = append(r.Cases, c)
			}
		}
	}
	r.Cases[5].Status, r.Cases[5].Reason = Failed, "offset 5 (chunk 0): expected 0x01, got 0x02"
	text = written(t, r, Table)
	requireFits(t, "pairs", text)
	require.Equal(t, 4, strings.Count(text, "from \\ to"))
	require.Contains(t, text, "offset 5")
	require.Less(t, strings.Count(text, "\n"), 80, "what passed is in the matrices only")
}

func TestCountsAreNoBytes(t *testing.T) {
	axes := Axes{{"streams", uint64(4)}, {"size", uint64(4096)}, {"busy", 1}}
	require.Equal(t, []string{"4", "4KiB", "1", "-"}, []string{axes.text("streams"), axes.text("size"), axes.text("busy"), axes.text("none")})
}

func TestDigits(t *testing.T) {
	for x, want := range map[float64]string{0: "0", 1.23456: "1.235", 123.456: "123.5", 12345.6: "12346", 1e7: "10000000"} {
		require.Equal(t, want, fourDigits(x))
	}
}

// A word is explained where it stands alone, and only there.
func TestLegend(t *testing.T) {
	require.True(t, hasWord("a: vmm, b", "vmm"))
	require.True(t, hasWord("vmm-copy vmm", "vmm"))
	require.False(t, hasWord("vmm-copy xvmm vmm2", "vmm"))
	r := fromFile(t, "tour.json")
	text := written(t, r, Table)
	for _, word := range []string{"median", "95 %", "gated", "wall-clock", "noisy", "drift", "step p50", "step p99", "peak bytes", "moves", "traffic", "ratio of times", "too noisy", "faster"} {
		require.Contains(t, text, "\n"+word+": ")
	}
	for _, word := range []string{"correlated", "few-samples", "equal", "slower", "both", "cuMemAlloc", "cached"} {
		require.NotContains(t, text, "\n"+word+": ")
	}
}

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

// gpu is a GPU with all of its state.
func gpu(open string) Device {
	return Device{
		Open: open, Name: "NVIDIA H200", Driver: "CUDA 12.8", UUID: "01234567-89ab-cdef-0123-456789abcdef", PCI: "0000:3b:00.0",
		Arch: "sm_90", Compute: "default", Unified: true, Memory: 140 << 30, Free: of(uint64(139 << 30)), Peers: []string{},
		State: &DeviceState{
			DriverVersion: "570.86", ClockSM: of(uint64(1980)), ClockSMMax: of(uint64(1980)), ClockMemory: of(uint64(3201)),
			Temperature: of(uint64(41)), Power: of(118.5), PowerLimit: of(700.0), Throttle: []string{},
			PCIeGeneration: of(uint64(4)), PCIeGenerationMax: of(uint64(5)), PCIeWidth: of(uint64(16)),
			NUMANode: of(1), CPUs: "16-31,48-63", ECC: of(true),
			Utilization: of(uint64(0)), Processes: of(uint64(0)),
			Reason: "power_limit, utilization: " + Text(strings.Repeat("the driver is too old ", 6)),
		},
		StateEnd: &DeviceState{
			ClockSM: of(uint64(1410)), ClockSMMax: of(uint64(1980)), Throttle: []string{"software power cap", "hardware thermal slowdown"},
			Temperature: of(uint64(88)), Power: of(699.2), PowerLimit: of(700.0), Processes: of(uint64(2)),
		},
	}
}

func TestInfoHasABlockForEachDevice(t *testing.T) {
	r := New(Run{Command: "info"}, Host{OS: "linux", State: &HostState{
		Load: []float64{12.5, 11.25, 10}, Governors: []string{"performance"}, HugePages: "madvise",
	}})
	r.Devices = []Device{gpu("cuda:0"), gpu("cuda:1"), {Open: "host:0", Name: "host memory"}}
	r.Devices[1].State = nil
	yes, no := true, false
	r.Topology = []Link{
		{From: "cuda:0", To: "cuda:1", Path: "NV18", Access: &yes}, {From: "cuda:1", To: "cuda:0", Path: "SYS", Access: &no},
	}
	text := written(t, r, Table)
	requireFits(t, "info", text)
	for _, want := range []string{
		"Device cuda:0\n", "Device host:0\n", " clock sm mhz +1980 ", " power w +118.5 ", " throttle +nothing",
		" pcie generation max +5 ", " pcie width +16 ", " unified addressing +yes", " other processes +0 ", "too old",
		" governors +performance", " load +12.5, 11.25, 10", " memory +140 GiB", ` numa node +1 `, ` cpu affinity +16-31,48-63 `,
		` cuda:0 +- +NV18 `, ` cuda:1 +\(SYS\) +- `,
	} {
		require.Regexp(t, want, text)
	}
	require.Contains(t, strings.Join(strings.Fields(text), " "), "(in brackets) no peer access")
	// Without NVML the matrix has what the CUDA driver says.
	r.Topology[0].Path, r.Topology[1].Path = "", ""
	text = written(t, r, Table)
	require.Regexp(t, ` cuda:0 +- +yes `, text)
	require.Regexp(t, ` cuda:1 +\(no\) +- `, text)
}

// A run that measured shows the state of its two ends.
func TestStateAtBothEnds(t *testing.T) {
	r := sample()
	r.Cases = nil
	r.Comparisons = nil
	r.Devices = []Device{gpu("cuda:0")}
	r.Host.State, r.Host.StateEnd = &HostState{Load: []float64{0, 0, 0}}, &HostState{Load: []float64{1, 0, 0}}
	text := written(t, r, Table)
	requireFits(t, "info", text)
	require.Contains(t, text, "State of cuda:0\n")
	require.Regexp(t, `clock sm mhz +1980 +1410`, text)
	require.Regexp(t, `throttle +nothing +software power cap, hardware`, text)
	require.Regexp(t, `other processes +0 +2`, text)
	require.Regexp(t, `load +0, 0, 0 +1, 0, 0`, text)
	require.NotContains(t, text, "uuid")
}
