package report

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/cuvmm/cuvmm/cmd/internal/size"
)

// maxText is the width of the columns of values. Their table is wider than others: UUIDs and
// reasons are long.
const maxText = 72

// fieldTable has a row for each field of an object that is not null, by its name in JSON.
func fieldTable(object any) table.Writer {
	return NewTable([]string{"property", "value"}, fieldRows(object), maxText)
}

// fieldRows pairs the fields of objects by their names in JSON, in their order. What is null in
// all of them is left out.
func fieldRows(objects ...any) (rows [][]string) {
	at := map[string]int{}
	for i, object := range objects {
		text, err := json.Marshal(object)
		d := json.NewDecoder(bytes.NewReader(text))
		if t, e := d.Token(); err != nil || e != nil || t != json.Delim('{') {
			continue
		}
		for d.More() {
			key, err := d.Token()
			var value any
			if err != nil || d.Decode(&value) != nil {
				return rows
			}
			name := fmt.Sprint(key)
			text := fieldText(name, value)
			if text == "" {
				continue
			}
			if _, ok := at[name]; !ok {
				at[name] = len(rows)
				rows = append(rows, make([]string, 1+len(objects)))
				rows[at[name]][0] = strings.ReplaceAll(name, "_", " ")
			}
			rows[at[name]][1+i] = text
		}
	}
	return rows
}

// fieldText prints a field for people; null and objects are nothing.
func fieldText(name string, value any) string {
	switch v := value.(type) {
	case bool:
		return yesNo(&v)
	case string:
		return v
	case float64:
		if slices.Contains([]string{"memory", "free", "cache", "granularity", "granularity_recommended", "other_processes_memory"}, name) {
			return size.Approx(uint64(v))
		}
		return strings.TrimSuffix(strings.TrimRight(fmt.Sprintf("%.3f", v), "0"), ".")
	case []any:
		var list []string
		for _, x := range v {
			if text := fieldText("", x); text != "" {
				list = append(list, text)
			}
		}
		if name == "throttle" && len(v) == 0 {
			return "nothing"
		}
		return strings.Join(list, ", ")
	}
	return ""
}

// stateTable has the fields of a state when the run started and when it ended, all of them or only
// some. What is not known of either moment is left out.
func stateTable(start, end any, only ...string) table.Writer {
	return NewTable([]string{"what", "start", "end"}, without(fieldRows(start, end), func(row []string) bool {
		return len(only) > 0 && !slices.Contains(only, row[0])
	}), maxText)
}

// States are those of the machine and of its devices, with all that is known.
func States(r *Report) []Piece {
	return piecesOf(r, func(p *document, r *Report) {
		p.block("Machine", stateTable(r.Host.State, r.Host.StateEnd))
		for _, d := range r.Devices {
			p.block(d.Open, stateTable(d.State, d.StateEnd))
		}
	})
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

// briefState are the parts of a GPU's state that a run shows; --format json has all.
var briefState = []string{"clock sm mhz", "clock sm max mhz", "temperature c", "power w", "throttle", "pcie generation", "pcie width", "other processes"}

// topology is a matrix of what connects the devices that have links.
func topology(r *Report) table.Writer {
	links := map[[2]string]Link{}
	for _, l := range r.Topology {
		links[[2]string{l.From, l.To}] = l
	}
	linked := without(r.Devices, func(d Device) bool {
		return !slices.ContainsFunc(r.Topology, func(l Link) bool { return l.From == d.Open })
	})
	var names []string
	for _, d := range linked {
		names = append(names, d.Open)
	}
	header, rows := square(names, func(from, to string) string { return pathOf(links[[2]string{from, to}]) })
	for i, d := range linked {
		s := d.State
		if s == nil {
			s = &DeviceState{}
		}
		rows[i] = append(rows[i], cmp.Or(exact(s.NUMANode), "-"), cmp.Or(string(s.CPUs), "-"))
	}
	return NewTable(append(header, "NUMA node", "nearest CPUs"), rows, 0)
}

// topologyHeading explains the cells of topology, and why some have no access.
func topologyHeading(r *Report) string {
	heading := "Topology: is there peer access? Without NVML the path is not known"
	if slices.ContainsFunc(r.Topology, func(l Link) bool { return l.Path != "" }) {
		heading = "Topology: NV<n> is n NVLinks; PIX, PXB, PHB, NODE, SYS is PCIe; (in brackets) no peer access"
	}
	for _, l := range r.Topology {
		if why := string(l.Refused); !strings.Contains(heading, why) {
			heading += ": " + why
		}
	}
	return heading
}

// pathOf is what connects two devices: by NVML, else whether the CUDA driver has peer
// access. A path without it is in brackets.
func pathOf(l Link) string {
	if l.Path != "" && yesNo(l.Access) == "no" {
		return "(" + string(l.Path) + ")"
	}
	return cmp.Or(string(l.Path), yesNo(l.Access))
}

// ifKnown prints a value, or a dash if it is not known.
func ifKnown[T any](n *T, print func(T) string) string {
	if n == nil {
		return "-"
	}
	return print(*n)
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
