package report

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
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

// nvTests are the cases of nvbandwidth that the report has.
func nvTests(r *Report) []nvTest {
	type key struct{ name, suffix string }
	var order []key
	of := map[key][]Case{}
	for _, c := range r.Cases {
		k := key{name: c.Axes.text("test")}
		if k.name == "-" || k.name == "" {
			continue
		}
		if c.Axes.text(axisMem) == "vmm" {
			k.suffix = "_vmm"
		}
		if of[k] == nil {
			order = append(order, k)
		}
		of[k] = append(of[k], c)
	}
	var list []nvTest
	for _, k := range order {
		t := nvTest{name: k.name + k.suffix, status: "Passed"}
		waived := true
		for _, c := range of[k] {
			waived = waived && c.Status == Waived
			if c.Status != Passed {
				t.status, t.reason = "Error", string(c.Reason)
			}
		}
		if waived {
			t.status = "Waived"
		} else {
			t.matrices = nvMatrices(r, k.name, k.suffix, of[k])
		}
		list = append(list, t)
	}
	return list
}

// nvMatrices are the matrices of a test. One of two devices at once has three.
func nvMatrices(r *Report, name, suffix string, cases []Case) []nvMatrix {
	type part struct {
		key, title string
		of         func(*Stats) float64
	}
	parts := []part{{"", "", func(s *Stats) float64 { return s.Value }}}
	if strings.HasPrefix(name, "device_to_device_bidirectional") {
		way := "read"
		if strings.Contains(name, "write") {
			way = "write"
		}
		ways := func(of func(*Both) float64) func(*Stats) float64 {
			return func(s *Stats) float64 {
				if s.Both == nil {
					return s.Value
				}
				return of(s.Both)
			}
		}
		title := " " + strings.ToUpper(way[:1]) + way[1:]
		parts = []part{
			{"_" + way + "1", title + "1", ways(func(b *Both) float64 { return b.Forward })},
			{"_" + way + "2", title + "2", ways(func(b *Both) float64 { return b.Reverse })},
			{"_total", " Total", ways(func(b *Both) float64 { return b.Forward + b.Reverse })},
		}
	}
	at := func(axis string, c Case) int {
		return slices.IndexFunc(r.Devices, func(d Device) bool { return d.Open == c.Axes.text(axis) })
	}
	var list []nvMatrix
	for _, p := range parts {
		m := nvMatrix{key: name + suffix + p.key, title: nvTitle(name, p.title)}
		for _, c := range cases {
			row, column := 0, at("device", c)
			if c.Axes.Of(axisFrom) != nil {
				row, column = at(axisFrom, c), at("to", c)
			}
			if row < 0 || column < 0 {
				continue
			}
			for len(m.rows) <= row || c.Axes.Of(axisFrom) != nil && len(m.rows) < len(r.Devices) {
				m.rows = append(m.rows, make([]*float64, len(r.Devices)))
			}
			if c.Status == Passed && c.Stats != nil {
				v := p.of(c.Stats)
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
	engine := strings.ToUpper(name[len(name)-2:])
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
	return fmt.Sprintf("memcpy %s %s(row) %s GPU(column)%s bandwidth (GB/s)", engine, rows, arrow, part)
}

// nvDevice describes a device as nvbandwidth does.
func nvDevice(d Device) string { return fmt.Sprintf("%s (%s)", d.Name, d.PCI) }

// writeNVBandwidth writes the cases of nvbandwidth as it prints them.
func writeNVBandwidth(w io.Writer, r *Report) error {
	var b strings.Builder
	host, _ := os.Hostname()
	fmt.Fprintf(&b, "nvbandwidth's cases by vmmbench, %s\n", r.Run.Version)
	if len(r.Devices) > 0 {
		fmt.Fprintf(&b, "\nDriver Version: %s\n", r.Devices[0].Driver)
	}
	fmt.Fprintf(&b, "\n%s\n", host)
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
			for i, row := range m.rows {
				fmt.Fprintf(&b, "%2d", i)
				for _, v := range row {
					if v == nil {
						fmt.Fprintf(&b, "%10s", "N/A")
					} else {
						fmt.Fprintf(&b, "%10.2f", *v)
					}
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
	type test struct {
		Name   string     `json:"name"`
		Status string     `json:"status"`
		Error  string     `json:"error,omitempty"`
		Title  string     `json:"bandwidth_description,omitempty"`
		Matrix [][]string `json:"bandwidth_matrix,omitempty"`
		Sum    *float64   `json:"sum,omitempty"`
	}
	var all struct {
		Root struct {
			Runtime *int     `json:"CUDA Runtime Version"` // none is used
			Driver  Text     `json:"Driver Version"`
			Devices []string `json:"GPU Device list"`
			Version string   `json:"version"`
			Git     string   `json:"git_version"`
			Tests   []test   `json:"testcases"`
		} `json:"nvbandwidth"`
	}
	host, _ := os.Hostname()
	root := &all.Root
	root.Version, root.Git, root.Devices, root.Tests = "vmmbench", string(r.Run.Version), []string{}, []test{}
	for i, d := range r.Devices {
		root.Driver = d.Driver
		root.Devices = append(root.Devices, fmt.Sprintf("%d: %s: (%s)", i, nvDevice(d), host))
	}
	for _, t := range nvTests(r) {
		x := test{Name: t.name, Status: t.status, Error: t.reason}
		for _, m := range t.matrices { // of three, the rows of all are there, and the sum of the last
			x.Title, x.Sum = m.title, &m.sum
			for _, row := range m.rows {
				line := []string{}
				for _, v := range row {
					cell := "N/A"
					if v != nil {
						cell = strconv.FormatFloat(*v, 'g', 6, 64)
					}
					line = append(line, cell)
				}
				x.Matrix = append(x.Matrix, line)
			}
		}
		root.Tests = append(root.Tests, x)
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(all)
}
