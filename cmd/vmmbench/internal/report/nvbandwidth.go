package report

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// nvTest is a case of nvbandwidth with its values, as nvbandwidth prints them. Memory that
// grows is a test of its own, whose name ends in _vmm.
type nvTest struct {
	name, status, reason string
	matrices             []nvMatrix
}

// nvMatrix has a row for the host, or one for each device. A value that is missing is nil.
type nvMatrix struct {
	key, title string
	rows       [][]*float64
	sum        float64
}

// text has the values as they are printed.
func (m nvMatrix) text(format byte, digits int) (rows [][]string) {
	for _, values := range m.rows {
		row := slices.Repeat([]string{"N/A"}, len(values))
		for i, v := range values {
			if v != nil {
				row[i] = strconv.FormatFloat(*v, format, digits, 64)
			}
		}
		rows = append(rows, row)
	}
	return rows
}

// nvTests are the cases of nvbandwidth that the report has.
func nvTests(r *Report) (list []nvTest) {
	ours := without(r.Cases, func(c Case) bool { return c.Axes.Of("test") == nil })
	name := func(c Case) string {
		if c.Axes.text(axisMem) == "vmm" {
			return c.Axes.text("test") + "_vmm"
		}
		return c.Axes.text("test")
	}
	for _, g := range GroupBy(ours, name) {
		t := nvTest{name: g.Key, status: "Passed", matrices: nvMatrices(r, g.Key, g.Of)}
		for _, c := range g.Of {
			if c.Status != Passed {
				t.status, t.reason = "Error", string(c.Reason)
			}
		}
		if !slices.ContainsFunc(g.Of, func(c Case) bool { return c.Status != Waived }) {
			t.status, t.matrices = "Waived", nil
		}
		list = append(list, t)
	}
	return list
}

// nvMatrices are the matrices of a test. One of two devices at once has three.
func nvMatrices(r *Report, name string, cases []Case) (list []nvMatrix) {
	way, parts := "", []func(*Stats) float64{func(s *Stats) float64 { return s.Value }}
	if strings.HasPrefix(name, "device_to_device_bidirectional") {
		way = "Read"
		if strings.Contains(name, "write") {
			way = "Write"
		}
		parts = []func(*Stats) float64{
			func(s *Stats) float64 { return s.Forward },
			func(s *Stats) float64 { return s.Reverse },
			func(s *Stats) float64 { return s.Forward + s.Reverse },
		}
	}
	at := func(axis string, c Case) int {
		return slices.IndexFunc(r.Devices, func(d Device) bool { return d.Open == c.Axes.text(axis) })
	}
	for i, part := range parts {
		m, suffix := nvMatrix{key: name}, ""
		if way != "" {
			suffix = []string{way + "1", way + "2", "Total"}[i]
			m.key += "_" + strings.ToLower(suffix)
		}
		m.title = nvTitle(strings.TrimSuffix(name, "_vmm"), suffix)
		for _, c := range cases {
			row, column, rows := 0, at("device", c), 1
			if c.Axes.Of(axisFrom) != nil {
				row, column, rows = at(axisFrom, c), at(axisTo, c), len(r.Devices)
			}
			if row < 0 || column < 0 {
				continue
			}
			for len(m.rows) < rows {
				m.rows = append(m.rows, make([]*float64, len(r.Devices)))
			}
			if c.Status == Passed && c.Stats != nil && (way == "" || c.Stats.Both != nil) {
				v := part(c.Stats)
				m.rows[row][column] = &v
				m.sum += v
			}
		}
		list = append(list, m)
	}
	return list
}

// nvTitle is what stands above a matrix.
func nvTitle(name, part string) string {
	engine := strings.ToUpper(name[max(0, len(name)-2):])
	has := func(s string) bool { return strings.Contains(name, s) }
	switch {
	case name == "device_local_copy":
		return "memcpy local GPU(column) bandwidth (GB/s)"
	case name == "host_device_latency_sm":
		return "memory latency SM CPU(row) <-> GPU(column) (ns)"
	case has("latency"):
		return "Device to Device Latency SM GPU(row) <-> GPU(column) (ns)"
	}
	rows, arrow := "GPU", "<-"
	if has("host") {
		rows = "CPU"
	}
	switch {
	case has("bidirectional"):
		arrow = "<->"
	case has("host_to"), has("device_memcpy_read"), has("all_to_one_read"), has("one_to_all_write"):
		arrow = "->"
	}
	return fmt.Sprintf("memcpy %s %s(row) %s GPU(column) %s", engine, rows, arrow, strings.TrimSpace(part+" bandwidth (GB/s)"))
}

// nvHost stands where nvbandwidth has the machine's name, which reports do not have.
const nvHost = "localhost"

// nvDevice describes a device as nvbandwidth does.
func nvDevice(d Device) string { return fmt.Sprintf("%s (%s)", d.Name, d.PCI) }

// writeNVBandwidth writes the cases of nvbandwidth as it prints them.
func writeNVBandwidth(w io.Writer, r *Report) error {
	var b strings.Builder
	fmt.Fprintf(&b, "nvbandwidth's cases by vmmbench, %s\n", r.Run.Version)
	if len(r.Devices) > 0 {
		fmt.Fprintf(&b, "\nDriver Version: %s\n", r.Devices[0].Driver)
	}
	b.WriteString("\n" + nvHost + "\n")
	for i, d := range r.Devices {
		fmt.Fprintf(&b, "Device %d: %s\n", i, nvDevice(d))
	}
	b.WriteByte('\n')
	for _, t := range nvTests(r) {
		fmt.Fprintf(&b, "Running %s.\n", t.name)
		for _, m := range t.matrices {
			fmt.Fprintf(&b, "%s\n  ", m.title)
			for i := range r.Devices {
				fmt.Fprintf(&b, "%10d", i)
			}
			b.WriteByte('\n')
			for i, row := range m.text('f', 2) {
				fmt.Fprintf(&b, "%2d", i)
				for _, cell := range row {
					fmt.Fprintf(&b, "%10s", cell)
				}
				b.WriteByte('\n')
			}
			fmt.Fprintf(&b, "\nSUM %s %.2f\n\n", m.key, m.sum)
		}
		if t.status != "Passed" {
			fmt.Fprintf(&b, "%s: %s\n\n", t.status, t.reason)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// writeNVBandwidthJSON writes them with the keys of its JSON, whose values are text.
func writeNVBandwidthJSON(w io.Writer, r *Report) error {
	devices, tests := []string{}, []map[string]any{}
	var driver Text
	for i, d := range r.Devices {
		driver = d.Driver
		devices = append(devices, fmt.Sprintf("%d: %s: (%s)", i, nvDevice(d), nvHost))
	}
	for _, t := range nvTests(r) {
		x := map[string]any{"name": t.name, "status": t.status}
		if t.reason != "" {
			x["error"] = t.reason
		}
		rows := [][]string{}
		for _, m := range t.matrices { // of three, the rows of all are there, and the sum of the last
			x["bandwidth_description"], x["sum"] = m.title, m.sum
			rows = append(rows, m.text('g', 6)...)
			x["bandwidth_matrix"] = rows
		}
		tests = append(tests, x)
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false) // of the arrows in its titles
	return e.Encode(map[string]any{"nvbandwidth": map[string]any{
		"CUDA Runtime Version": nil, // none is used
		"Driver Version":       driver, "GPU Device list": devices, "version": "vmmbench", "git_version": r.Run.Version, "testcases": tests,
	}})
}
