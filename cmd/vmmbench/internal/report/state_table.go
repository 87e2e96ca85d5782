package report

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	termtext "github.com/jedib0t/go-pretty/v6/text"

	"github.com/cuvmm/cuvmm/cmd/internal/size"
)

// maxText is the width of the columns of values. Their table is wider than others: UUIDs and
// reasons are long.
const maxText = 72

// fieldTable has a row for each field of an object that is not null, by its name in JSON.
func fieldTable(object any) table.Writer {
	return rowsTable([]string{"property", "value"}, fieldRows(object))
}

func rowsTable(header []string, rows [][]string) table.Writer {
	t := table.NewWriter()
	line := func(cells []string) (row table.Row) {
		for _, cell := range cells {
			row = append(row, cell)
		}
		return row
	}
	t.AppendHeader(line(header))
	for _, row := range rows {
		t.AppendRow(line(row))
	}
	var columns []table.ColumnConfig
	for i := 1; i < len(header); i++ {
		columns = append(columns, table.ColumnConfig{Number: i + 1, WidthMax: maxText / (len(header) - 1), WidthMaxEnforcer: termtext.WrapSoft})
	}
	t.SetColumnConfigs(columns)
	return t
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

// State is what a machine or a device was set to and doing. Each row has what it is, and its
// value when the run started and when it ended.
type State struct {
	Name string
	Rows [][]string
}

// States are those of the machine and of its devices. What is not known of either moment is left
// out.
func States(r *Report) []State {
	list := []State{{"Machine", fieldRows(r.Host.State, r.Host.StateEnd)}}
	for _, d := range r.Devices {
		list = append(list, State{d.Open, fieldRows(d.State, d.StateEnd)})
	}
	return slices.DeleteFunc(list, func(s State) bool { return len(s.Rows) == 0 })
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

// brief are the parts of a GPU's state that a run shows; --format json has all.
var brief = []string{"clock sm mhz", "clock sm max mhz", "temperature c", "power w", "throttle", "pcie generation", "pcie width", "other processes"}

// deviceState is what may have slowed a run on a GPU.
func deviceState(d Device) table.Writer {
	return rowsTable([]string{"what", "start", "end"}, slices.DeleteFunc(fieldRows(d.State, d.StateEnd), func(row []string) bool {
		return !slices.Contains(brief, row[0])
	}))
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
		if path == "none" {
			path = "no path"
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

func yesNo(b *bool) string {
	switch {
	case b == nil:
		return ""
	case *b:
		return "yes"
	}
	return "no"
}

// orDash returns the text, or a dash if there is none.
func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}
