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
	for _, c := range without(r.Cases, func(c Case) bool { return c.Status == Failed }) {
		loops := 1
		if c.Stats != nil {
			loops = max(loops, c.Stats.Loops)
		}
		for _, ns := range c.Samples {
			fmt.Fprintf(&b, "%s %d %.3f ns/op", goBenchName(c), loops, ns)
			if ns > 0 && c.Bytes > 0 {
				fmt.Fprintf(&b, " %.3f MB/s", float64(c.Bytes)/ns*1e3)
			}
			b.WriteByte('\n')
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// goBenchName is the name of a case as a benchmark: its own, of which the last part is the memory.
func goBenchName(c Case) string {
	name := strings.Join(strings.Fields(c.ID), "_")
	at := strings.LastIndexByte(name, '/') + 1
	return "Benchmark" + strings.ToUpper(name[:min(1, at)]) + name[min(1, at):at] + "mem=" + name[at:]
}
