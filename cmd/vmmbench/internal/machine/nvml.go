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
	state(s *report.DeviceState, which id, missing *reasons) // fills in what NVML knows of a GPU
	path(l *report.Link, from, to id, missing *reasons)      // fills in what connects two
	close()
}

// id names a GPU for NVML. A MIG instance has a UUID of its own.
type id struct {
	uuid, pci string
	mig       bool
}

// idOf is the id of a device of the report; ok is false for memory of the host.
func idOf(d report.Device) (which id, ok bool) {
	if d.MIG != "" {
		return id{string(d.MIG), string(d.PCI), true}, true
	}
	return id{"GPU-" + string(d.UUID), string(d.PCI), false}, strings.HasPrefix(d.Open, "cuda:")
}

// AddPaths fills in what connects the devices of each link, by NVML: Path, NVLinks and
// Refused. Links between memory of the host have none of these.
func AddPaths(devices []report.Device, links []*report.Link) {
	addPaths(devices, links, openNVML)
}

func addPaths(devices []report.Device, links []*report.Link, open func() (library, error)) {
	ids := map[string]id{}
	for _, d := range devices {
		if which, ok := idOf(d); ok {
			ids[d.Open] = which
		}
	}
	if len(ids) == 0 {
		return
	}
	lib, absent := open()
	if absent == nil {
		defer lib.close()
	}
	for _, l := range links {
		from, ok := ids[l.From]
		to, too := ids[l.To]
		if !ok || !too {
			continue
		}
		var missing reasons
		if absent != nil {
			missing.add("path", absent)
		} else {
			lib.path(l, from, to, &missing)
		}
		if text := missing.text(); l.Reason == "" {
			l.Reason = text
		} else if text != "" {
			l.Reason += "; " + text
		}
	}
}

// throttles are the bits of throttle, from the lowest on.
var throttles = []string{
	"idle", "applications clocks setting", "software power cap", "hardware slowdown", "sync boost",
	"software thermal slowdown", "hardware thermal slowdown", "hardware power brake", "display clock setting",
}

// deviceStates reads the state of each device; that of memory of the host is nil. NVML
// is loaded only if there is a GPU.
func deviceStates(root string, devices []report.Device, open func() (library, error)) []*report.DeviceState {
	list := make([]*report.DeviceState, len(devices))
	isGPU := func(d report.Device) bool { _, ok := idOf(d); return ok }
	if !slices.ContainsFunc(devices, isGPU) {
		return list
	}
	lib, err := open()
	if err == nil {
		defer lib.close()
	}
	for i, d := range devices {
		if which, ok := idOf(d); ok {
			list[i] = deviceState(root, which, lib, err)
		}
	}
	return list
}

// deviceState reads the state of a GPU: from NVML, unless absent says why it is not
// there, and from the files of the system.
func deviceState(root string, which id, lib library, absent error) *report.DeviceState {
	s := &report.DeviceState{}
	var missing reasons
	fromSystem(s, root, which.pci, &missing)
	if absent != nil {
		missing.add("NVML", absent)
	} else {
		lib.state(s, which, &missing)
	}
	s.Reason = missing.text()
	return s
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

// fromSystem fills in what the files of the system know of a PCI device.
func fromSystem(s *report.DeviceState, root, pci string, missing *reasons) {
	dir := filepath.Join("sys/bus/pci/devices", pci)
	read := func(name, file string) string {
		text, err := line(root, filepath.Join(dir, file))
		missing.add(name, err)
		return text
	}
	if pci == "" {
		missing.add("numa_node", errors.New("the device is on no PCI bus"))
		return
	}
	if node, err := strconv.Atoi(read("numa_node", "numa_node")); err == nil {
		if node >= 0 {
			s.NUMANode = &node
		} else {
			missing.add("numa_node", errors.New("the system ties the device to no node"))
		}
	}
	s.CPUs = report.Text(read("cpu_affinity", "local_cpulist"))
	// What is unknown of the link is 0, 63, 255 or a text.
	for file, field := range map[string]**uint64{
		"current_link_width": &s.PCIeWidth, "max_link_width": &s.PCIeWidthMax,
		"current_link_speed": &s.PCIeGeneration, "max_link_speed": &s.PCIeGenerationMax,
	} {
		text, _ := line(root, filepath.Join(dir, file))
		text, _, speed := strings.Cut(text, " ")
		n, err := strconv.ParseUint(text, 10, 64)
		if speed {
			n, err = pcieGenerations[text], nil
		}
		if err == nil && n > 0 && n <= 32 {
			*field = &n
		}
	}
}

// pcieGenerations has the generation for each speed in GT/s.
var pcieGenerations = map[string]uint64{"2.5": 1, "5.0": 2, "8.0": 3, "16.0": 4, "32.0": 5, "64.0": 6}
