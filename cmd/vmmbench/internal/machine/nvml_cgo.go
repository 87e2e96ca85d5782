//go:build cgo && linux && !nonvml

package machine

import (
	"cmp"
	"errors"
	"fmt"
	"os"

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
func (l nvmlLibrary) find(d report.Device) (nvmlGPU, error) {
	uuid, pci := "GPU-"+string(d.UUID), string(d.PCI)
	if d.MIG != "" {
		uuid, pci = string(d.MIG), ""
	}
	g, err := l.Find(uuid, pci, false)
	return nvmlGPU{g.Own, l}, err
}

// nvmlGPU is a GPU, or a MIG instance, of which NVML lacks most values.
type nvmlGPU struct {
	nvml.Device
	lib nvmlLibrary
}

// number is a call that returns a number of any kind.
func number[T ~int | ~int32 | ~uint32](f func() (T, nvml.Return)) func() (uint64, nvml.Return) {
	return func() (uint64, nvml.Return) {
		n, r := f()
		return uint64(n), r
	}
}

// numberOf is a call with an argument.
func numberOf[A any](f func(A) (uint32, nvml.Return), a A) func() (uint64, nvml.Return) {
	return number(func() (uint32, nvml.Return) { return f(a) })
}

// state implements library.
func (l nvmlLibrary) state(s *report.DeviceState, of report.Device, missing *reasons) {
	version, err := nvmlcalls.Call(l.Library, l.SystemGetDriverVersion, "nvmlSystemGetDriverVersion")
	s.DriverVersion = report.Text(version)
	missing.add("driver_version", err)
	d, err := l.find(of)
	if err != nil {
		missing.add("NVML", err)
		return
	}
	get := func(name string, field **uint64, symbol string, f func() (uint64, nvml.Return)) {
		if n, err := nvmlcalls.Call(l.Library, f, "nvmlDeviceGet"+symbol); err == nil {
			*field = &n
		} else {
			missing.add(name, err)
		}
	}
	var power, powerLimit, throttle, ecc *uint64
	get("clock_sm", &s.ClockSM, "ClockInfo", numberOf(d.GetClockInfo, nvml.CLOCK_SM))
	get("clock_sm_max", &s.ClockSMMax, "MaxClockInfo", numberOf(d.GetMaxClockInfo, nvml.CLOCK_SM))
	get("clock_memory", &s.ClockMemory, "ClockInfo", numberOf(d.GetClockInfo, nvml.CLOCK_MEM))
	get("temperature", &s.Temperature, "Temperature", numberOf(d.GetTemperature, nvml.TEMPERATURE_GPU))
	get("power", &power, "PowerUsage", number(d.GetPowerUsage))
	get("power_limit", &powerLimit, "EnforcedPowerLimit", number(d.GetEnforcedPowerLimit))
	get("throttle", &throttle, "CurrentClocksEventReasons", d.GetCurrentClocksEventReasons)
	get("pcie_generation", &s.PCIeGeneration, "CurrPcieLinkGeneration", number(d.GetCurrPcieLinkGeneration))
	get("pcie_generation_max", &s.PCIeGenerationMax, "MaxPcieLinkGeneration", number(d.GetMaxPcieLinkGeneration))
	get("pcie_width", &s.PCIeWidth, "CurrPcieLinkWidth", number(d.GetCurrPcieLinkWidth))
	get("pcie_width_max", &s.PCIeWidthMax, "MaxPcieLinkWidth", number(d.GetMaxPcieLinkWidth))
	get("ecc", &ecc, "EccMode", number(func() (nvml.EnableState, nvml.Return) {
		current, _, r := d.GetEccMode()
		return current, r
	}))
	get("utilization", &s.Utilization, "UtilizationRates", number(func() (uint32, nvml.Return) {
		u, r := d.GetUtilizationRates()
		return u.Gpu, r
	}))
	s.Power, s.PowerLimit = watts(power), watts(powerLimit)
	if throttle != nil {
		s.Throttle = throttleNames(*throttle)
	}
	if ecc != nil {
		on := *ecc == uint64(nvml.FEATURE_ENABLED)
		s.ECC = &on
	}
	d.processes(s, missing)
}

// processes fills in what the other processes on a GPU hold.
func (g nvmlGPU) processes(s *report.DeviceState, missing *reasons) {
	all, err := g.lib.Processes(g.Device)
	if err != nil {
		missing.add("other_processes", err)
		return
	}
	var count, bytes uint64
	known := true
	for _, p := range all {
		if int(p.Pid) != os.Getpid() {
			count++
			bytes += p.UsedGpuMemory
			known = known && p.UsedGpuMemory != ^uint64(0) // which stands for not available
		}
	}
	s.Processes = &count
	if known {
		s.ProcessesMemory = &bytes
	} else {
		missing.add("other_processes_memory", errors.New("the driver does not give it for each process"))
	}
}

func watts(milli *uint64) *float64 {
	if milli == nil {
		return nil
	}
	w := float64(*milli) / 1000
	return &w
}

// links are where the NVLinks end that are up. A GPU without NVLink has none.
func (g nvmlGPU) links() (ends []nvml.PciInfo, err error) {
	const remote = "nvmlDeviceGetNvLinkRemotePciInfo"
	for link := range nvml.NVLINK_MAX_LINKS {
		state, err := nvmlcalls.Call(g.lib.Library, func() (nvml.EnableState, nvml.Return) { return g.GetNvLinkState(link) }, "nvmlDeviceGetNvLinkState")
		switch {
		case errors.Is(err, nvml.ERROR_INVALID_ARGUMENT) || errors.Is(err, nvml.ERROR_NOT_SUPPORTED):
		case err != nil:
			return nil, err
		case state == nvml.FEATURE_ENABLED: // where it ends may be unknown
			end, _ := nvmlcalls.Call(g.lib.Library, func() (nvml.PciInfo, nvml.Return) { return g.GetNvLinkRemotePciInfo(link) }, remote, remote+"_v2")
			ends = append(ends, end)
		}
	}
	return ends, nil
}

// nvlinksTo counts the NVLinks that end at the other GPU. If none does, but the driver
// reaches it by NVLink, all links go through switches. Then as many are of use as the GPU
// with fewer of them has.
func (g nvmlGPU) nvlinksTo(to nvmlGPU) (direct int, err error) {
	ends, err := g.links()
	if err != nil || len(ends) == 0 {
		return 0, err
	}
	const ask = "nvmlDeviceGetPciInfo"
	there, err := nvmlcalls.Call(g.lib.Library, to.GetPciInfo, ask, ask+"_v2", ask+"_v3")
	if err != nil {
		return 0, err
	}
	for _, end := range ends {
		if end.Domain == there.Domain && end.Bus == there.Bus && end.Device == there.Device {
			direct++
		}
	}
	if direct > 0 {
		return direct, nil
	}
	if status, err := g.status(to, nvml.P2P_CAPS_INDEX_NVLINK); err != nil || status != nvml.P2P_STATUS_OK {
		return 0, err
	}
	back, err := to.links()
	return min(len(ends), len(back)), err
}

func (g nvmlGPU) status(to nvmlGPU, of nvml.GpuP2PCapsIndex) (nvml.GpuP2PStatus, error) {
	return nvmlcalls.Call(g.lib.Library, func() (nvml.GpuP2PStatus, nvml.Return) { return g.GetP2PStatus(to.Device, of) }, "nvmlDeviceGetP2PStatus")
}

// refusals are why there is no peer access.
var refusals = map[nvml.GpuP2PStatus]string{
	nvml.P2P_STATUS_CHIPSET_NOT_SUPPORTED:      "the chipset does not support it",
	nvml.P2P_STATUS_GPU_NOT_SUPPORTED:          "the GPU does not support it",
	nvml.P2P_STATUS_IOH_TOPOLOGY_NOT_SUPPORTED: "the I/O hubs between the GPUs do not support it",
	nvml.P2P_STATUS_DISABLED_BY_REGKEY:         "it is disabled by a setting of the driver",
	nvml.P2P_STATUS_NOT_SUPPORTED:              "it is not supported",
}

// levels are the words of nvidia-smi topo -m.
var levels = map[nvml.GpuTopologyLevel]string{
	nvml.TOPOLOGY_INTERNAL: "PSB", nvml.TOPOLOGY_SINGLE: "PIX", nvml.TOPOLOGY_MULTIPLE: "PXB",
	nvml.TOPOLOGY_HOSTBRIDGE: "PHB", nvml.TOPOLOGY_NODE: "NODE", nvml.TOPOLOGY_SYSTEM: "SYS",
}

// path implements library.
func (l nvmlLibrary) path(link *report.Link, from, to report.Device, missing *reasons) {
	a, err := l.find(from)
	b, err2 := l.find(to)
	if err := cmp.Or(err, err2); err != nil {
		missing.add("path", err)
		return
	}
	switch status, err := a.status(b, nvml.P2P_CAPS_INDEX_READ); {
	case err != nil:
		missing.add("refused", err)
	case status != nvml.P2P_STATUS_OK:
		link.Refused = report.Text(cmp.Or(refusals[status], "the driver does not say why"))
	}
	// Two instances of one GPU need no way between them.
	if from.PCI != "" && from.PCI == to.PCI {
		link.Path = "same GPU"
		return
	}
	// NVLinks come first: traffic that can takes them.
	n, err := a.nvlinksTo(b)
	if err == nil {
		link.NVLinks = &n
		if n > 0 {
			link.Path = report.Text(fmt.Sprintf("NV%d", n))
			return
		}
	}
	missing.add("nvlinks", err)
	ask := func() (nvml.GpuTopologyLevel, nvml.Return) { return a.GetTopologyCommonAncestor(b.Device) }
	level, err := nvmlcalls.Call(l.Library, ask, "nvmlDeviceGetTopologyCommonAncestor")
	if link.Path = report.Text(levels[level]); err != nil {
		link.Path = ""
	} else if link.Path == "" {
		err = fmt.Errorf("unknown level %d", level)
	}
	missing.add("path", err)
}
