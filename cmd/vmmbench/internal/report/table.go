package report

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/size"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/stat"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/verify"
)

// tables writes the report as tables, for people.
func tables(w io.Writer, r *Report, markdown bool) error {
	var parts []string
	add := func(heading string, t table.Writer) {
		if t.Length() == 0 {
			return
		}
		if markdown {
			parts = append(parts, "## "+heading+"\n\n"+t.RenderMarkdown())
			return
		}
		t.SetStyle(style())
		parts = append(parts, heading+"\n"+t.Render())
	}

	if found := findings(r); len(found) > 0 {
		bullet := ""
		if markdown {
			bullet = "- "
		}
		parts = append(parts, bullet+strings.Join(found, "\n"+bullet))
	}
	add("Machine", machine(r))
	add("State of the host", hostStates(r))
	devices(r, add)
	add(topologyHeading(r), topology(r))
	add("Plan: what EnablePeers would do", plan(r))
	if r.Run.Measure != nil {
		add("State of the devices", deviceStates(r))
	}
	if r.Run.Measure == nil && r.Plan == nil {
		add("Features", features(r))
		add("Limits", limits(r))
	}
	for _, command := range commands(r) {
		t, constants := cases(r, command)
		add(strings.ToUpper(command)+constants, t)
	}
	// A pair of devices is easier to find in a matrix than in a list.
	pairs := matrices(r)
	top := maxByScale(pairs)
	for _, m := range pairs {
		add(m.name+", "+m.valueUnit, m.render(top[m.scale]))
	}
	add("Comparisons: the time of the first over that of the second; below 1 the first is faster", comparisons(r))
	if absent := notHere(r); absent != "" {
		parts = append(parts, absent)
	}
	if r.Run.Measure != nil {
		parts = append(parts, summary(r))
	}
	_, err := io.WriteString(w, strings.Join(parts, "\n\n")+"\n")
	return err
}

func style() table.Style {
	s := table.StyleLight
	s.Options = table.OptionsNoBordersAndSeparators
	s.Options.SeparateHeader = true
	s.Format.Header = 0
	return s
}

func machine(r *Report) table.Writer {
	t := table.NewWriter()
	t.AppendHeader(table.Row{"os", "cpu", "cpus", "memory", "go"})
	t.AppendRow(table.Row{
		strings.TrimSpace(r.Host.OS + "/" + r.Host.Arch + " " + string(r.Host.Kernel)),
		dash(r.Host.CPU), r.Host.CPUs, bytesOf(r.Host.Memory), r.Host.Go,
	})
	return t
}

// features has a column for each device. Neighbours with the same features, as
// the host's devices are, share a column.
func features(r *Report) table.Writer {
	t := table.NewWriter()
	header := table.Row{"feature"}
	var columns [][]string
	first := ""
	for _, d := range r.Devices {
		column := featureColumn(d)
		if n := len(columns); n > 0 && slices.Equal(columns[n-1], column) {
			header[n] = first + " to " + d.Open
			continue
		}
		first = d.Open
		header, columns = append(header, d.Open), append(columns, column)
	}
	t.AppendHeader(header)
	// All devices have the same features in the same order.
	for i := 0; len(columns) > 0 && i < len(r.Devices[0].Features); i++ {
		row := table.Row{r.Devices[0].Features[i].Name}
		for _, column := range columns {
			row = append(row, column[i])
		}
		t.AppendRow(row)
	}
	return t
}

// featureColumn is the result of each probe of a device: yes, no, or open with
// the reason.
func featureColumn(d Device) []string {
	list := make([]string, len(d.Features))
	for i, f := range d.Features {
		switch {
		case f.Supported == nil:
			list[i] = "open: " + string(f.Reason)
		case *f.Supported:
			list[i] = "yes"
		default:
			list[i] = "no"
		}
	}
	return list
}

func limits(r *Report) table.Writer {
	t := table.NewWriter()
	t.AppendHeader(table.Row{"limit", "value"})
	for _, l := range r.Host.Limits {
		value := string(l.Reason)
		if l.Value != nil {
			value = fmt.Sprint(*l.Value)
		}
		t.AppendRow(table.Row{l.Name, value})
	}
	return t
}

// commands are the first parts of the cases' names, in order.
func commands(r *Report) []string {
	var list []string
	for _, c := range r.Cases {
		if command, _, _ := strings.Cut(c.ID, "/"); !slices.Contains(list, command) {
			list = append(list, command)
		}
	}
	return list
}

// cases is the table of a command's cases, but for what this machine does not have.
// constants are the axes that are the same in all of them.
func cases(r *Report, command string) (t table.Writer, constants string) {
	t = table.NewWriter()
	var shown []Case
	for _, c := range r.Cases {
		if strings.HasPrefix(c.ID, command+"/") && c.Status != Waived {
			shown = append(shown, c)
		}
	}
	if len(shown) == 0 {
		return t, ""
	}
	// The columns come first: those of growing only if a case has grown.
	var axes []string
	for _, a := range shown[0].Axes {
		same := len(shown) > 1 && !slices.ContainsFunc(shown, func(c Case) bool { return text(c.Axes.Of(a.Name)) != text(a.Value) })
		if same {
			constants += fmt.Sprintf(", %s %s", a.Name, text(a.Value))
		} else {
			axes = append(axes, a.Name)
		}
	}
	if constants != "" {
		constants = ": " + constants[2:]
	}
	grow := slices.ContainsFunc(shown, func(c Case) bool { return c.Stats != nil && c.Stats.Growth != nil })
	header := table.Row{}
	for _, a := range axes {
		header = append(header, a)
	}
	header = append(header, "median", "95 %", "n")
	if grow {
		header = append(header, "step p50", "p99", "max", "copied", "peak", "moves")
	}
	t.AppendHeader(append(header, "verified", "status", "notes"))

	for _, c := range shown {
		row := table.Row{}
		for _, name := range axes {
			row = append(row, text(c.Axes.Of(name)))
		}
		row = append(row, timing(c)...)
		if grow {
			row = append(row, growth(c.Stats)...)
		}
		t.AppendRow(append(row, verified(c), c.Status, notes(c)))
	}
	return t, constants
}

// notHere names the cases that this machine cannot do, with the reasons.
func notHere(r *Report) string {
	var list []string
	for _, c := range r.Cases {
		if c.Status == Waived {
			list = append(list, c.ID+": "+string(c.Reason))
		}
	}
	if len(list) == 0 {
		return ""
	}
	return "Not on this machine\n " + strings.Join(list, "\n ")
}

func timing(c Case) table.Row {
	s := c.Stats
	if s == nil {
		return table.Row{"-", "-", 0}
	}
	interval := "-"
	if s.ValueLow != nil && s.ValueHigh != nil {
		interval = fmt.Sprintf("%.4g to %.4g", *s.ValueLow, *s.ValueHigh)
	}
	return table.Row{
		fmt.Sprintf("%.4g %s", s.Value, c.Unit),
		interval, s.N,
	}
}

func growth(s *Stats) table.Row {
	if s == nil || s.Growth == nil {
		return table.Row{"-", "-", "-", "-", "-", "-"}
	}
	g := s.Growth
	return table.Row{span(g.StepP50), span(g.StepP99), span(g.StepMax), size.Approx(g.Copied), size.Approx(g.Peak), g.Moves}
}

func verified(c Case) string {
	if c.Verify == nil || c.Verify.Mode == verify.Off {
		return "no"
	}
	return size.Format(c.Verify.Bytes)
}

// notes are the flags, the figures that only some measurements have, and the
// reason.
func notes(c Case) string {
	list := slices.Clone(c.Flags)
	if s := c.Stats; s != nil {
		if s.Traffic != nil {
			list = append(list, fmt.Sprintf("traffic %.4g %s", *s.Traffic, c.Unit))
		}
		if s.Both != nil {
			list = append(list, fmt.Sprintf("forward %.4g, reverse %.4g %s", s.Forward, s.Reverse, c.Unit))
		}
	}
	if c.Reason != "" {
		list = append(list, string(c.Reason))
	}
	return strings.Join(list, "; ")
}

func comparisons(r *Report) table.Writer {
	t := table.NewWriter()
	t.AppendHeader(table.Row{"comparison", "ratio", "95 %", "margin", "verdict", "notes"})
	for _, c := range r.Comparisons {
		if c.Verdict == stat.Waived {
			continue
		}
		ratio, of := "-", "-"
		if c.Ratio != nil {
			ratio = fmt.Sprintf("%.3f", *c.Ratio)
		}
		if c.Low != nil && c.High != nil {
			of = fmt.Sprintf("%.3f to %.3f", *c.Low, *c.High)
		}
		notes := string(c.Reason)
		if c.Needed != nil {
			notes = fmt.Sprintf("about %d samples would do", *c.Needed)
		}
		t.AppendRow(table.Row{c.ID, ratio, of, fmt.Sprintf("%g %%", c.Margin*100), c.Verdict, notes})
	}
	return t
}

func summary(r *Report) string {
	var checked, wrong uint64
	for _, c := range r.Cases {
		if c.Verify != nil {
			checked += c.Verify.Bytes
			wrong += c.Verify.Errors
		}
	}
	// Passed is always there; the other statuses only if there are any.
	count := r.Count()
	s := fmt.Sprintf("%d cases: %d passed", len(r.Cases), count[Passed])
	for _, status := range []Status{Failed, Error, Waived, Interrupted} {
		if count[status] > 0 {
			s += fmt.Sprintf(", %d %s", count[status], status)
		}
	}
	s += fmt.Sprintf("; %d comparisons; %d bytes verified, %d wrong; %.1f s", len(r.Comparisons), checked, wrong, r.Run.Seconds)
	if r.Run.Interrupted {
		s += "; interrupted, so this is not all"
	}
	if r.Run.Error != "" {
		s += "; " + string(r.Run.Error)
	}
	return s
}

// text prints the value of an axis, sizes in binary units.
func text(value any) string {
	switch v := value.(type) {
	case nil:
		return "-"
	case uint64:
		return size.Format(v)
	default:
		return fmt.Sprint(v)
	}
}

// span prints nanoseconds in a fitting unit.
func span(ns float64) string {
	switch {
	case ns < 1e3:
		return fmt.Sprintf("%.3g ns", ns)
	case ns < 1e6:
		return fmt.Sprintf("%.4g us", ns/1e3)
	case ns < 1e9:
		return fmt.Sprintf("%.4g ms", ns/1e6)
	}
	return fmt.Sprintf("%.4g s", ns/1e9)
}

func dash(t Text) string {
	if t == "" {
		return "-"
	}
	return string(t)
}

func bytesOf(n *uint64) string {
	if n == nil {
		return "-"
	}
	return size.Approx(*n)
}
