package report

// HostState is what the machine was set to and doing at one moment. What could not be
// read is null, and Reason says why.
type HostState struct {
	Time      string    `json:"time"`                   // RFC 3339
	Load      []float64 `json:"load"`                   // average over 1, 5 and 15 minutes: tasks that run or wait for a disk
	Governors []string  `json:"governors"`              // of the CPUs' frequency, each once; anything but performance lets clocks change
	HugePages Text      `json:"transparent_huge_pages"` // always, madvise or never
	Reason    Text      `json:"reason"`
}

// DeviceState is what a GPU was set to and doing at one moment, by NVML and by the
// system. A value that could not be read is null, and Reason says why. A MIG instance
// has few of these values.
type DeviceState struct {
	DriverVersion     Text     `json:"driver_version"`      // of NVIDIA's kernel driver
	ClockSM           *uint64  `json:"clock_sm_mhz"`        // of the multiprocessors
	ClockSMMax        *uint64  `json:"clock_sm_max_mhz"`    // what the GPU could run at
	ClockMemory       *uint64  `json:"clock_memory_mhz"`    // of the memory
	Temperature       *uint64  `json:"temperature_c"`       // of the GPU, degrees Celsius
	Power             *float64 `json:"power_w"`             // that the board draws
	PowerLimit        *float64 `json:"power_limit_w"`       // that is enforced
	Throttle          []string `json:"throttle"`            // why clocks are held down; empty: they are not. idle means that there was no work
	PCIeGeneration    *uint64  `json:"pcie_generation"`     // of the link as it is; an idle GPU may lower it
	PCIeGenerationMax *uint64  `json:"pcie_generation_max"` // that GPU and board can do
	PCIeWidth         *uint64  `json:"pcie_width"`          // lanes
	PCIeWidthMax      *uint64  `json:"pcie_width_max"`
	NUMANode          *int     `json:"numa_node"`    // of the host, nearest to the device
	CPUs              Text     `json:"cpu_affinity"` // the CPUs nearest to the device, as 0-15,32-47
	ECC               *bool    `json:"ecc"`
	Utilization       *uint64  `json:"utilization"`     // percent of the last sample period in which a kernel ran
	Processes         *uint64  `json:"other_processes"` // with a context on the GPU, this one left out; in a container the driver may hide some
	Reason            Text     `json:"reason"`
}

// Link is the way from one device to the memory of another. Path and NVLinks are
// by NVML, and null without it. The rest is by the CUDA driver.
type Link struct {
	From    string `json:"from"`
	To      string `json:"to"`
	Path    Text   `json:"path"`    // as nvidia-smi topo -m: NV<n> for n NVLinks; PSB, PIX, PXB, PHB, NODE, SYS for PCIe, in rising distance
	NVLinks *int   `json:"nvlinks"` // of the path; 0 if it has none
	Kind    Text   `json:"kind"`    // nvlink, pcie, host, none or lost, as vmm.Topology says
	Access  *bool  `json:"access"`  // From can be granted memory of To
	Rank    *int   `json:"rank"`    // relative performance, 0 the best
	Atomics *bool  `json:"atomics"` // native atomic operations over the link
	Refused Text   `json:"refused"` // by NVML, why the driver allows no peer access; null if it does
	Reason  Text   `json:"reason"`  // why something above is null
}
