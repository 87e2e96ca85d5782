package report

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/cuvmm/cuvmm/cmd/internal/size"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/stat"
)

// tables writes the report as tables, for people. In Markdown every width fits.
func tables(w io.Writer, r *Report, markdown bool, most int) error {
	p := document{markdown: markdown, width: max(most, usualWidth)}
	if markdown {
		p.width = math.MaxInt
	}
	if r.Run.Command == CommandCompare {
		p.comparedRuns(r)
	} else {
		p.measured(r)
	}
	var parts []string
	for _, piece := range p.pieces {
		parts = append(parts, piece.text(markdown, p.width))
	}
	_, err := io.WriteString(w, strings.Join(parts, "\n\n")+"\n")
	return err
}

// measured adds the report of a run, or of info, which measures nothing.
func (p *document) measured(r *Report) {
	if p.markdown {
		p.list(append(Headline(r), Findings(r)...))
	}
	p.about(r)
	if r.Run.Measure == nil {
		p.abilities(r)
	}
	p.figures(r)
	answer := Headline(r)
	if r.Baseline != nil {
		answer = append(answer, runsFinding(r)...)
	}
	p.end(r, answer)
}

// end is what a terminal shows last: what to do next, and the answer.
func (p *document) end(r *Report, answer []string) {
	if p.markdown {
		return
	}
	if steps := next(r); len(steps) > 0 {
		p.pieces = append(p.pieces, Piece{Heading: "Next", steps: steps})
	}
	p.list(answer)
}

// about adds the machine and its devices.
func (p *document) about(r *Report) {
	p.para(machine(r))
	if r.Run.Measure != nil {
		p.add(devices(r))
	}
}

// abilities adds what the devices can do, and all that is known of them.
func (p *document) abilities(r *Report) {
	p.block("State of the host", fieldTable(r.Host.State))
	for _, d := range r.Devices {
		p.block("Device "+d.Open, fieldTable(d))
		p.block("State of "+d.Open, fieldTable(d.State))
	}
	p.block(topologyHeading(r), topology(r))
	p.add(features(r))
	p.add(limits(r))
}

// figures adds what was measured.
func (p *document) figures(r *Report) {
	// The quick tour is one page of a terminal. All is in the other formats.
	brief := r.Run.Command == CommandQuick && !p.markdown
	// A pair of devices is easier to find in a matrix than in a list.
	pairs, commands := matrices(r), byCommand(r)
	for _, command := range commands {
		list := cases(r, command, "")
		if slices.Contains(list.keys, axisFrom) && len(pairs) > 0 && len(list.tables(p.width)) > 1 {
			list = failedPairs(list)
		}
		p.add(list)
		for _, name := range []string{tableSteps, tableSoak, tableReaders, tablePools} {
			if !brief || name != tableSteps {
				p.add(cases(r, command, name))
			}
		}
	}
	for _, m := range pairs {
		p.table(m)
	}
	for _, command := range commands {
		// What was found about copies is in the first sentences.
		if !brief || command.Key != "bw" {
			p.add(comparisons(r, command, false))
		}
	}
	p.add(otherComparisons(r))
	for _, command := range commands {
		p.add(comparisons(r, command, true))
	}
	p.para(chance(r))
	if !p.markdown {
		p.list(Findings(r))
	}
	if brief {
		p.legend(known...)
	} else {
		p.legend()
	}
	p.list(notHere(r))
	if r.Baseline != nil && p.markdown {
		p.list(runsFinding(r))
	}
	if r.Run.Measure != nil {
		p.para(hostState(r))
		for _, d := range r.Devices {
			p.block("State of "+d.Open, stateTable(d.State, d.StateEnd, briefState...))
		}
		p.para(summary(r))
	}
}

// comparedRuns adds the comparison of two runs. What they measured is in their own
// reports.
func (p *document) comparedRuns(r *Report) {
	if p.markdown {
		p.list(runsFinding(r))
	}
	if b := r.Baseline; b != nil && b.New != nil {
		p.list([]string{"Old: " + origin(b.Run), "New: " + origin(*b.New)})
	}
	p.add(devices(r))
	for _, command := range byCommand(r) {
		p.add(comparisons(r, command, true))
	}
	p.para(chance(r))
	p.legend()
	p.end(r, runsFinding(r))
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

// document collects what is printed.
type document struct {
	markdown bool
	width    int // of a line, at most
	pieces   []Piece
	shown    strings.Builder // all tables and their headings, in which the legend looks for words
}

// para adds a paragraph, if there is one.
func (p *document) para(s string) {
	if s != "" {
		p.pieces = append(p.pieces, Piece{Sentences: []string{s}})
	}
}

// list adds sentences, each on its own line.
func (p *document) list(sentences []string) {
	if len(sentences) > 0 {
		p.pieces = append(p.pieces, Piece{Sentences: sentences, list: true})
	}
}

// add adds a grid, as one table or more.
func (p *document) add(g grid) {
	for _, t := range g.tables(p.width) {
		p.table(t)
	}
}

// block adds a table that is laid out already, if it has rows.
func (p *document) block(heading string, t table.Writer) {
	if t.Length() > 0 {
		p.table(Piece{Heading: heading, Table: t})
	}
}

// table adds a table; without a table it is the heading of those that follow.
func (p *document) table(t Piece) {
	p.shown.WriteString(t.Heading + "\n" + strings.Join(t.Sentences, "\n") + "\n")
	if t.Table != nil {
		p.shown.WriteString(t.Table.Render() + "\n")
	}
	p.pieces = append(p.pieces, t)
}

// Piece is a part of a report: a table with its heading, sentences, or words with what they mean.
// One with a heading alone is about the tables that follow.
type Piece struct {
	Heading   string
	Table     table.Writer // nil if there is none; as HTML it is escaped
	Sentences []string     // beside a table, notes that do not fit into it
	Words     []Word

	list  bool // each sentence is for itself
	steps []step
}

// Word is a word of the tables and what it means.
type Word struct{ Word, Means string }

// text prints the piece for a terminal, or as Markdown.
func (p Piece) text(markdown bool, width int) string {
	var lines []string
	// add breaks a text into lines that fit a terminal. In Markdown it may be an item of a list.
	add := func(s, indent string, item bool) {
		switch {
		case !markdown:
			s = wrap(width, s, indent)
		case item:
			s = "- " + s
		}
		lines = append(lines, s)
	}
	if p.Heading != "" && markdown {
		lines = append(lines, "## "+p.Heading)
		if p.Table != nil || p.Words != nil {
			lines = append(lines, "")
		}
	} else if p.Heading != "" {
		add(p.Heading, "  ", false)
	}
	indent := ""
	if p.Table != nil && markdown {
		lines = append(lines, p.Table.RenderMarkdown())
	} else if p.Table != nil {
		lines, indent = append(lines, p.Table.Render()), "    "
	}
	for _, s := range p.Sentences {
		if markdown || !p.list {
			add(s, indent, p.list)
			continue
		}
		// A sentence of several begins a line.
		for i, one := range strings.SplitAfter(s, ". ") {
			before := "  "[:2*min(i, 1)]
			lines = append(lines, before+wrap(width-len(before), one, before+"  "))
		}
	}
	for _, w := range p.Words {
		add(w.Word+": "+w.Means, "  ", true)
	}
	for _, s := range p.steps {
		lines = append(lines, wrap(width, s.what, "  "), "    "+wrap(width-4, s.command, "        "))
	}
	return strings.Join(lines, "\n")
}

// About is the machine and its devices.
func About(r *Report) []Piece { return piecesOf(r, (*document).about) }

// Abilities is what the devices can do, and the limits of the machine.
func Abilities(r *Report) []Piece { return piecesOf(r, (*document).abilities) }

// Figures is what was measured: all cases and comparisons, and what their words mean.
func Figures(r *Report) []Piece { return piecesOf(r, (*document).figures) }

func piecesOf(r *Report, add func(*document, *Report)) []Piece {
	p := document{markdown: true, width: math.MaxInt}
	add(&p, r)
	return p.pieces
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

// devices is the table of devices.
func devices(r *Report) grid {
	g := grid{
		title: "Devices", keys: []string{"device"},
		columns: []string{"name", "driver", "memory", "free", "granularity", "recommended", "arch"},
	}
	for _, d := range r.Devices {
		row := gridRow{cells: map[string]string{
			"device": d.Open, "name": d.Name, "driver": string(d.Driver), "memory": size.Approx(d.Memory), "free": ifKnown(d.Free, size.Approx),
			"granularity": ifKnown(d.Granularity, size.Format), "recommended": ifKnown(d.Recommended, size.Format), "arch": string(d.Arch),
		}}
		if row.cells["recommended"] == row.cells["granularity"] {
			row.cells["recommended"] = ""
		}
		if d.Reason != "" {
			row.notes = []string{string(d.Reason)}
		}
		g.rows = append(g.rows, row)
	}
	return g
}

// features has a column for each device. Neighbours with the same features, as
// the host's devices are, share a column. A feature that a device does not know has an empty cell.
func features(r *Report) grid {
	g := grid{title: "Features", keys: []string{"feature"}}
	for list := r.Devices; len(list) > 0; {
		n := 1
		for n < len(list) && slices.EqualFunc(list[n].Features, list[0].Features, sameFeature) {
			n++
		}
		column := list[0].Open
		if n > 1 {
			column += " to " + list[n-1].Open
		}
		g.columns = append(g.columns, column)
		for _, d := range list[:n] {
			for _, f := range d.Features {
				i := slices.IndexFunc(g.rows, func(row gridRow) bool { return row.cells["feature"] == f.Name })
				if i < 0 {
					i, g.rows = len(g.rows), append(g.rows, gridRow{cells: map[string]string{"feature": f.Name}})
				}
				g.rows[i].cells[column] = cmp.Or(yesNo(f.Supported), "unknown")
				if f.Supported == nil {
					g.rows[i].notes = union(g.rows[i].notes, []string{string(f.Reason)})
				}
			}
		}
		list = list[n:]
	}
	return g
}

func sameFeature(a, b Feature) bool {
	return a.Name == b.Name && yesNo(a.Supported) == yesNo(b.Supported)
}

func limits(r *Report) grid {
	g := grid{title: "Limits", keys: []string{"limit"}, columns: []string{"value"}}
	for _, l := range r.Host.Limits {
		g.rows = append(g.rows, gridRow{cells: map[string]string{"limit": l.Name, "value": cmp.Or(exact(l.Value), string(l.Reason))}})
	}
	return g
}

// notHere names the cases that this machine cannot do, by their reasons.
func notHere(r *Report) (list []string) {
	waived := without(r.Cases, func(c Case) bool { return c.Status != Waived })
	for _, g := range GroupBy(waived, func(c Case) string { return string(c.Reason) }) {
		var ids []string
		for _, c := range g.Of {
			ids = append(ids, c.ID)
		}
		list = append(list, fmt.Sprintf("Not on this machine: %s (%s).", some(ids), g.Key))
	}
	return list
}

// tally says how many there are of each, of those that there are: 1 equal, 2 slower.
func tally[T ~string](count map[T]int, of ...T) string {
	var list []string
	for _, x := range of {
		if count[x] > 0 {
			list = append(list, fmt.Sprintf("%d %s", count[x], x))
		}
	}
	return strings.Join(list, ", ")
}

// counted is a number of things.
func counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprint(n, " ", what, "s")
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
	s := fmt.Sprintf("%s: %d passed", counted(len(r.Cases), "case"), count[Passed])
	if others := tally(count, Failed, Error, Waived, Interrupted); others != "" {
		s += ", " + others
	}
	s += fmt.Sprintf("; %s; %s verified, %s wrong; %.1f s", counted(made(r), "comparison"), size.Approx(checked), counted(int(wrong), "byte"), r.Run.Seconds)
	if r.Run.Interrupted {
		s += "; interrupted, so this is not all"
	}
	if r.Run.Error != "" {
		s += "; " + string(r.Run.Error)
	}
	return s
}

// made is how many comparisons this machine could make.
func made(r *Report) (n int) {
	for _, c := range r.Comparisons {
		if c.Verdict != stat.Waived && c.Verdict != stat.NotMeasured {
			n++
		}
	}
	return n
}

// manyIntervals is how many 95 % intervals there are, at least, if one of them is likely
// to miss by chance.
const manyIntervals = 20

// chance returns how many verdicts are firm, and, of many, how many may be wrong by chance.
func chance(r *Report) string {
	count := map[stat.Verdict]int{}
	firm, intervals := 0, 0
	for _, c := range r.Comparisons {
		if c.ofRuns() {
			continue // what differs between two runs is not chance
		}
		if c.interval() != "" {
			intervals++
		}
		if c.Verdict.Firm() {
			firm++
		}
		count[c.Verdict]++
	}
	if intervals == 0 {
		return ""
	}
	s := fmt.Sprintf("%d of %d ratios have a firm verdict", firm, intervals)
	if firm > 0 {
		s += " (" + tally(count, stat.Equal, stat.Slower, stat.Faster) + ")"
	}
	s += "."
	if intervals >= manyIntervals {
		s += fmt.Sprintf(" On average at most %.1f of %d intervals at 95 %% miss the true ratio by chance.", float64(intervals)/20, intervals)
	}
	return s
}

// digits prints a number with so many digits, or more if its integer part has more.
func digits(x float64, n int) string {
	if math.Abs(x) >= math.Pow10(n) {
		return strconv.FormatFloat(x, 'f', 0, 64)
	}
	return strconv.FormatFloat(x, 'g', n, 64)
}

func fourDigits(x float64) string { return digits(x, 4) }

// formatTime prints nanoseconds in the unit that fits.
func formatTime(ns float64) string {
	switch {
	case ns < 1e3:
		return digits(ns, 3) + " ns"
	case ns < 1e6:
		return fourDigits(ns/1e3) + " us"
	case ns < 1e9:
		return fourDigits(ns/1e6) + " ms"
	}
	return fourDigits(ns/1e9) + " s"
}
