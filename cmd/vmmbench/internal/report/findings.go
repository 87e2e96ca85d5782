package report

import (
	"fmt"
	"strings"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/stat"
)

// Findings says in sentences what was found: growth in place against allocating and
// copying, and copies in memory that grows against others. There may be none.
func Findings(r *Report) []string {
	cases := byID(r.Cases)
	var list []string
	told := map[string]bool{} // of the ways to grow in place, only the first is named beside a rival
	var copies copyCount
	for _, c := range r.Comparisons {
		a, b := cases[c.A], cases[c.B]
		switch {
		case c.ofRuns() || c.Ratio == nil || a.Stats == nil || b.Stats == nil || b.Axes.text("mem") != "vmm":
		case rivalName(a) != "" && (a.Stats.Growth == nil || a.Stats.Growth.Steps != 1): // one step is no growth
			if to := rivalName(a) + b.growthText(); !told[to] {
				told[to] = true
				list = append(list, growthFinding(c, a, b))
			}
		case b.Axes.Of("direction") != nil && b.Axes.Of("host") != nil: // a copy with the host, or within a device
			copies.add(c)
		}
	}
	return append(list, copies.sentences()...)
}

// rivalName is a way to grow without this library in words; empty for other cases.
func rivalName(c Case) string {
	mem := c.Axes.text("mem")
	switch {
	case mem == "mallocAsync-copy":
		return "from the driver's pool, with a copy each time,"
	case strings.HasSuffix(mem, "-copy"):
		return "allocating and copying"
	case mem == "mremap":
		return "mremap"
	}
	return ""
}

// growthText returns what a case grew to and how.
func (c Case) growthText() string {
	s := fmt.Sprintf("to %s by %s", c.Axes.text("size"), c.Axes.text("step"))
	switch c.Axes.text("write") {
	case "upload":
		s += ", with uploads,"
	case "none":
		s += ", without writing,"
	}
	if busy := c.Axes.text("busy"); busy != "0" && busy != "-" {
		s += fmt.Sprintf(" beside %s busy streams", busy)
	}
	return s
}

// growthFinding compares growth in place with growth by other means.
func growthFinding(c Comparison, a, b Case) string {
	s := fmt.Sprintf("Growing in place %s took %s; %s %s", b.growthText(), formatTime(b.Stats.Median), rivalName(a), formatTime(a.Stats.Median))
	if c.Low == nil || c.High == nil {
		return s + "."
	}
	times := func(x float64) string { return fmt.Sprintf("%.3g", 1/x) }
	return s + fmt.Sprintf(" (%s times as long; 95 %% %s to %s).", times(*c.Ratio), times(*c.High), times(*c.Low))
}

// copyCount counts the verdicts on copies.
type copyCount struct {
	all, equal, open int
	margin           float64
	differ           []string
}

func (n *copyCount) add(c Comparison) {
	n.all++
	n.margin = c.Margin
	switch c.Verdict {
	case stat.Equal:
		n.equal++
	case stat.Slower, stat.Faster:
		of, _, _ := strings.Cut(c.ID, ":")
		n.differ = append(n.differ, fmt.Sprintf("%s in %s takes %.3g times as long as in %s (95 %% %.3f to %.3f)",
			strings.TrimPrefix(of, "bw/"), lastPart(c.B), *c.Ratio, lastPart(c.A), *c.Low, *c.High))
	default:
		n.open++
	}
}

func (n *copyCount) sentences() []string {
	switch {
	case n.all == 0:
		return nil
	case n.open == n.all:
		return []string{fmt.Sprintf("Whether copies take as long in memory that grows as in other memory, within %g %%, cannot be told of any of the %d: this machine is too noisy for so few samples.", 100*n.margin, n.all)}
	}
	s := fmt.Sprintf("Of %d copies in memory that grows, %d take as long as in other memory, within %g %%", n.all, n.equal, 100*n.margin)
	if n.open > 0 {
		s += fmt.Sprintf("; of %d it cannot be told, because this machine is too noisy for so few samples", n.open)
	}
	list := []string{s + "."}
	for _, d := range n.differ {
		list = append(list, strings.ToUpper(d[:1])+d[1:]+".")
	}
	return list
}

// runsFinding returns what the comparison of two runs found.
func runsFinding(r *Report) []string {
	count := map[stat.Verdict]int{}
	var worst *Comparison
	all, margin := 0, 0.0
	// Verdicts are counted; of what is slower, the worst has its figures.
	for i, c := range r.Comparisons {
		if !c.ofRuns() {
			continue
		}
		all++
		margin = c.Margin
		count[c.Verdict]++
		if c.Verdict == stat.Slower && (worst == nil || *c.Ratio > *worst.Ratio) {
			worst = &r.Comparisons[i]
		}
	}
	var parts []string
	for _, v := range stat.Verdicts() {
		if count[v] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", count[v], v))
		}
	}
	s := fmt.Sprintf("%d cases are in both runs", all)
	if len(parts) > 0 {
		s += fmt.Sprintf(". The new one against the old one, within %g %%: %s", 100*margin, strings.Join(parts, ", "))
	}
	list := []string{s + "."}
	if worst != nil {
		list = append(list, fmt.Sprintf("The most, %s takes %.3g times as long (95 %% %.3f to %.3f).", worst.B, *worst.Ratio, *worst.Low, *worst.High))
	}
	if b := r.Baseline; b != nil && b.OldRuns*b.NewRuns == 1 {
		list = append(list, "Two runs may differ by more than their intervals show: in clocks, in temperature, in where memory lies. Give several reports of each, as old1.json,old2.json,old3.json, and their intervals contain that.")
	}
	if b := r.Baseline; b != nil {
		for _, x := range []struct {
			run string
			ids []string
		}{{"old", b.OnlyOld}, {"new", b.OnlyNew}} {
			if len(x.ids) > 0 {
				list = append(list, fmt.Sprintf("Only in the %s run: %s.", x.run, some(x.ids)))
			}
		}
	}
	return list
}

// some names the cases if they are few, else their number and the first.
func some(ids []string) string {
	if len(ids) > 3 {
		return fmt.Sprintf("%d cases, the first is %s", len(ids), ids[0])
	}
	return strings.Join(ids, ", ")
}
