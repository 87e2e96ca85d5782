//go:build cgo && linux && !nonvml

package machine

import (
	"errors"
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// openNVML loads NVML where the loader finds it. The caller must close it.
func openNVML() (library, error) { return openLibrary(nvml.New()) }

// openLibrary loads NVML. A call of a function that the loaded library lacks would end
// the process, since go-nvml leaves such names to the loader. So each is looked up
// before it is called. nvmlInit, nvmlShutdown and nvmlErrorString are in every version.
func openLibrary(lib nvml.Interface) (library, error) {
	// go-nvml does not say why a library cannot be loaded.
	if r := lib.Init(); errors.Is(r, nvml.ERROR_LIBRARY_NOT_FOUND) {
		return nil, errors.New("NVML, libnvidia-ml.so.1, cannot be loaded")
	} else if r != nvml.SUCCESS {
		return nil, fmt.Errorf("NVML cannot be used: %w", r)
	}
	return nvmlLibrary{lib}, nil
}

// nvmlLibrary is NVML itself.
type nvmlLibrary struct{ nvml.Interface }

// call makes a call of NVML if the library has one of the functions named symbols.
func call[T any](l nvml.Interface, f func() (T, nvml.Return), symbols ...string) (result T, err error) {
	found := false
	for _, symbol := range symbols {
		found = found || l.Extensions().LookupSymbol(symbol) == nil
	}
	if !found {
		return result, errors.New("the driver is too old for this value")
	}
	result, r := f()
	if r != nvml.SUCCESS {
		return result, r
	}
	return result, nil
}

func (l nvmlLibrary) close() error {
	if r := l.Shutdown(); r != nvml.SUCCESS {
		return r
	}
	return nil
}

func (l nvmlLibrary) driver() (string, error) {
	return call(l, l.SystemGetDriverVersion, "nvmlSystemGetDriverVersion")
}

// find finds a GPU by its UUID, or else by its place on the PCI bus.
func (l nvmlLibrary) find(which id) (gpu, error) {
	byUUID := func() (nvml.Device, nvml.Return) { return l.DeviceGetHandleByUUID(which.uuid) }
	d, err := call(l, byUUID, "nvmlDeviceGetHandleByUUID")
	// A MIG instance is found by its UUID only. By PCI address its GPU is, which has most values.
	if err == nil && which.mig {
		parent, err := call(l, d.GetDeviceHandleFromMigDeviceHandle, "nvmlDeviceGetDeviceHandleFromMigDeviceHandle")
		return nvmlGPU{l, d, parent}, err
	}
	if err != nil && which.pci != "" {
		byPCI := func() (nvml.Device, nvml.Return) { return l.DeviceGetHandleByPciBusId(which.pci) }
		var second error
		d, second = call(l, byPCI, "nvmlDeviceGetHandleByPciBusId", "nvmlDeviceGetHandleByPciBusId_v2")
		if second == nil && which.mig {
			return nvmlGPU{l, nil, d}, nil
		}
		if second == nil {
			err = nil
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%s is not found: %w", which.uuid, err)
	}
	return nvmlGPU{l, d, d}, nil
}

// nvmlGPU is a GPU, or a MIG instance with its GPU. own is nil if only the GPU of an
// instance was found.
type nvmlGPU struct {
	lib    nvmlLibrary
	own    nvml.Device
	parent nvml.Device
}

var errNoInstance = errors.New("the MIG instance is not found")

// number makes a call that returns a number of any kind.
func number[T ~int | ~int32 | ~uint32 | ~uint64](g nvmlGPU, symbol string, f func() (T, nvml.Return)) (uint64, error) {
	n, err := call(g.lib, f, symbol)
	return uint64(n), err
}

func (g nvmlGPU) value(q query) (uint64, error) {
	d := g.parent
	clock := func(symbol string, f func(nvml.ClockType) (uint32, nvml.Return), of nvml.ClockType) (uint64, error) {
		return number(g, symbol, func() (uint32, nvml.Return) { return f(of) })
	}
	switch q {
	case clockSM:
		return clock("nvmlDeviceGetClockInfo", d.GetClockInfo, nvml.CLOCK_SM)
	case clockSMMax:
		return clock("nvmlDeviceGetMaxClockInfo", d.GetMaxClockInfo, nvml.CLOCK_SM)
	case clockMemory:
		return clock("nvmlDeviceGetClockInfo", d.GetClockInfo, nvml.CLOCK_MEM)
	case temperature:
		return number(g, "nvmlDeviceGetTemperature", func() (uint32, nvml.Return) { return d.GetTemperature(nvml.TEMPERATURE_GPU) })
	case power:
		return number(g, "nvmlDeviceGetPowerUsage", d.GetPowerUsage)
	case powerLimit:
		return number(g, "nvmlDeviceGetEnforcedPowerLimit", d.GetEnforcedPowerLimit)
	case throttle:
		// The second is the old name of the first.
		bits, err := number(g, "nvmlDeviceGetCurrentClocksEventReasons", d.GetCurrentClocksEventReasons)
		if err != nil {
			bits, err = number(g, "nvmlDeviceGetCurrentClocksThrottleReasons", d.GetCurrentClocksThrottleReasons)
		}
		return bits, err
	case pcieGeneration:
		return number(g, "nvmlDeviceGetCurrPcieLinkGeneration", d.GetCurrPcieLinkGeneration)
	case pcieGenerationMax:
		return number(g, "nvmlDeviceGetMaxPcieLinkGeneration", d.GetMaxPcieLinkGeneration)
	case pcieWidth:
		return number(g, "nvmlDeviceGetCurrPcieLinkWidth", d.GetCurrPcieLinkWidth)
	case pcieWidthMax:
		return number(g, "nvmlDeviceGetMaxPcieLinkWidth", d.GetMaxPcieLinkWidth)
	case ecc:
		return number(g, "nvmlDeviceGetEccMode", func() (nvml.EnableState, nvml.Return) {
			current, _, r := d.GetEccMode()
			return current, r
		})
	case utilization: // that of a MIG instance itself, which NVML may not have
		if g.own == nil {
			return 0, errNoInstance
		}
		u, err := call(g.lib, g.own.GetUtilizationRates, "nvmlDeviceGetUtilizationRates")
		return uint64(u.Gpu), err
	}
	return 0, fmt.Errorf("no query %d", q)
}

func (g nvmlGPU) processes() ([]process, error) {
	if g.own == nil {
		return nil, errNoInstance
	}
	const symbol = "nvmlDeviceGetComputeRunningProcesses"
	all, err := call(g.lib, g.own.GetComputeRunningProcesses, symbol, symbol+"_v2", symbol+"_v3")
	list := make([]process, len(all))
	for i, p := range all {
		list[i] = process{pid: p.Pid}
		if bytes := p.UsedGpuMemory; bytes != ^uint64(0) { // which stands for not available
			list[i].bytes = &bytes
		}
	}
	return list, err
}

// linksUp are the numbers of the NVLinks that are up. A GPU without NVLink has none.
func (g nvmlGPU) linksUp() (up []int, err error) {
	for link := range nvml.NVLINK_MAX_LINKS {
		state, err := call(g.lib, func() (nvml.EnableState, nvml.Return) { return g.parent.GetNvLinkState(link) }, "nvmlDeviceGetNvLinkState")
		switch {
		case errors.Is(err, nvml.ERROR_INVALID_ARGUMENT) || errors.Is(err, nvml.ERROR_NOT_SUPPORTED):
		case err != nil:
			return nil, err
		case state == nvml.FEATURE_ENABLED:
			up = append(up, link)
		}
	}
	return up, nil
}

// nvlinksTo counts the NVLinks that end at the other GPU. If none does, but the driver
// reaches it by NVLink, all links go through switches. Then as many are of use as the GPU
// with fewer of them has.
func (g nvmlGPU) nvlinksTo(other gpu) (int, error) {
	to := other.(nvmlGPU) //nolint:forcetypeassert // both are from this library
	up, err := g.linksUp()
	if err != nil || len(up) == 0 {
		return 0, err
	}
	const ask = "nvmlDeviceGetPciInfo"
	there, err := call(g.lib, to.parent.GetPciInfo, ask, ask+"_v2", ask+"_v3")
	if err != nil {
		return 0, err
	}
	direct := 0
	for _, link := range up {
		const ask = "nvmlDeviceGetNvLinkRemotePciInfo"
		end, err := call(g.lib, func() (nvml.PciInfo, nvml.Return) { return g.parent.GetNvLinkRemotePciInfo(link) }, ask, ask+"_v2")
		if err == nil && end.Domain == there.Domain && end.Bus == there.Bus && end.Device == there.Device {
			direct++
		}
	}
	if direct > 0 {
		return direct, nil
	}
	if status, err := g.status(to, nvml.P2P_CAPS_INDEX_NVLINK); err != nil || status != nvml.P2P_STATUS_OK {
		return 0, err
	}
	back, err := to.linksUp()
	return min(len(up), len(back)), err
}

func (g nvmlGPU) status(to nvmlGPU, of nvml.GpuP2PCapsIndex) (nvml.GpuP2PStatus, error) {
	return call(g.lib, func() (nvml.GpuP2PStatus, nvml.Return) { return g.parent.GetP2PStatus(to.parent, of) }, "nvmlDeviceGetP2PStatus")
}

// refusals are why there is no peer access.
var refusals = map[nvml.GpuP2PStatus]string{
	nvml.P2P_STATUS_CHIPSET_NOT_SUPPORTED:      "the chipset does not support it",
	nvml.P2P_STATUS_GPU_NOT_SUPPORTED:          "the GPU does not support it",
	nvml.P2P_STATUS_IOH_TOPOLOGY_NOT_SUPPORTED: "the I/O hubs between the GPUs do not support it",
	nvml.P2P_STATUS_DISABLED_BY_REGKEY:         "it is disabled by a setting of the driver",
	nvml.P2P_STATUS_NOT_SUPPORTED:              "it is not supported",
}

func (g nvmlGPU) refusal(other gpu) (string, error) {
	status, err := g.status(other.(nvmlGPU), nvml.P2P_CAPS_INDEX_READ) //nolint:forcetypeassert // both are from this library
	switch text, known := refusals[status]; {
	case err != nil || status == nvml.P2P_STATUS_OK:
		return "", err
	case known:
		return text, nil
	}
	return "the driver does not say why", nil
}

// levels are the words of nvidia-smi topo -m.
var levels = map[nvml.GpuTopologyLevel]string{
	nvml.TOPOLOGY_INTERNAL: "PSB", nvml.TOPOLOGY_SINGLE: "PIX", nvml.TOPOLOGY_MULTIPLE: "PXB",
	nvml.TOPOLOGY_HOSTBRIDGE: "PHB", nvml.TOPOLOGY_NODE: "NODE", nvml.TOPOLOGY_SYSTEM: "SYS",
}

func (g nvmlGPU) level(other gpu) (string, error) {
	to := other.(nvmlGPU) //nolint:forcetypeassert // both are from this library
	ask := func() (nvml.GpuTopologyLevel, nvml.Return) { return g.parent.GetTopologyCommonAncestor(to.parent) }
	level, err := call(g.lib, ask, "nvmlDeviceGetTopologyCommonAncestor")
	if err != nil {
		return "", err
	}
	if text, ok := levels[level]; ok {
		return text, nil
	}
	return "", fmt.Errorf("unknown level %d", level)
}
