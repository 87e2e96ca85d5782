package report

import (
	"fmt"
	"io"
	"strings"
)

// writeGoBench writes every sample as a line of a Go benchmark, for benchstat. Cases that
// are compared have names that differ in /mem only, so that "benchstat -col /mem" pairs
// them. Samples of wrong data are left out.
func writeGoBench(w io.Writer, r *Report) error {
	var b strings.Builder
	config := func(key, value string) {
		if value = strings.Join(strings.Fields(value), " "); value != "" {
			fmt.Fprintf(&b, "%s: %s\n", key, value)
		}
	}
	// Lines like those of the go command, and one for the devices.
	config("goos", r.Host.OS)
	config("goarch", r.Host.Arch)
	config("pkg", "github.com/cuvmm/cuvmm/cmd/vmmbench")
	config("cpu", string(r.Host.CPU))
	var devices []string
	for _, d := range r.Devices {
		devices = append(devices, d.Open+" "+d.Name)
	}
	config("device", strings.Join(devices, ", "))

	for _, command := range byCommand(r) {
		l := layoutOf(r, command.Of)
		for _, c := range without(command.Of, func(c Case) bool { return c.Status == Failed }) {
			name, loops := goBenchName(c, l), 1
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

// goBenchName is the name of a case as a benchmark. The device is not part of it: what
// was measured on two devices can be compared.
func goBenchName(c Case, l layout) string {
	word := func(s string) string { return strings.Join(strings.Fields(strings.ReplaceAll(s, "/", "_")), "_") }
	command := word(CommandOf(c.ID))
	name := "Benchmark"
	if command != "" {
		name += strings.ToUpper(command[:1]) + command[1:]
	}
	mem := ""
	for _, axis := range l.axes {
		switch {
		case axis == "device":
		case axis == axisMem: // the last, as the name of the column
			mem = "/mem=" + word(l.value(c, axis))
		default:
			name += "/" + word(axis) + "=" + word(c.Axes.text(axis))
		}
	}
	return name + mem
}
