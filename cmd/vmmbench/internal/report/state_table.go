package report

import (
	"fmt"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	termtext "github.com/jedib0t/go-pretty/v6/text"

	"github.com/cuvmm/cuvmm/cmd/internal/size"
)

// maxText is the width of the column of values of a device. Their table is wider than
// others: UUIDs and reasons are long.
const maxText = 72

// deviceBlock has a row for each value of a device. What is null is left out, but for
// the reasons.
func deviceBlock(d Device) table.Writer {
	t := table.NewWriter()
	t.AppendHeader(table.Row{"property", "value"})
	t.SetColumnConfigs([]table.ColumnConfig{{Number: 2, WidthMax: maxText, WidthMaxEnforcer: termtext.WrapSoft}})
	row := func(name, value string) {
		if value != "" {
			t.AppendRow(table.Row{name, value})
		}
	}
	row("name", d.Name)
	row("driver", string(d.Driver))
	row("architecture", string(d.Arch))
	row("memory", join(size.Approx(d.Memory), value(d.Free, "%s free", size.Approx)))
	row("granularity", join(value(d.Granularity, "%s", size.Format), value(d.Recommended, "%s recommended", size.Format)))
	row("largest cache", value(d.Cache, "%s", size.Format))
	row("unified addressing", yesNo(&d.Unified))
	row("compute mode", string(d.Compute))
	row("pci", string(d.PCI))
	row("uuid", string(d.UUID))
	row("mig", string(d.MIG))
	row("peers", strings.Join(d.Peers, ", "))
	row("not known", string(d.Reason))
	if s := d.State; s != nil {
		stateRows(s, row)
	}
	return t
}

// stateRows calls row for each value of a GPU's state.
func stateRows(s *DeviceState, row func(name, value string)) {
	row("driver version", string(s.DriverVersion))
	row("clock of the SMs", ofMax(s.ClockSM, s.ClockSMMax, "MHz"))
	row("clock of the memory", ofMax(s.ClockMemory, s.ClockMemoryMax, "MHz"))
	row("held down by", heldDown(s))
	row("temperature", value(s.Temperature, "%v °C", plain))
	row("power", ofMax(s.Power, s.PowerLimit, "W"))
	row("PCIe generation", ofMax(s.PCIeGeneration, s.PCIeGenerationMax, ""))
	row("PCIe lanes", ofMax(s.PCIeWidth, s.PCIeWidthMax, ""))
	row("NVLinks that are up", value(s.NVLinks, "%v", plain))
	row("NVLink to the CPU", yesNo(s.C2C))
	row("NUMA node", value(s.NUMANode, "%v", plain))
	row("nearest CPUs", string(s.CPUs))
	row("persistence mode", yesNo(s.Persistence))
	row("ECC", yesNo(s.ECC))
	row("utilization", join(value(s.Utilization, "%v %% compute", plain), value(s.UtilizationMemory, "%v %% memory", plain)))
	row("other processes", others(s))
	row("state not known", string(s.Reason))
}

// hostStates has a row for the start of the run and one for its end.
func hostStates(r *Report) table.Writer {
	t := table.NewWriter()
	t.AppendHeader(table.Row{"when", "load", "governors", "huge pages", "smt", "nodes", "runs on", "memory of", "limit"})
	for _, at := range []struct {
		when string
		s    *HostState
	}{{"start", r.Host.State}, {"end", r.Host.StateEnd}} {
		if s := at.s; s != nil {
			t.AppendRow(table.Row{
				at.when, list(s.Load), list(s.Governors), orDash(string(s.HugePages)), orDash(yesNo(s.SMT)),
				list(s.NUMANodes), list(s.NUMARun), list(s.NUMAMemory), bytesOf(s.MemoryLimit),
			})
		}
	}
	return t
}

// hostState says in words what may have slowed a run on the host.
func hostState(r *Report) string {
	from, to := r.Host.State, r.Host.StateEnd
	if from == nil || to == nil || len(from.Load) == 0 || len(to.Load) == 0 {
		return ""
	}
	text := fmt.Sprintf("State of the host: load %.2g before and %.2g after the run, on %d cpus", from.Load[0], to.Load[0], r.Host.CPUs)
	if len(from.Governors) > 0 {
		text += "; frequency by " + strings.Join(from.Governors, ", ")
	}
	if from.HugePages != "" {
		text += "; transparent huge pages " + string(from.HugePages)
	}
	return text + "."
}

// deviceStates has two rows for each GPU of a run that measured: the start and the end.
func deviceStates(r *Report) table.Writer {
	t := table.NewWriter()
	t.AppendHeader(table.Row{"device", "when", "SM MHz", "°C", "W", "PCIe", "others", "held down by"})
	t.SetColumnConfigs([]table.ColumnConfig{{Number: 8, WidthMax: 26, WidthMaxEnforcer: termtext.WrapSoft}})
	for _, d := range r.Devices {
		for _, at := range []struct {
			when string
			s    *DeviceState
		}{{"start", d.State}, {"end", d.StateEnd}} {
			if s := at.s; s != nil {
				pcie := join(value(s.PCIeGeneration, "gen %v", plain), value(s.PCIeWidth, "x%v", plain))
				t.AppendRow(table.Row{
					d.Open, at.when, orDash(ofMax(s.ClockSM, s.ClockSMMax, "")), orDash(value(s.Temperature, "%v", plain)),
					orDash(ofMax(s.Power, s.PowerLimit, "")), orDash(pcie), orDash(others(s)), orDash(heldDown(s)),
				})
			}
		}
	}
	return t
}

// topology is a matrix of what connects the devices.
func topology(r *Report) table.Writer {
	t := table.NewWriter()
	if len(r.Topology) == 0 {
		return t
	}
	// Only devices with links are in the matrix, in their order.
	header := table.Row{"from \\ to"}
	var names []string
	for _, d := range r.Devices {
		linked := slices.ContainsFunc(r.Topology, func(l Link) bool { return l.From == d.Open })
		if linked {
			header, names = append(header, d.Open), append(names, d.Open)
		}
	}
	t.AppendHeader(append(header, "NUMA node", "nearest CPUs"))
	for _, d := range r.Devices {
		if !slices.Contains(names, d.Open) {
			continue
		}
		row := table.Row{d.Open}
		for _, to := range names {
			at := slices.IndexFunc(r.Topology, func(l Link) bool { return l.From == d.Open && l.To == to })
			if at < 0 {
				row = append(row, "-")
				continue
			}
			row = append(row, pathOf(r.Topology[at]))
		}
		node, cpus := "-", "-"
		if d.State != nil {
			node, cpus = orDash(value(d.State.NUMANode, "%v", plain)), orDash(string(d.State.CPUs))
		}
		t.AppendRow(append(row, node, cpus))
	}
	return t
}

// topologyHeading explains the cells of topology.
func topologyHeading(r *Report) string {
	if slices.ContainsFunc(r.Topology, func(l Link) bool { return l.Path != "" }) {
		return "Topology: NV<n> is n NVLinks; PIX, PXB, PHB, NODE, SYS is PCIe; (in brackets) no peer access"
	}
	return "Topology: is there peer access? Without NVML the path is not known"
}

// pathOf is what connects two devices: by NVML, else whether the CUDA driver has peer
// access. A path without it is in brackets.
func pathOf(l Link) string {
	if l.Path == "" {
		return orDash(yesNo(l.Access))
	}
	if l.Access != nil && !*l.Access {
		return "(" + string(l.Path) + ")"
	}
	return string(l.Path)
}

// plan is what EnablePeers would do for each pair.
func plan(r *Report) table.Writer {
	t := table.NewWriter()
	t.AppendHeader(table.Row{"from", "to", "path", "access", "atomics", "rank", "now", "what would be done"})
	t.SetColumnConfigs([]table.ColumnConfig{{Number: 8, WidthMax: 36, WidthMaxEnforcer: termtext.WrapSoft}})
	for _, p := range r.Plan {
		path := p.Path
		if path == "" {
			path = p.Kind
		}
		would := "nothing: " + string(p.Why)
		if p.Can {
			would = fmt.Sprintf("%s -> %s", p.Now, p.Then)
		}
		t.AppendRow(table.Row{
			p.From, p.To, orDash(string(path)), orDash(yesNo(p.Access)), orDash(yesNo(p.Atomics)), orDash(value(p.Rank, "%v", plain)), orDash(string(p.Now)), would,
		})
	}
	return t
}

// heldDown is why the clocks are held down, empty if that is not known.
func heldDown(s *DeviceState) string {
	switch {
	case s.Throttle == nil:
		return ""
	case len(s.Throttle) == 0:
		return "nothing"
	}
	return strings.Join(s.Throttle, ", ")
}

func others(s *DeviceState) string {
	return join(value(s.Processes, "%v", plain), value(s.ProcessesMemory, "%s", size.Approx))
}

func plain[T any](n T) string {
	if x, ok := any(n).(float64); ok {
		return digits(x, 4)
	}
	return fmt.Sprint(n)
}

// value prints a value, or nothing if it is not known.
func value[T any](n *T, format string, print func(T) string) string {
	if n == nil {
		return ""
	}
	return fmt.Sprintf(format, print(*n))
}

// ofMax prints a value and its maximum.
func ofMax[T any](n, most *T, unit string) string {
	text := value(n, "%s", plain)
	if max := value(most, "%s", plain); text != "" && max != "" {
		text += " of " + max
	}
	if text == "" || unit == "" {
		return text
	}
	return text + " " + unit
}

func yesNo(b *bool) string {
	switch {
	case b == nil:
		return ""
	case *b:
		return "yes"
	}
	return "no"
}

// join joins what is known.
func join(texts ...string) string {
	return strings.Join(slices.DeleteFunc(texts, func(s string) bool { return s == "" }), ", ")
}

func list[T any](all []T) string {
	texts := make([]string, len(all))
	for i, x := range all {
		texts[i] = fmt.Sprint(x)
	}
	return orDash(strings.Join(texts, " "))
}

// orDash returns the text, or a dash if there is none.
func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}
