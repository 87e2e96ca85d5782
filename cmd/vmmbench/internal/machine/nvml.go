package machine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
)

// library is NVML, as far as it is used here. Every call may fail by itself: an old
// driver lacks functions, a MIG instance and a virtual GPU lack values.
type library interface {
	driver() (string, error)    // version of the kernel driver
	find(which id) (gpu, error) // the GPU or MIG instance
	close() error
}

// gpu is a GPU, or a MIG instance together with its GPU.
type gpu interface {
	value(query) (uint64, error)
	processes() ([]process, error)
	nvlinksTo(other gpu) (int, error)  // of those, how many lead there, also through switches
	level(other gpu) (string, error)   // of the PCIe path, as nvidia-smi topo -m has it
	refusal(other gpu) (string, error) // why there is no peer access; empty if there is
}

// process is one that uses a GPU. bytes is nil if the driver does not say.
type process struct {
	pid   uint32
	bytes *uint64
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

// query is a number that NVML knows of a GPU.
type query int

const (
	clockSM     query = iota // MHz
	clockSMMax               // MHz
	clockMemory              // MHz
	temperature              // degrees Celsius
	power                    // milliwatts
	powerLimit               // milliwatts
	throttle                 // bits, as in throttles
	pcieGeneration
	pcieGenerationMax
	pcieWidth
	pcieWidthMax
	ecc         // 1 is on
	utilization // percent
	queries
)

// queryNames are the names that the values have in the report, without units.
var queryNames = [queries]string{
	"clock_sm", "clock_sm_max", "clock_memory", "temperature", "power", "power_limit", "throttle",
	"pcie_generation", "pcie_generation_max", "pcie_width", "pcie_width_max", "ecc", "utilization",
}

func (q query) String() string { return queryNames[q] }

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
		defer lib.close() //nolint:errcheck // what was read is right all the same
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
		version, err := lib.driver()
		s.DriverVersion = report.Text(version)
		missing.add("driver_version", err)
		g, err := lib.find(which)
		if err != nil {
			missing.add("NVML", err)
		} else {
			fromNVML(s, g, &missing)
		}
	}
	s.Reason = missing.text()
	return s
}

// fromNVML fills in what NVML knows.
func fromNVML(s *report.DeviceState, g gpu, missing *reasons) {
	get := func(q query) *uint64 {
		n, err := g.value(q)
		if err != nil {
			missing.add(q.String(), err)
			return nil
		}
		return &n
	}
	watts := func(q query) *float64 {
		n := get(q)
		if n == nil {
			return nil
		}
		w := float64(*n) / 1000
		return &w
	}
	s.ClockSM, s.ClockSMMax, s.ClockMemory = get(clockSM), get(clockSMMax), get(clockMemory)
	s.Temperature, s.Power, s.PowerLimit = get(temperature), watts(power), watts(powerLimit)
	if bits := get(throttle); bits != nil {
		s.Throttle = throttleNames(*bits)
	}
	// The maxima of fromSystem are those of the GPU alone. NVML has those with its slot.
	for _, x := range []struct {
		query
		field **uint64
	}{
		{pcieGeneration, &s.PCIeGeneration}, {pcieGenerationMax, &s.PCIeGenerationMax},
		{pcieWidth, &s.PCIeWidth}, {pcieWidthMax, &s.PCIeWidthMax},
	} {
		if n, err := g.value(x.query); err == nil {
			*x.field = &n
		} else if *x.field == nil {
			missing.add(x.String(), err)
		}
	}
	if n := get(ecc); n != nil {
		on := *n == 1
		s.ECC = &on
	}
	s.Utilization = get(utilization)
	otherProcesses(s, g, missing)
}

// otherProcesses counts the processes on the GPU but for this one.
func otherProcesses(s *report.DeviceState, g gpu, missing *reasons) {
	all, err := g.processes()
	if err != nil {
		missing.add("other_processes", err)
		return
	}
	// Their memory is known only if that of each of them is.
	var count, bytes uint64
	known := true
	for _, p := range all {
		if int(p.pid) == os.Getpid() {
			continue
		}
		count++
		if p.bytes == nil {
			known = false
			continue
		}
		bytes += *p.bytes
	}
	s.Processes = &count
	if known {
		s.ProcessesMemory = &bytes
	} else {
		missing.add("other_processes_memory", errors.New("the driver does not give it for each process"))
	}
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
	for file, field := range map[string]**uint64{"current_link_width": &s.PCIeWidth, "max_link_width": &s.PCIeWidthMax} {
		text, _ := line(root, filepath.Join(dir, file))
		if n, err := strconv.ParseUint(text, 10, 64); err == nil && n > 0 && n <= 32 {
			*field = &n
		}
	}
	for file, field := range map[string]**uint64{"current_link_speed": &s.PCIeGeneration, "max_link_speed": &s.PCIeGenerationMax} {
		text, _ := line(root, filepath.Join(dir, file))
		speed, _, _ := strings.Cut(text, " ")
		if n, ok := pcieGenerations[speed]; ok {
			*field = &n
		}
	}
}

// pcieGenerations has the generation for each speed in GT/s.
var pcieGenerations = map[string]uint64{"2.5": 1, "5.0": 2, "8.0": 3, "16.0": 4, "32.0": 5, "64.0": 6}
