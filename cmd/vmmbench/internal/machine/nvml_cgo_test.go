//go:build cgo && linux && !nonvml

package machine

import (
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
	"github.com/cuvmm/cuvmm/internal/testing/fakenvml"
)

// fakeNVML is what loads a fake NVML without the functions that are named.
func fakeNVML(t *testing.T, missing ...string) func() (library, error) {
	t.Helper()
	path := fakenvml.Build(t, missing...)
	return func() (library, error) { return openLibrary(nvml.New(nvml.WithLibraryPath(path))) }
}

// gpus are three GPUs, an instance of the third, and memory of the host.
func gpus() []report.Device {
	return []report.Device{
		{Open: "cuda:0", UUID: "0", PCI: "0000:10:00.0"},
		{Open: "cuda:1", UUID: "1", PCI: "0000:20:00.0"},
		{Open: "cuda:2", UUID: "2", PCI: "0000:30:00.0"},
		{Open: "cuda:3", UUID: "x", MIG: "MIG-0", PCI: "0000:30:00.0"},
		{Open: "host:0", UUID: "y"},
	}
}

func TestStateByNVML(t *testing.T) {
	open := fakeNVML(t)
	list := deviceStates(t.TempDir(), gpus(), open)
	require.Nil(t, list[4], "memory of the host has no state of its own")
	for _, s := range list[:3] {
		require.Equal(t, report.Text("570.86"), s.DriverVersion)
		require.Equal(t, []uint64{345, 1980, 2619, 41}, []uint64{*s.ClockSM, *s.ClockSMMax, *s.ClockMemory, *s.Temperature})
		require.InDelta(t, 118.5, *s.Power, 1e-9)
		require.InDelta(t, 700, *s.PowerLimit, 1e-9)
		require.Equal(t, []string{"software power cap", "hardware thermal slowdown"}, s.Throttle)
		require.Equal(t, []uint64{4, 5, 8, 16}, []uint64{*s.PCIeGeneration, *s.PCIeGenerationMax, *s.PCIeWidth, *s.PCIeWidthMax})
		require.True(t, *s.ECC)
		require.Equal(t, uint64(2), *s.Processes)
	}
	require.Equal(t, uint64(12), *list[0].Utilization)

	// The instance has none of its GPU's values.
	require.Nil(t, list[3].ClockSM)
	require.Nil(t, list[3].Utilization)
	require.Equal(t, uint64(2), *list[3].Processes)
	require.Contains(t, list[3].Reason, "ecc, utilization: Not Supported")
}

// symbols are the functions of NVML that a state or a path takes, with what is missing
// from the report if the driver lacks one.
var symbols = map[string]string{
	"nvmlSystemGetDriverVersion":              "driver_version",
	"nvmlDeviceGetClockInfo":                  "clock_sm, clock_memory",
	"nvmlDeviceGetMaxClockInfo":               "clock_sm_max",
	"nvmlDeviceGetTemperature":                "temperature",
	"nvmlDeviceGetPowerUsage":                 "power",
	"nvmlDeviceGetEnforcedPowerLimit":         "power_limit",
	"nvmlDeviceGetCurrentClocksEventReasons":  "throttle",
	"nvmlDeviceGetCurrPcieLinkGeneration":     "pcie_generation",
	"nvmlDeviceGetMaxPcieLinkGeneration":      "pcie_generation_max",
	"nvmlDeviceGetCurrPcieLinkWidth":          "pcie_width",
	"nvmlDeviceGetMaxPcieLinkWidth":           "pcie_width_max",
	"nvmlDeviceGetEccMode":                    "ecc",
	"nvmlDeviceGetUtilizationRates":           "utilization",
	"nvmlDeviceGetComputeRunningProcesses_v3": "other_processes",
}

// Reports of the same machine are the same: reasons name what is missing in one order.
func TestReasonsAreInOrder(t *testing.T) {
	var all []string
	for symbol := range symbols {
		all = append(all, symbol)
	}
	open := fakeNVML(t, all...)
	for range 50 {
		s := deviceStates(t.TempDir(), gpus()[:1], open)[0]
		require.Contains(t, s.Reason, "driver_version, clock_sm, clock_sm_max, clock_memory, temperature, power, power_limit, throttle, "+
			"pcie_generation, pcie_generation_max, pcie_width, pcie_width_max, ecc, utilization, other_processes: the driver is too old")
	}
}

// A driver that lacks a function leaves one value out, and one that fails does.
func TestStateWithoutAFunction(t *testing.T) {
	all := make([]string, 0, len(symbols))
	for symbol := range symbols {
		all = append(all, symbol)
	}
	without := deviceStates(t.TempDir(), gpus()[:1], fakeNVML(t, all...))[0]
	for symbol, names := range symbols {
		for name := range strings.SplitSeq(names, ", ") {
			require.Contains(t, without.Reason, name, symbol)
		}
	}
	require.True(t, strings.HasSuffix(string(without.Reason), ": the driver is too old for this value"), without.Reason)

	open := fakeNVML(t)
	for symbol, names := range symbols {
		t.Setenv("FAKE_NVML_FAIL", symbol)
		t.Setenv("FAKE_NVML_CODE", "999")
		s := deviceStates(t.TempDir(), gpus()[:1], open)[0]
		require.Contains(t, s.Reason, names+": error 999", symbol)
	}
	t.Setenv("FAKE_NVML_FAIL", "nvmlInit_v2")
	s := deviceStates(t.TempDir(), gpus()[:1], open)[0]
	require.Contains(t, s.Reason, "NVML: NVML cannot be used: error 999")
	t.Setenv("FAKE_NVML_FAIL", "nvmlDeviceGetHandleByUUID")
	s = deviceStates(t.TempDir(), gpus()[3:4], open)[0]
	require.Contains(t, s.Reason, "NVML: MIG-0 is not found", "its place on the bus is that of its GPU")
	s = deviceStates(t.TempDir(), gpus()[:1], open)[0]
	require.Equal(t, uint64(12), *s.Utilization, "the GPU is found by its place on the bus")
}

func TestStateWithoutTheLibrary(t *testing.T) {
	open := func() (library, error) { return openLibrary(nvml.New(nvml.WithLibraryPath("/no/libnvidia-ml.so.1"))) }
	s := deviceStates(t.TempDir(), gpus()[:1], open)[0]
	require.Contains(t, s.Reason, "cannot be loaded")
	require.Nil(t, s.ClockSM)

	open = fakeNVML(t)
	s = deviceStates(t.TempDir(), []report.Device{{Open: "cuda:0", UUID: "other", PCI: "0000:77:00.0"}}, open)[0]
	require.Contains(t, s.Reason, "NVML: GPU-other is not found")
	require.Equal(t, report.Text("570.86"), s.DriverVersion)
}

// paths returns the links between GPUs 0, 1, 2 and the instance.
func paths(t *testing.T, open func() (library, error)) map[string]*report.Link {
	t.Helper()
	r := &report.Report{Devices: gpus()}
	for _, from := range gpus() {
		for _, to := range gpus() {
			if from.Open != to.Open && isGPU(from) && isGPU(to) {
				r.Topology = append(r.Topology, report.Link{From: from.Open, To: to.Open})
			}
		}
	}
	addPaths(r, open)
	byName := map[string]*report.Link{}
	for i, l := range r.Topology {
		byName[l.From+" "+l.To] = &r.Topology[i]
	}
	return byName
}

func TestPathsByNVML(t *testing.T) {
	open := fakeNVML(t)
	l := paths(t, open)
	require.Equal(t, report.Text("NV2"), l["cuda:0 cuda:1"].Path, "the third link leads elsewhere")
	require.Equal(t, 2, *l["cuda:0 cuda:1"].NVLinks)
	require.Equal(t, report.Text("SYS"), l["cuda:0 cuda:2"].Path)
	require.Zero(t, *l["cuda:0 cuda:2"].NVLinks)
	require.Equal(t, report.Text("PHB"), l["cuda:2 cuda:0"].Path)
	require.Equal(t, report.Text("same GPU"), l["cuda:2 cuda:3"].Path)
	for name, l := range l {
		if l.From != "cuda:3" && l.To != "cuda:3" { // the instance, of which NVML knows no paths
			require.Empty(t, l.Reason, name)
		}
	}

	t.Setenv("FAKE_NVML_SWITCH", "1")
	l = paths(t, open)
	require.Empty(t, l["cuda:0 cuda:1"].Refused)
	require.Equal(t, report.Text("the chipset does not support it"), l["cuda:2 cuda:0"].Refused)
	require.Equal(t, report.Text("NV3"), l["cuda:0 cuda:1"].Path, "through a switch, all that the GPU has")

	for symbol, name := range map[string]string{
		"nvmlDeviceGetNvLinkState": "nvlinks", "nvmlDeviceGetPciInfo_v3": "nvlinks",
		"nvmlDeviceGetP2PStatus": "refused", "nvmlDeviceGetHandleByUUID": "",
	} {
		t.Setenv("FAKE_NVML_FAIL", symbol)
		t.Setenv("FAKE_NVML_CODE", "999")
		l := paths(t, open)["cuda:0 cuda:1"]
		require.NotEmpty(t, l.Path, symbol)
		if name != "" {
			require.Contains(t, l.Reason, name, symbol)
		}
	}
	t.Setenv("FAKE_NVML_FAIL", "nvmlDeviceGetTopologyCommonAncestor")
	t.Setenv("FAKE_NVML_CODE", "")
	none := paths(t, open)["cuda:0 cuda:2"]
	require.Empty(t, none.Path)
	require.Equal(t, report.Text("path: Not Supported"), none.Reason)
}

func TestPathsWithoutTheFunctions(t *testing.T) {
	open := fakeNVML(t, "nvmlDeviceGetP2PStatus", "nvmlDeviceGetTopologyCommonAncestor", "nvmlDeviceGetNvLinkRemotePciInfo_v2", "nvmlDeviceGetPciInfo_v3")
	l := paths(t, open)["cuda:0 cuda:1"]
	require.Empty(t, l.Path)
	require.Equal(t, report.Text("refused, nvlinks, path: the driver is too old for this value"), l.Reason)

	open = func() (library, error) { return openLibrary(nvml.New(nvml.WithLibraryPath("/no/libnvidia-ml.so.1"))) }
	l = paths(t, open)["cuda:0 cuda:1"]
	require.Contains(t, l.Reason, "path: NVML, libnvidia-ml.so.1, cannot be loaded")
}
