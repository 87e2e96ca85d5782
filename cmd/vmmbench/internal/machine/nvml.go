package machine

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
)

// library is NVML, as far as it is used here. Every call may fail by itself: an old
// driver lacks functions, a MIG instance and a virtual GPU lack values.
type library interface {
	state(s *report.DeviceState, of report.Device, missing *reasons) // fills in what NVML knows of a GPU
	path(l *report.Link, from, to report.Device, missing *reasons)   // fills in what connects two
	close()
}

// isGPU is false for memory of the host.
func isGPU(d report.Device) bool { return strings.HasPrefix(d.Open, "cuda:") }

// withLibrary calls f with NVML, or with why it is not there. Without a GPU among the devices it
// does neither.
func withLibrary(devices []report.Device, open func() (library, error), f func(lib library, absent error)) {
	if !slices.ContainsFunc(devices, isGPU) {
		return
	}
	lib, err := open()
	if err == nil {
		defer lib.close()
	}
	f(lib, err)
}

// AddPaths fills in what connects the GPUs of each link of the report, by NVML: Path and NVLinks.
func AddPaths(r *report.Report) { addPaths(r, openNVML) }

func addPaths(r *report.Report, open func() (library, error)) {
	byName := map[string]report.Device{}
	for _, d := range r.Devices {
		byName[d.Open] = d
	}
	withLibrary(r.Devices, open, func(lib library, absent error) {
		for i := range r.Topology {
			l, missing := &r.Topology[i], reasons{}
			if missing.add("path", absent); absent == nil {
				lib.path(l, byName[l.From], byName[l.To], &missing)
			}
			reason := strings.Trim(string(l.Reason+"; "+missing.text()), "; ")
			l.Reason = report.Text(reason)
		}
	})
}

// throttles are the bits of throttle, from the lowest on.
var throttles = []string{
	"idle", "applications clocks setting", "software power cap", "hardware slowdown", "sync boost",
	"software thermal slowdown", "hardware thermal slowdown", "hardware power brake", "display clock setting",
}

// deviceStates reads the state of each device, from NVML and from the files of the system. That
// of memory of the host is nil.
func deviceStates(root string, devices []report.Device, open func() (library, error)) []*report.DeviceState {
	list := make([]*report.DeviceState, len(devices))
	withLibrary(devices, open, func(lib library, absent error) {
		for i, d := range devices {
			if !isGPU(d) {
				continue
			}
			var missing reasons
			list[i] = &report.DeviceState{}
			fromSystem(list[i], root, string(d.PCI), &missing)
			if missing.add("NVML", absent); absent == nil {
				lib.state(list[i], d, &missing)
			}
			list[i].Reason = missing.text()
		}
	})
	return list
}

// throttleNames are the names of the bits that are set.
func throttleNames(bits uint64) []string {
	list := []string{}
	for i, name := range throttles {
		if bits&(1<<i) != 0 {
			list = append(list, name)
		}
	}
	if rest := bits >> len(throttles) << len(throttles); rest != 0 {
		list = append(list, fmt.Sprintf("unknown %#x", rest))
	}
	return list
}

// fromSystem fills in the NUMA node and the CPUs near a PCI device, from the files of the system.
func fromSystem(s *report.DeviceState, root, pci string, missing *reasons) {
	if pci == "" {
		missing.add("numa_node", errors.New("the device is on no PCI bus"))
		return
	}
	dir := filepath.Join("sys/bus/pci/devices", pci)
	text, err := line(root, filepath.Join(dir, "numa_node"))
	if node, bad := strconv.Atoi(text); bad == nil && node >= 0 {
		s.NUMANode = &node
	} else if err == nil {
		err = errors.New("the system ties the device to no node")
	}
	missing.add("numa_node", err)
	text, err = line(root, filepath.Join(dir, "local_cpulist"))
	s.CPUs = report.Text(text)
	missing.add("cpu_affinity", err)
}
