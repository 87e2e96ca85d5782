package report

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"

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
	Sentences []string
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

// tables writes the report as tables, for people. The answer stands last, where a terminal shows it.
func tables(w io.Writer, r *Report, width int) error {
	pieces := About(r)
	if r.Run.Command != CommandCompare && r.Run.Measure == nil {
		pieces = Abilities(r)
	}
	pieces = append(pieces, figures(r)...)
	pieces = append(pieces, legend(pieces)...)
	pieces = append(pieces, Piece{Sentences: Findings(r)})
	var parts []string
	for _, p := range pieces {
		if text := p.text(max(width, usualWidth)); text != "" {
			parts = append(parts, text)
		}
	}
	_, err := io.WriteString(w, strings.Join(parts, "\n\n")+"\n")
	return err
}

// About is the machine and its devices, and which runs are compared.
func About(r *Report) []Piece {
	runs, machine := newGrid("what"), newGrid("what")
	if b := r.Baseline; b != nil && b.New != nil {
		runs.setFields("old", b.Run, "args", "version", "started", "interrupted")
		runs.setFields("new", b.New, "args", "version", "started", "interrupted")
	}
	machine.setFields("machine", r.Host, briefDevice...)
	for _, d := range r.Devices {
		machine.setFields(d.Open, d, briefDevice...)
	}
	return slices.Concat(runs.pieces("Compared"), machine.pieces("Machine"))
}

// Abilities is what the devices can do, and the limits of the machine.
func Abilities(r *Report) []Piece {
	g := newGrid("what")
	g.setFields("value", r.Host)
	list := g.pieces("Machine")
	features, limits := newGrid("feature"), newGrid("limit")
	for _, d := range r.Devices {
		g := newGrid("what")
		g.setFields("value", d)
		list = append(list, g.pieces("Device "+d.Open)...)
		for _, f := range d.Features {
			features.set(f.Name, d.Open, cmp.Or(yesNo(f.Supported), "unknown: "+string(f.Reason)))
		}
	}
	for _, l := range r.Host.Limits {
		limits.setRow(l.Name, l, "value", "reason")
	}
	return slices.Concat(list, topology(r), features.pieces("Features"), limits.pieces("Limits"))
}

// A run shows these fields of devices and of their state; --format json has all.
var (
	briefDevice = []string{
		"os", "kernel", "cpu", "cpus", "go",
		"name", "driver", "arch", "memory", "free", "granularity", "granularity_recommended", "reason",
	}
	briefState = []string{
		"load", "governors", "transparent_huge_pages",
		"clock_sm_mhz", "clock_sm_max_mhz", "temperature_c", "power_w", "throttle", "pcie_generation", "pcie_generation_max", "pcie_width", "pcie_width_max", "other_processes",
	}
)

// States are those of the machine and of its devices, with these fields or all that is known.
func States(r *Report, only ...string) []Piece {
	var list []Piece
	add := func(of string, start, end any) {
		g := newGrid("what")
		g.setFields("start", start, only...)
		g.setFields("end", end, only...)
		list = append(list, g.pieces("State of "+of)...)
	}
	add("the host", r.Host.State, r.Host.StateEnd)
	for _, d := range r.Devices {
		add(d.Open, d.State, d.StateEnd)
	}
	return list
}

// Figures is what was measured: all cases and comparisons, and what their words mean.
func Figures(r *Report) []Piece {
	list := figures(r)
	return append(list, legend(list)...)
}

func figures(r *Report) (list []Piece) {
	if r.Run.Command != CommandCompare {
		for _, command := range byCommand(r) {
			list = append(list, caseTables(command)...)
		}
		list = append(list, matrices(r)...)
	}
	list = append(list, comparisons(r, "Compared, ratio of times", func(c Comparison) bool { return !c.ofRuns() })...)
	list = append(list, comparisons(r, "Compared, new run against old", Comparison.ofRuns)...)
	if r.Run.Command == CommandCompare {
		return list
	}
	list = append(list, Piece{Sentences: notHere(r)})
	list = append(list, floors(r)...)
	if r.Run.Measure != nil {
		list = append(append(list, States(r, briefState...)...), Piece{Sentences: []string{summary(r)}})
	}
	return list
}

// topology is a matrix of what connects the devices that have links: by NVML, else whether the
// CUDA driver has peer access.
func topology(r *Report) []Piece {
	g := newGrid("from \\ to")
	for _, l := range r.Topology {
		g.set(l.From, l.From, "-")
	}
	for _, l := range r.Topology {
		text := cmp.Or(string(l.Path), yesNo(l.Access))
		if yesNo(l.Access) == "no" {
			text = "(" + text + ")"
		}
		g.set(l.From, l.To, text)
	}
	heading := "Topology: NV<n> is n NVLinks; PIX, PXB, PHB, NODE, SYS is PCIe; yes where the path is not known; (in brackets) no peer access"
	for _, l := range r.Topology {
		if why := string(l.Refused); !strings.Contains(heading, why) {
			heading += ": " + why
		}
	}
	return g.pieces(heading)
}

// mainFields are the fields of statistics that have no column in the table of those that only some
// cases have: the main table has them, or other formats.
var mainFields = []string{
	"n", "loops", "rounds", "median_ns", "mad_ns", "min_ns", "max_ns", "p5_ns", "p95_ns", "low_ns", "high_ns", "level",
	"value", "value_low", "value_high", "timer_ns",
}

// caseTables are tables of a command's cases, but for what this machine does not have: how long
// they took, and what only some of them have.
func caseTables(command Group[Case]) []Piece {
	list := without(command.Of, func(c Case) bool { return c.Status == Waived })
	g, more, flags := newGrid("case"), newGrid("case"), commonFlags(list)
	for _, c := range list {
		// A pair of devices is easier to find in a matrix than in a list.
		if pairName(c) == "" || c.Status != Passed || len(list) <= maxRows {
			g.setCase(c, flags)
		}
		for _, f := range c.figures() {
			if _, number := f.number(); number && !slices.Contains(mainFields, f.name) {
				more.set(c.ID, f.title(), f.String())
			}
		}
	}
	title := strings.ToUpper(command.Key)
	same := append(g.lift("device", "unit", "n", "verified", "status"), flags...)
	pieces := g.pieces(strings.TrimSuffix(title+": "+strings.Join(same, ", "), ": "))
	return append(pieces, more.pieces(title+", other figures")...)
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
func (g *grid) setCase(c Case, common []string) {
	s, median, of, mode := c.Stats, "", "", verify.Off
	if s == nil {
		s = &Stats{}
	} else {
		median, of = fourDigits(s.Value), interval(s.ValueLow, s.ValueHigh, s.Level, fourDigits)
	}
	if c.Verify != nil {
		mode = c.Verify.Mode
	}
	g.set(c.ID, "device", strings.TrimSuffix(c.Axes.text("device"), "-"))
	g.set(c.ID, "median", median)
	g.set(c.ID, "95 %", of)
	g.set(c.ID, "unit", c.Unit)
	g.set(c.ID, "n", strconv.Itoa(s.N))
	g.set(c.ID, "verified", string(mode))
	g.set(c.ID, "status", string(c.Status))
	g.set(c.ID, "flags", strings.Join(without(c.Flags, func(f string) bool { return slices.Contains(common, f) }), ", "))
	g.set(c.ID, "reason", string(c.Reason))
}

// comparisons is the table of some comparisons, but for what this machine does not have.
func comparisons(r *Report, heading string, which func(Comparison) bool) []Piece {
	g := newGrid("comparison")
	for _, c := range r.Comparisons {
		if c.Verdict == stat.Waived || !which(c) {
			continue
		}
		name := c.name()
		ratio := ""
		if c.Ratio != nil {
			ratio = threePlaces(*c.Ratio)
		}
		g.set(name, "ratio", ratio)
		g.set(name, "95 %", interval(c.Low, c.High, c.Level, threePlaces))
		g.set(name, "margin", fmt.Sprintf("%g %%", c.Margin*100))
		g.set(name, "verdict", string(c.Verdict))
		g.set(name, "reason", string(c.Reason))
	}
	heading = strings.Join(append([]string{heading}, g.lift("margin")...), ", ")
	return g.pieces(heading)
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
