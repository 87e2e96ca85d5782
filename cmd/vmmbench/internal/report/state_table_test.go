package report

import (
	"encoding/json"
	"strings"
	"testing"

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

func TestPlanTable(t *testing.T) {
	yes, no := true, false
	r := New(Run{Command: "p2p"}, Host{})
	r.Plan = PeerPlan{
		{Link: Link{From: "cuda:0", To: "cuda:1", Path: "NV18", Access: &yes, Atomics: &yes, Rank: of(0)}, Can: true, Now: "none", Then: "read-write"},
		{Link: Link{From: "cuda:1", To: "cuda:0", Kind: "none", Access: &no}, Now: "none", Why: "not supported: no path between them; by NVML, the chipset does not support it"},
	}
	text := written(t, r, Table)
	requireFits(t, "info", text)
	require.Regexp(t, ` cuda:0 cuda:1 +NV18 +yes +0 +yes +none +read-write`, text)
	require.Regexp(t, ` cuda:1 cuda:0 +none +no +none +not supported: no path`, text)
	require.Equal(t, ExitError, r.Exit())
	require.Equal(t, ExitPassed, r.Plan[:1].Exit())
	require.Equal(t, ExitWaived, r.Plan[1:].Exit())
	require.Equal(t, ExitWaived, PeerPlan{}.Exit(), "a pair takes two devices")

	// What is embedded is flat in JSON, and what is unknown is null.
	var back struct{ Plan []map[string]any }
	require.NoError(t, json.Unmarshal([]byte(written(t, r, JSON)), &back))
	require.Equal(t, "NV18", back.Plan[0]["path"])
	require.Equal(t, true, back.Plan[0]["can"])
	require.Nil(t, back.Plan[1]["then"])
	require.Contains(t, back.Plan[1], "then")
}
