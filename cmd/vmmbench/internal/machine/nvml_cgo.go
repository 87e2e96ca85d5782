//go:build cgo && linux && !nonvml

package machine

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
	"github.com/cuvmm/cuvmm/internal/nvmlcalls"
)

// openNVML loads NVML where the loader finds it. The caller must close it.
func openNVML() (library, error) { return openLibrary(nvml.New()) }

func openLibrary(lib nvml.Interface) (library, error) {
	l, err := nvmlcalls.Open(lib)
	if err != nil {
		return nil, err
	}
	return nvmlLibrary{l}, nil
}

// nvmlLibrary is NVML itself.
type nvmlLibrary struct{ nvmlcalls.Library }

func (l nvmlLibrary) close() { l.Close() }

// find finds a GPU by its UUID, or else by its place on the PCI bus, and a MIG instance by its UUID.
func (l nvmlLibrary) find(d report.Device) (nvml.Device, error) {
	uuid, pci := "GPU-"+string(d.UUID), string(d.PCI)
	if d.MIG != "" {
		uuid, pci = string(d.MIG), ""
	}
	g, err := l.Find(uuid, pci, false)
	return g.Own, err
}

// value is a number of a GPU, or nil with a reason.
func value[T ~int | ~int32 | ~uint32 | ~uint64](l nvmlLibrary, missing *reasons, name, symbol string, f func() (T, nvml.Return)) *uint64 {
	v, err := nvmlcalls.Call(l.Library, f, "nvmlDeviceGet"+symbol)
	if err != nil {
		missing.add(name, err)
		return nil
	}
	n := uint64(v)
	return &n
}

// of is a call with its argument.
func of[A any](f func(A) (uint32, nvml.Return), a A) func() (uint32, nvml.Return) {
	return func() (uint32, nvml.Return) { return f(a) }
}

// state implements library.
func (l nvmlLibrary) state(s *report.DeviceState, gpu report.Device, missing *reasons) {
	version, err := nvmlcalls.Call(l.Library, l.SystemGetDriverVersion, "nvmlSystemGetDriverVersion")
	s.DriverVersion = report.Text(version)
	missing.add("driver_version", err)
	d, err := l.find(gpu)
	if err != nil {
		missing.add("NVML", err)
		return
	}
	s.ClockSM = value(l, missing, "clock_sm", "ClockInfo", of(d.GetClockInfo, nvml.CLOCK_SM))
	s.ClockSMMax = value(l, missing, "clock_sm_max", "MaxClockInfo", of(d.GetMaxClockInfo, nvml.CLOCK_SM))
	s.ClockMemory = value(l, missing, "clock_memory", "ClockInfo", of(d.GetClockInfo, nvml.CLOCK_MEM))
	s.Temperature = value(l, missing, "temperature", "Temperature", of(d.GetTemperature, nvml.TEMPERATURE_GPU))
	s.Power = watts(value(l, missing, "power", "PowerUsage", d.GetPowerUsage))
	s.PowerLimit = watts(value(l, missing, "power_limit", "EnforcedPowerLimit", d.GetEnforcedPowerLimit))
	if bits := value(l, missing, "throttle", "CurrentClocksEventReasons", d.GetCurrentClocksEventReasons); bits != nil {
		s.Throttle = throttleNames(*bits)
	}
	s.PCIeGeneration = value(l, missing, "pcie_generation", "CurrPcieLinkGeneration", d.GetCurrPcieLinkGeneration)
	s.PCIeGenerationMax = value(l, missing, "pcie_generation_max", "MaxPcieLinkGeneration", d.GetMaxPcieLinkGeneration)
	s.PCIeWidth = value(l, missing, "pcie_width", "CurrPcieLinkWidth", d.GetCurrPcieLinkWidth)
	s.PCIeWidthMax = value(l, missing, "pcie_width_max", "MaxPcieLinkWidth", d.GetMaxPcieLinkWidth)
	ecc := value(l, missing, "ecc", "EccMode", func() (nvml.EnableState, nvml.Return) {
		current, _, r := d.GetEccMode()
		return current, r
	})
	if ecc != nil {
		on := *ecc == uint64(nvml.FEATURE_ENABLED)
		s.ECC = &on
	}
	s.Utilization = value(l, missing, "utilization", "UtilizationRates", func() (uint32, nvml.Return) {
		u, r := d.GetUtilizationRates()
		return u.Gpu, r
	})
	if all, err := l.Processes(d); err == nil {
		others := slices.DeleteFunc(all, func(p nvml.ProcessInfo) bool { return int(p.Pid) == os.Getpid() })
		n := uint64(len(others))
		s.Processes = &n
	} else {
		missing.add("other_processes", err)
	}
}

func watts(milli *uint64) *float64 {
	if milli == nil {
		return nil
	}
	w := float64(*milli) / 1000
	return &w
}

// nvlinks counts the NVLinks from a GPU that end at another. If none does, but the driver reaches the
// other by NVLink, all of them lead to switches, and through these to the other.
func (l nvmlLibrary) nvlinks(from, to nvml.Device) (int, error) {
	const pci, remote = "nvmlDeviceGetPciInfo", "nvmlDeviceGetNvLinkRemotePciInfo"
	there, err := nvmlcalls.Call(l.Library, to.GetPciInfo, pci, pci+"_v2", pci+"_v3")
	if err != nil {
		return 0, err
	}
	up, direct := 0, 0
	for link := range nvml.NVLINK_MAX_LINKS {
		state, err := nvmlcalls.Call(l.Library, func() (nvml.EnableState, nvml.Return) { return from.GetNvLinkState(link) }, "nvmlDeviceGetNvLinkState")
		switch {
		case errors.Is(err, nvml.ERROR_INVALID_ARGUMENT) || errors.Is(err, nvml.ERROR_NOT_SUPPORTED):
			// A GPU without NVLink has none.
		case err != nil:
			return 0, err
		case state == nvml.FEATURE_ENABLED: // where it ends may be unknown
			up++
			end, _ := nvmlcalls.Call(l.Library, func() (nvml.PciInfo, nvml.Return) { return from.GetNvLinkRemotePciInfo(link) }, remote, remote+"_v2")
			if end.Domain == there.Domain && end.Bus == there.Bus && end.Device == there.Device {
				direct++
			}
		}
	}
	if direct > 0 || up == 0 {
		return direct, nil
	}
	byLink := func() (nvml.GpuP2PStatus, nvml.Return) { return from.GetP2PStatus(to, nvml.P2P_CAPS_INDEX_NVLINK) }
	status, err := nvmlcalls.Call(l.Library, byLink, "nvmlDeviceGetP2PStatus")
	if err != nil || status != nvml.P2P_STATUS_OK {
		return 0, err
	}
	return up, nil
}

// levels are the words of nvidia-smi topo -m.
var levels = map[nvml.GpuTopologyLevel]string{
	nvml.TOPOLOGY_INTERNAL: "PSB", nvml.TOPOLOGY_SINGLE: "PIX", nvml.TOPOLOGY_MULTIPLE: "PXB",
	nvml.TOPOLOGY_HOSTBRIDGE: "PHB", nvml.TOPOLOGY_NODE: "NODE", nvml.TOPOLOGY_SYSTEM: "SYS",
}

// refusals are why there is no peer access.
var refusals = map[nvml.GpuP2PStatus]string{
	nvml.P2P_STATUS_CHIPSET_NOT_SUPPORTED:      "the chipset does not support it",
	nvml.P2P_STATUS_GPU_NOT_SUPPORTED:          "the GPU does not support it",
	nvml.P2P_STATUS_IOH_TOPOLOGY_NOT_SUPPORTED: "the I/O hubs between the GPUs do not support it",
	nvml.P2P_STATUS_DISABLED_BY_REGKEY:         "it is disabled by a setting of the driver",
	nvml.P2P_STATUS_NOT_SUPPORTED:              "it is not supported",
}

// path implements library. NVLinks come first: traffic that can takes them.
func (l nvmlLibrary) path(link *report.Link, from, to report.Device, missing *reasons) {
	a, err := l.find(from)
	b, err2 := l.find(to)
	if err := cmp.Or(err, err2); err != nil {
		missing.add("path", err)
		return
	}
	read := func() (nvml.GpuP2PStatus, nvml.Return) { return a.GetP2PStatus(b, nvml.P2P_CAPS_INDEX_READ) }
	status, err := nvmlcalls.Call(l.Library, read, "nvmlDeviceGetP2PStatus")
	if missing.add("refused", err); err == nil && status != nvml.P2P_STATUS_OK {
		link.Refused = report.Text(cmp.Or(refusals[status], "the driver does not say why"))
	}
	if from.PCI != "" && from.PCI == to.PCI { // two instances need no way between them
		link.Path = "same GPU"
		return
	}
	n, err := l.nvlinks(a, b)
	if missing.add("nvlinks", err); err == nil {
		link.NVLinks = &n
	}
	if n > 0 {
		link.Path = report.Text(fmt.Sprintf("NV%d", n))
		return
	}
	ask := func() (nvml.GpuTopologyLevel, nvml.Return) { return a.GetTopologyCommonAncestor(b) }
	level, err := nvmlcalls.Call(l.Library, ask, "nvmlDeviceGetTopologyCommonAncestor")
	if missing.add("path", err); err == nil {
		link.Path = report.Text(cmp.Or(levels[level], fmt.Sprint("level ", level)))
	}
}
