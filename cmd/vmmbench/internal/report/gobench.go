package report

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// writeGoBench writes every sample as a line of a Go benchmark, for benchstat. Cases that
// are compared have names that differ in /mem only, so that "benchstat -col /mem" pairs
// them. Samples of wrong data are left out.
func writeGoBench(w io.Writer, r *Report) error {
	var b strings.Builder
	var devices []string
	for _, d := range r.Devices {
		devices = append(devices, d.Open+" "+d.Name)
	}
	// Lines like those of the go command, and one for the devices.
	for _, x := range [][2]string{
		{"goos", r.Host.OS}, {"goarch", r.Host.Arch}, {"pkg", "github.com/cuvmm/cuvmm/cmd/vmmbench"},
		{"cpu", string(r.Host.CPU)}, {"device", strings.Join(devices, ", ")},
	} {
		if value := strings.Join(strings.Fields(x[1]), " "); value != "" {
			fmt.Fprintf(&b, "%s: %s\n", x[0], value)
		}
	}
	for _, command := range byCommand(r) {
		axes, named := benchAxes(r, command.Of)
		for _, c := range without(command.Of, func(c Case) bool { return c.Status == Failed }) {
			name, loops := goBenchName(c, axes, named), 1
			if c.Stats != nil {
				loops = max(loops, c.Stats.Loops)
			}
			for _, ns := range c.Samples {
				fmt.Fprintf(&b, "%s %d %.3f ns/op", name, loops, ns)
				if ns > 0 && c.Bytes > 0 {
					fmt.Fprintf(&b, " %.3f MB/s", float64(c.Bytes)/ns*1e3)
				}
				b.WriteByte('\n')
			}
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// benchAxes are the axes in names of benchmarks: those in which no compared cases differ, but for
// their memory, which has the last part of the case's name if there are any.
func benchAxes(r *Report, list []Case) (axes []string, named bool) {
	for _, c := range list {
		for _, a := range c.Axes {
			axes = union(axes, []string{a.Name})
		}
	}
	known := byID(list)
	for _, c := range r.Comparisons {
		a, found := known[c.A]
		b, both := known[c.B]
		if !found || !both || c.ofRuns() {
			continue
		}
		named = true
		axes = slices.DeleteFunc(axes, func(name string) bool {
			return name != axisMem && name != "how" && a.Axes.text(name) != b.Axes.text(name)
		})
	}
	return axes, named
}

// goBenchName is the name of a case as a benchmark. The device is not part of it: what
// was measured on two devices can be compared.
func goBenchName(c Case, axes []string, named bool) string {
	word := func(s string) string { return strings.Join(strings.Fields(strings.ReplaceAll(s, "/", "_")), "_") }
	name, mem := "Benchmark", ""
	if command := word(CommandOf(c.ID)); command != "" {
		name += strings.ToUpper(command[:1]) + command[1:]
	}
	for _, axis := range axes {
		value := c.Axes.text(axis)
		switch {
		case axis == "device":
		case axis == axisMem && named:
			mem = "/mem=" + word(Contender(c.ID)) // the last, as the name of the column
		case axis == axisMem:
			mem = "/mem=" + word(value)
		default:
			name += "/" + word(axis) + "=" + word(value)
		}
	}
	return name + mem
}
