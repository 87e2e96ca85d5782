package report

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/cuvmm/cuvmm/cmd/internal/size"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/stat"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/verify"
)

const (
	usualWidth = 80 // of a terminal, at least
	maxRows    = 20 // of a table of pairs of devices
)

// Piece is a part of a report: a table with its heading, sentences, or words with what they mean.
type Piece struct {
	Heading   string
	Table     table.Writer // nil if there is none; as HTML it is escaped
	Sentences []string     // beside a table, notes that do not fit into it
	Words     []Word
}

// text prints the piece for a terminal.
func (p Piece) text(width int) string {
	var lines []string
	if p.Heading != "" {
		lines = append(lines, wrap(width, p.Heading))
	}
	if p.Table != nil {
		lines = append(lines, p.Table.Render())
	}
	for _, s := range p.Sentences {
		lines = append(lines, wrap(width, s))
	}
	for _, w := range p.Words {
		lines = append(lines, wrap(width, w.Word+": "+w.Means))
	}
	return strings.Join(lines, "\n")
}

// sentences is a piece of them, if there are any.
func sentences(list ...string) []Piece {
	if list = without(list, func(s string) bool { return s == "" }); len(list) == 0 {
		return nil
	}
	return []Piece{{Sentences: list}}
}

// tables writes the report as tables, for people. The answer stands last, where a terminal shows it.
func tables(w io.Writer, r *Report, width int) error {
	pieces := About(r)
	if r.Run.Command != CommandCompare && r.Run.Measure == nil && r.Plan == nil {
		pieces = append(pieces, Abilities(r)...)
	}
	pieces = append(pieces, figures(r)...)
	pieces = append(pieces, legend(pieces)...)
	if steps := next(r); len(steps) > 0 {
		pieces = append(pieces, Piece{Heading: "Next", Words: steps})
	}
	pieces = append(pieces, sentences(Findings(r)...)...)
	var parts []string
	for _, p := range pieces {
		parts = append(parts, p.text(max(width, usualWidth)))
	}
	_, err := io.WriteString(w, strings.Join(parts, "\n\n")+"\n")
	return err
}

// About is the machine and its devices, and what EnablePeers would do with them.
func About(r *Report) []Piece {
	list := sentences(machine(r))
	if b := r.Baseline; r.Run.Command == CommandCompare && b != nil && b.New != nil {
		list = sentences("Old: "+origin(b.Run), "New: "+origin(*b.New))
	}
	if r.Run.Measure != nil || r.Plan != nil || r.Run.Command == CommandCompare {
		list = append(list, devices(r)...)
	}
	return append(list, plan(r)...)
}

// Abilities is what the devices can do, and the limits of the machine.
func Abilities(r *Report) []Piece {
	var list []Piece
	for _, d := range r.Devices {
		d.State, d.StateEnd = nil, nil // which have a table of their own
		list = append(list, objects("Device "+d.Open, nil, []string{"value"}, d)...)
	}
	list = slices.Concat(list, States(r), topology(r))
	supported, values := newGrid("feature"), newGrid("limit")
	var unknown []string
	for _, d := range r.Devices {
		for _, f := range d.Features {
			supported.set(f.Name, d.Open, cmp.Or(yesNo(f.Supported), "unknown"))
			if f.Supported == nil {
				unknown = union(unknown, []string{f.Name + ": " + string(f.Reason)})
			}
		}
	}
	for _, l := range r.Host.Limits {
		values.set(l.Name, "value", cmp.Or(exact(l.Value), string(l.Reason)))
	}
	return slices.Concat(list, supported.pieces("Features", unknown...), values.pieces("Limits"))
}

// States are those of the machine and of its devices, with all that is known.
func States(r *Report) []Piece { return states(r, nil) }

// states has some of their fields, or all.
func states(r *Report, only []string) []Piece {
	moments := []string{"start", "end"}
	list := objects("State of the host", only, moments, r.Host.State, r.Host.StateEnd)
	for _, d := range r.Devices {
		list = append(list, objects("State of "+d.Open, only, moments, d.State, d.StateEnd)...)
	}
	return list
}

// briefState are the parts of the state that a run shows; --format json has all.
var briefState = []string{
	"load", "governors", "transparent_huge_pages",
	"clock_sm_mhz", "clock_sm_max_mhz", "temperature_c", "power_w", "throttle", "pcie_generation", "pcie_width", "other_processes",
}

// objects has a row for each field that one of the objects has, and a column for each object.
func objects(heading string, only, columns []string, list ...any) []Piece {
	g := newGrid("what")
	for i, object := range list {
		for _, f := range fields(object) {
			text := f.String()
			if text != "" && (only == nil || slices.Contains(only, f.name)) {
				g.set(strings.ReplaceAll(f.name, "_", " "), columns[i], text)
			}
		}
	}
	return g.pieces(heading)
}

// Figures is what was measured: all cases and comparisons, and what their words mean.
func Figures(r *Report) []Piece {
	list := figures(r)
	return append(list, legend(list)...)
}

func figures(r *Report) (list []Piece) {
	// The quick tour is one page of a terminal. All is in the other formats.
	brief := r.Run.Command == CommandQuick
	if r.Run.Command != CommandCompare {
		for _, command := range byCommand(r) {
			list = append(list, caseTables(command, brief)...)
		}
		list = append(list, matrices(r)...)
	}
	list = append(list, comparisons(r, "Compared, ratio of times", func(c Comparison) bool {
		return !c.ofRuns() && (!brief || CommandOf(c.B) != "bw") // the findings tell of copies
	})...)
	list = append(list, comparisons(r, "Compared, new run against old", Comparison.ofRuns)...)
	list = append(list, sentences(chance(r))...)
	if r.Run.Command == CommandCompare {
		return list
	}
	list = append(list, sentences(notHere(r)...)...)
	if r.Run.Measure != nil {
		list = slices.Concat(list, states(r, briefState), sentences(summary(r)))
	}
	return list
}

// machine says in words what the program ran on.
func machine(r *Report) string {
	h := r.Host
	list := []string{strings.TrimSpace(h.OS + "/" + h.Arch + " " + string(h.Kernel))}
	if h.CPU != "" {
		list = append(list, string(h.CPU))
	}
	list = append(list, fmt.Sprintf("%d cpus", h.CPUs))
	if h.Memory != nil {
		list = append(list, size.Approx(*h.Memory)+" memory")
	}
	return "Machine: " + strings.Join(append(list, h.Go), ", ")
}

// origin returns which run it was.
func origin(run Run) string {
	s := strings.TrimSpace("vmmbench " + strings.Join(run.Args, " "))
	if run.Version != "" {
		s += ", " + string(run.Version)
	}
	if run.Interrupted {
		s += ", interrupted"
	}
	return s + ", " + run.Started
}

// devices is the table of devices.
func devices(r *Report) []Piece {
	g := newGrid("device")
	var reasons []string
	for _, d := range r.Devices {
		g.set(d.Open, "name", d.Name)
		g.set(d.Open, "driver", string(d.Driver))
		g.set(d.Open, "memory", size.Approx(d.Memory))
		g.set(d.Open, "free", ifKnown(d.Free, size.Approx))
		g.set(d.Open, "granularity", ifKnown(d.Granularity, size.Format))
		if exact(d.Recommended) != exact(d.Granularity) {
			g.set(d.Open, "recommended", ifKnown(d.Recommended, size.Format))
		}
		g.set(d.Open, "arch", string(d.Arch))
		if d.Reason != "" {
			reasons = append(reasons, d.Open+": "+string(d.Reason))
		}
	}
	return g.pieces("Devices", reasons...)
}

// ifKnown prints a value, or a dash if it is not known.
func ifKnown[T any](n *T, print func(T) string) string {
	if n == nil {
		return "-"
	}
	return print(*n)
}

// topology is a matrix of what connects the devices that have links: by NVML, else whether the
// CUDA driver has peer access. A path without it is in brackets.
func topology(r *Report) []Piece {
	g, heading := newGrid("from \\ to"), "Topology: is there peer access? Without NVML the path is not known"
	for _, l := range r.Topology {
		g.set(l.From, l.From, "-")
	}
	for _, l := range r.Topology {
		text := cmp.Or(string(l.Path), yesNo(l.Access))
		if l.Path != "" && yesNo(l.Access) == "no" {
			text = "(" + text + ")"
		}
		g.set(l.From, l.To, text)
		if l.Path != "" {
			heading = "Topology: NV<n> is n NVLinks; PIX, PXB, PHB, NODE, SYS is PCIe; (in brackets) no peer access"
		}
	}
	for _, d := range r.Devices {
		if _, linked := g.at[d.Open]; linked && d.State != nil {
			g.set(d.Open, "NUMA node", exact(d.State.NUMANode))
			g.set(d.Open, "nearest CPUs", string(d.State.CPUs))
		}
	}
	return g.pieces(heading)
}

// plan is what EnablePeers would do for each pair.
func plan(r *Report) []Piece {
	g := newGrid("from to")
	var reasons []string
	for _, p := range r.Plan {
		pair := p.From + " " + p.To
		g.set(pair, "path", strings.Replace(cmp.Or(string(p.Path), string(p.Kind)), "none", "no path", 1))
		g.set(pair, "access", yesNo(p.Access))
		g.set(pair, "atomics", yesNo(p.Atomics))
		g.set(pair, "rank", exact(p.Rank))
		g.set(pair, "now", string(p.Now))
		if p.Can {
			g.set(pair, "what would be done", fmt.Sprintf("%s -> %s", p.Now, p.Then))
			continue
		}
		g.set(pair, "what would be done", "nothing")
		reasons = append(reasons, pair+": "+string(p.Why))
	}
	return g.pieces("Plan: what EnablePeers would do", reasons...)
}

// Tables beside the main one show figures that only some cases have.
const (
	tableWays    = "other rates"
	tableSteps   = "its steps"
	tableReaders = "its readers"
	tablePools   = "what it held"
	tableSoak    = "repeated for long"
)

// moreTables are their columns, by the names of fields.
var moreTables = []struct{ table, field, column string }{
	{tableWays, "traffic", "traffic"},
	{tableWays, "forward", "forward"},
	{tableWays, "reverse", "reverse"},
	{tableSteps, "step_p50_ns", "step p50"},
	{tableSteps, "step_p99_ns", "step p99"},
	{tableSteps, "step_max_ns", "step max"},
	{tableSteps, "bytes_copied", "copied"},
	{tableSteps, "peak_bytes", "peak"},
	{tableSteps, "moves", "moves"},
	{tableSoak, "soak_p50_ns", "p50"},
	{tableSoak, "soak_p99_ns", "p99"},
	{tableSoak, "soak_p999_ns", "p99.9"},
	{tableSoak, "soak_slowest_ns", "slowest"},
	{tableSoak, "soak_slowest_at_seconds", "after s"},
	{tableReaders, "p99_ns", "p99"},
	{tableReaders, "reader_fds", "reader fds"},
	{tablePools, "live_peak_bytes", "live peak"},
	{tablePools, "reserved_peak_bytes", "reserved peak"},
	{tablePools, "reserved_of_live", "of live"},
	{tablePools, "failed_allocs", "no memory"},
}

// caseTables are tables of a command's cases, but for what this machine does not have: how long
// they took, and what only some of them have. A brief one has no steps.
func caseTables(command Group[Case], brief bool) []Piece {
	list := without(command.Of, func(c Case) bool { return c.Status == Waived })
	g, more, flags := newGrid("case"), map[string]*grid{}, commonFlags(list)
	var reasons []string
	for _, c := range list {
		if c.Reason != "" {
			reasons = append(reasons, c.ID+": "+string(c.Reason))
		}
		// A pair of devices is easier to find in a matrix than in a list.
		if pairName(c) == "" || c.Status != Passed || len(list) <= maxRows {
			setCase(g, c, flags)
		}
		figures := map[string]field{}
		for _, f := range c.figures() {
			figures[f.name] = f
		}
		for _, m := range moreTables {
			f, ok := figures[m.field]
			none := m.field == "reader_fds" && f.String() == "0" // it has no reader
			if !ok || none {
				continue
			}
			if more[m.table] == nil {
				more[m.table] = newGrid("case")
			}
			more[m.table].set(c.ID, m.column, f.String())
		}
	}
	title := strings.ToUpper(command.Key)
	same := append(g.lift("device", "unit", "n", "verified", "status"), flags...)
	pieces := g.pieces(strings.TrimSuffix(title+": "+strings.Join(same, ", "), ": "), reasons...)
	for _, name := range []string{tableWays, tableSteps, tableSoak, tableReaders, tablePools} {
		if t := more[name]; t != nil && !(brief && name == tableSteps) {
			pieces = append(pieces, t.pieces(title+", "+name)...)
		}
	}
	return pieces
}

// commonFlags are the flags of all cases of several.
func commonFlags(list []Case) (flags []string) {
	for i, c := range list {
		if i == 0 && len(list) > 1 {
			flags = c.Flags
		}
		flags = without(flags, func(f string) bool { return !slices.Contains(c.Flags, f) })
	}
	return flags
}

// setCase adds a case to the main table of its command, without the flags that stand in its heading.
func setCase(g *grid, c Case, common []string) {
	texts := map[string]string{"n": "0"}
	for _, f := range c.figures() {
		texts[f.name] = f.String()
	}
	if c.Stats != nil {
		texts["95 %"] = interval(c.Stats.ValueLow, c.Stats.ValueHigh, c.Stats.Level, fourDigits)
	}
	g.set(c.ID, "device", exact(c.Axes.Of("device")))
	g.set(c.ID, "median", texts["value"])
	g.set(c.ID, "95 %", texts["95 %"])
	g.set(c.ID, "unit", c.Unit)
	g.set(c.ID, "bandwidth", texts["bandwidth"])
	g.set(c.ID, "n", texts["n"])
	g.set(c.ID, "verified", verified(c))
	g.set(c.ID, "status", string(c.Status))
	g.set(c.ID, "flags", strings.Join(without(c.Flags, func(f string) bool { return slices.Contains(common, f) }), ", "))
}

// verified returns how much of a case was checked.
func verified(c Case) string {
	switch {
	case c.Verify == nil || c.Verify.Mode == verify.Off:
		return "no"
	case c.Verify.Mode == verify.Full && c.Verify.Bytes == c.Bytes:
		return "all"
	}
	return size.Format(c.Verify.Bytes)
}

// comparisons is the table of some comparisons, but for what this machine does not have.
func comparisons(r *Report, heading string, which func(Comparison) bool) []Piece {
	g := newGrid("comparison")
	var reasons []string
	for _, c := range r.Comparisons {
		if c.Verdict == stat.Waived || !which(c) {
			continue
		}
		name := c.ID
		if c.ofRuns() {
			name = c.B
		}
		g.set(name, "ratio", c.ratio())
		g.set(name, "95 %", c.interval())
		g.set(name, "margin", fmt.Sprintf("%g %%", c.Margin*100))
		g.set(name, "verdict", string(c.Verdict))
		if c.Reason != "" {
			reasons = append(reasons, name+": "+string(c.Reason))
		}
	}
	heading = strings.Join(append([]string{heading}, g.lift("margin")...), ", ")
	return g.pieces(heading, reasons...)
}

// pairName is what cases of one matrix have in common: their axes but for the pair. It is
// empty for other cases, and where there is nothing else.
func pairName(c Case) string {
	if c.Axes.Of(axisFrom) == nil || c.Axes.Of(axisTo) == nil {
		return ""
	}
	var rest []string
	for _, a := range c.Axes {
		if a.Name != axisFrom && a.Name != axisTo && usual[a.Name] != a.String() {
			rest = append(rest, a.String())
		}
	}
	return strings.Join(rest, " ")
}

// usual are the values of axes that no heading names: those without a flag.
var usual = map[string]string{
	"into": "touched", "call": "async", "engine": "ce", "streams": "1", "step": "whole", "exportable": "no", "busy": "0", "write": "device", "how": "fd",
}

// matrices are tables of the cases that differ in the pair of devices only.
func matrices(r *Report) (list []Piece) {
	for _, of := range GroupBy(r.Cases, pairName) {
		if of.Key == "" {
			continue
		}
		g := newGrid("from \\ to")
		for _, c := range of.Of {
			from, to := c.Axes.text(axisFrom), c.Axes.text(axisTo)
			g.set(from, from, "-")
			g.set(to, to, "-")
			g.set(from, to, string(c.Status))
			if c.Stats != nil && c.Status == Passed {
				g.set(from, to, fourDigits(c.Stats.Value))
			}
		}
		list = append(list, g.pieces(strings.Join(append([]string{of.Key, of.Of[0].Unit}, commonFlags(of.Of)...), ", "))...)
	}
	return list
}
