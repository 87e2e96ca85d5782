package report

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

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
			Utilization: of(uint64(0)), Processes: of(uint64(0)), ProcessesMemory: of(uint64(0)),
			Reason: "power_limit, utilization: " + Text(strings.Repeat("the driver is too old ", 6)),
		},
		StateEnd: &DeviceState{
			ClockSM: of(uint64(1410)), ClockSMMax: of(uint64(1980)), Throttle: []string{"software power cap", "hardware thermal slowdown"},
			Temperature: of(uint64(88)), Power: of(699.2), PowerLimit: of(700.0), Processes: of(uint64(2)), ProcessesMemory: of(uint64(3 << 30)),
		},
	}
}

// narrow fails if a line has more than 100 columns.
func narrow(t *testing.T, text string) {
	t.Helper()
	for line := range strings.Lines(text) {
		require.LessOrEqual(t, utf8.RuneCountInString(strings.TrimRight(line, " \n")), 100, line)
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
		{From: "cuda:0", To: "cuda:1", Path: "NV18", Access: &yes}, {From: "cuda:1", To: "cuda:0", Path: "SYS", Access: &no, Refused: "the chipset does not support it"},
	}
	text := written(t, r, Table)
	narrow(t, text)
	for _, want := range []string{
		"Device cuda:0\n", "State of cuda:0\n", "Device host:0\n", " clock sm mhz            1980 ", " power w                 118.5 ", " throttle                nothing",
		" pcie generation max     5 ", " pcie width              16 ", " unified addressing  yes", " other processes         0 ", "too old",
		" governors               performance", " load                    12.5, 11.25, 10", " memory              140 GiB",
		" cuda:0     -       NV18    1          16-31,48-63", " cuda:1     (SYS)   -       -          -",
	} {
		require.Contains(t, text, want)
	}
	require.Contains(t, strings.Join(strings.Fields(text), " "), "(in brackets) no peer access: the chipset does not support it")
	// Without NVML the matrix has what the CUDA driver says.
	r.Topology[0].Path, r.Topology[1].Path = "", ""
	text = written(t, r, Table)
	require.Contains(t, text, " cuda:0     -       yes ")
	require.Contains(t, text, " cuda:1     no      - ")
	require.Contains(t, text, "is there peer access?")
	require.Contains(t, written(t, r, Markdown), "| temperature c | 41 |")
}

// A run that measured shows the state of its two ends.
func TestStateAtBothEnds(t *testing.T) {
	r := sample()
	r.Cases = nil
	r.Comparisons = nil
	r.Devices = []Device{gpu("cuda:0")}
	r.Host.State, r.Host.StateEnd = &HostState{Load: []float64{0, 0, 0}}, &HostState{Load: []float64{1, 0, 0}}
	text := written(t, r, Table)
	narrow(t, text)
	require.Contains(t, text, "State of cuda:0\n")
	require.Regexp(t, `clock sm mhz +1980 +1410`, text)
	require.Regexp(t, `throttle +nothing +software power cap, hardware`, text)
	require.Regexp(t, `other processes +0 +2`, text)
	require.Contains(t, text, "load 0 before and 1 after the run")
	require.NotContains(t, text, "uuid")
}
