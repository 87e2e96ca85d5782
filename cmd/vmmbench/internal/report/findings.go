package report

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/cuvmm/cuvmm/cmd/internal/size"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/stat"
)

// Findings says in sentences what was found: the verdicts, growth in place against what a program would do otherwise,
// how much of its link a copy gets, and what is in one of two runs only. There may be none.
func Findings(r *Report) []string {
	list := verdictsFound(r)
	for _, c := range r.Cases {
		if c.Axes.text(axisMem) == "vmm" && c.Status == Passed && c.Stats != nil && c.Stats.Growth != nil && c.Stats.Steps > 1 { // one step is no growth
			list = append(list, growthFound(r, c)...)
		}
	}
	return slices.Concat(list, linksFound(r), runsFound(r.Baseline))
}

// few is the number of cases up to which a sentence names each.
const few = 3

// some names the cases if they are few, else the first and how many there are.
func some(ids []string) string {
	if len(ids) > few {
		return fmt.Sprintf("%s and %d more", ids[0], len(ids)-1)
	}
	return strings.Join(ids, ", ")
}

// verdictsFound has how many comparisons of each command have a verdict, and which is the slowest.
func verdictsFound(r *Report) (list []string) {
	made := without(r.Comparisons, func(c Comparison) bool {
		host := Contender(c.A) == "none" // through which copies without a grant go
		return !c.ofRuns() && (host || c.Verdict == stat.Waived)
	})
	for _, of := range GroupBy(made, func(c Comparison) string {
		if c.ofRuns() {
			return "New run against old"
		}
		return "Memory that grows against other memory, " + CommandOf(c.B)
	}) {
		var counts []string
		for _, v := range stat.Verdicts() {
			if n := len(without(of.Of, func(c Comparison) bool { return c.Verdict != v })); n > 0 {
				counts = append(counts, fmt.Sprint(n, " ", v))
			}
		}
		s := fmt.Sprintf("%s, within %g %%: %s", of.Key, 100*of.Of[0].Margin, strings.Join(counts, ", "))
		slower := without(of.Of, func(c Comparison) bool { return c.Verdict != stat.Slower })
		if len(slower) > 0 {
			s += "; the slowest is " + slices.MaxFunc(slower, func(a, b Comparison) int { return cmp.Compare(*a.Ratio, *b.Ratio) }).says()
		}
		list = append(list, s+".")
	}
	return list
}

// says is a comparison in words.
func (c Comparison) says() string {
	return c.name() + " " + times(*c.Ratio, c.Low, c.High, c.Level, fourDigits)
}

// name is what a table calls a comparison.
func (c Comparison) name() string {
	if c.ofRuns() {
		return c.B
	}
	return c.ID
}

// growthFound has the time and the peak of growth in place beside those of what it is compared with.
func growthFound(r *Report, vmm Case) []string {
	cases := byID(r.Cases)
	took, peaks := "", ""
	for _, x := range r.Comparisons {
		other := cases[x.A]
		if x.B != vmm.ID || x.ofRuns() || x.Ratio == nil || other.Stats == nil || other.Stats.Growth == nil {
			continue
		}
		took += "; " + Contender(x.A) + " " + times(*x.Ratio, x.High, x.Low, x.Level, inverse)
		if !x.Verdict.Firm() {
			took += ", " + string(x.Verdict)
		}
		if other.Stats.Peak != vmm.Stats.Peak {
			peaks += fmt.Sprintf(", %s with %s", size.Approx(other.Stats.Peak), Contender(x.A))
		}
	}
	if took == "" {
		return nil
	}
	return []string{fmt.Sprintf("Growth in place (%s) takes %s%s. The peak is %s%s; the pointer stays.",
		vmm.ID, formatTime(vmm.Stats.Median), took, size.Approx(vmm.Stats.Peak), peaks)}
}

// runsFound says what two runs do not share.
func runsFound(b *Baseline) (list []string) {
	if b == nil {
		return nil
	}
	if b.OldRuns*b.NewRuns == 1 {
		list = append(list, "Of one run each, an interval knows only what chance did within the runs: between them clocks, temperature and where memory lies may differ, too. Give three reports of each, as old1.json,old2.json,old3.json, or --runs 3.")
	}
	if len(b.OnlyOld) > 0 {
		list = append(list, fmt.Sprintf("Only in the old run: %s.", some(b.OnlyOld)))
	}
	if len(b.OnlyNew) > 0 {
		list = append(list, fmt.Sprintf("Only in the new run: %s.", some(b.OnlyNew)))
	}
	return list
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

// summary is how the cases ended, and how much was checked.
func summary(r *Report) string {
	var checked, wrong uint64
	for _, c := range r.Cases {
		if c.Verify != nil {
			checked += c.Verify.Bytes
			wrong += c.Verify.Errors
		}
	}
	s := fmt.Sprintf("Cases: %d passed", r.Count()[Passed])
	for _, status := range statuses[1:] { // only if there are any
		if n := r.Count()[status]; n > 0 {
			s += fmt.Sprintf(", %d %s", n, status)
		}
	}
	made := without(r.Comparisons, func(c Comparison) bool { return c.Verdict == stat.Waived || c.Verdict == stat.NotMeasured })
	s += fmt.Sprintf("; comparisons: %d; bytes: %s verified, %d wrong; %.1f s", len(made), size.Approx(checked), wrong, r.Run.Seconds)
	if r.Run.Interrupted {
		s += "; interrupted, so this is not all"
	}
	if r.Run.Error != "" {
		s += "; " + string(r.Run.Error)
	}
	return s
}

// fileFlags are the flags that name files or say how progress is shown: they change no figure.
var fileFlags = regexp.MustCompile(` (?:-o|--output|--resume|--progress)[ =]?\S+`)

// Flags are the arguments of a run without fileFlags.
func (r Run) Flags() []string {
	return strings.Fields(fileFlags.ReplaceAllString(" "+strings.Join(r.Args, " "), ""))
}
