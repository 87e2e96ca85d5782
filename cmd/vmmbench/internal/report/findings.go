package report

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cuvmm/cuvmm/cmd/internal/size"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/stat"
)

// Findings says in sentences what was found: copies in memory that grows against others, growth in
// place against what a program would do otherwise, how much of its link a copy gets, and what
// differs from the baseline. There may be none.
func Findings(r *Report) []string {
	list := slices.Concat(copiesFound(r, false), copiesFound(r, true))
	for _, g := range growthGroups(r) {
		list = append(list, growthFound(r, g)...)
	}
	return slices.Concat(list, linksFound(r), floorsFound(r), runsFound(r))
}

// few is the number of cases up to which a sentence names each.
const few = 3

// some names the cases if they are few, else their number and the first.
func some(ids []string) string {
	if len(ids) > few {
		return fmt.Sprintf("%d cases, the first is %s", len(ids), ids[0])
	}
	return strings.Join(ids, ", ")
}

// counted is a number of things.
func counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprint(n, " ", what, "s")
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

// copiesFound says how copies in memory that grows compare with others: those within a device and with
// the host, or those between devices.
func copiesFound(r *Report, between bool) []string {
	cases, all, margin, host := byID(r.Cases), 0, 0.0, 0.0
	named := map[stat.Verdict][]string{}
	for _, c := range r.Comparisons {
		b := cases[c.B]
		pair := b.Axes.Of(axisFrom) != nil
		isCopy := pair || b.Axes.Of("direction") != nil && b.Axes.Of("host") != nil
		if c.ofRuns() || c.Ratio == nil || b.Axes.text(axisMem) != "vmm" || !isCopy || between != pair {
			continue
		}
		if Contender(c.A) == "none" { // which goes through the host
			host = max(host, 1 / *c.Ratio)
			continue
		}
		all++
		margin = 100 * c.Margin
		name, _, _ := strings.Cut(c.ID, ": ")
		if !c.Verdict.Firm() {
			named[stat.TooNoisy] = append(named[stat.TooNoisy], name)
			continue
		}
		named[c.Verdict] = append(named[c.Verdict], fmt.Sprintf("%s (%s times as long, %s)", name, fourDigits(*c.Ratio), c.within()))
	}
	if all == 0 {
		return nil
	}
	what := "Copies to and from memory that grows"
	if between {
		what = "Copies between devices, in memory that grows"
	}
	s := fmt.Sprintf("%s: %d of %d as fast as in ordinary memory, within %g %%", what, len(named[stat.Equal]), all, margin)
	for _, x := range []struct {
		verdict stat.Verdict
		words   string
	}{{stat.Slower, "slower"}, {stat.Faster, "faster"}, {stat.TooNoisy, "not certain"}} {
		if list := named[x.verdict]; len(list) > 0 {
			s += fmt.Sprintf("; %d %s", len(list), x.words)
			if len(list) <= few {
				s += ": " + strings.Join(list, ", ")
			}
		}
	}
	if host > 0 {
		s += fmt.Sprintf("; without a grant they go through the host and take up to %s times as long", threeDigits(host))
	}
	return []string{s + "."}
}

// growthGroups are the cases that grow to the same size by the same steps, under how far and by
// what steps. A case without figures is left out.
func growthGroups(r *Report) []Group[Case] {
	return GroupBy(without(r.Cases, func(c Case) bool {
		return c.Status != Passed || c.Stats == nil || c.Stats.Growth == nil
	}), func(c Case) string {
		name := c.Axes.text("size") + " by " + c.Axes.text("step")
		switch write := c.Axes.text("write"); write {
		case "device", "-":
		case "none":
			name += ", nothing written,"
		default:
			name += ", by " + write + ","
		}
		if busy := c.Axes.text("busy"); busy != "0" && busy != "-" {
			name += " busy " + busy + ","
		}
		return name
	})
}

// comparedWith is the comparison of a case with another one, any if that has no name, nil if
// there is none.
func comparedWith(r *Report, c Case, other string) *Comparison {
	i := slices.IndexFunc(r.Comparisons, func(x Comparison) bool {
		return x.A == c.ID && (other == "" || x.B == other) && !x.ofRuns() && x.Ratio != nil
	})
	if i < 0 {
		return nil
	}
	return &r.Comparisons[i]
}

// rivals are ways to grow without this library, by the ends of their names. Most programs do what is
// usual. Of the others only those are named that are faster.
var rivals = []struct {
	mem, words string
	usual      bool
}{
	{"-double", "doubling", true},
	{"mmap-copy", "copying at each step", true},
	{"cuMemAlloc-copy", "copying at each step", true},
	{"mallocAsync-copy", "copying at each step from the driver's pool", false},
	{"mremap", "mremap", false},
	{"go-append", "append of Go", false},
}

// growthFound has the time and the peak of growth in place beside those of its rivals, and the time of
// one allocation.
func growthFound(r *Report, g Group[Case]) []string {
	find := func(end string) *Case {
		i := slices.IndexFunc(g.Of, func(c Case) bool { return strings.HasSuffix("/"+c.Axes.text(axisMem), end) })
		if i < 0 {
			return nil
		}
		return &g.Of[i]
	}
	vmm := find("/vmm")
	if vmm == nil || vmm.Stats.Steps == 1 { // one step is no growth
		return nil
	}
	usual := false
	var sure, open, peaks []string
	for _, rival := range rivals {
		c := find(rival.mem)
		if c == nil {
			continue
		}
		x := comparedWith(r, *c, vmm.ID)
		if usual && !rival.usual && (x == nil || x.Verdict != stat.Slower) {
			continue
		}
		if rival.usual {
			usual = true
			peaks = append(peaks, fmt.Sprintf(", %s with %s", size.Approx(c.Stats.Peak), rival.words))
		}
		if says, firm := growthAgainst(x, c, rival.words); firm {
			sure = append(sure, says)
		} else {
			open = append(open, says)
		}
	}
	if len(sure)+len(open) == 0 {
		return nil
	}
	s := fmt.Sprintf("Growth to %s in place: %s, %s", g.Key, formatTime(vmm.Stats.Median), strings.Join(append(sure, open...), "; "))
	if c := find("/vmm-whole"); c != nil {
		if x := comparedWith(r, *c, vmm.ID); x != nil && x.Verdict == stat.Slower {
			s += fmt.Sprintf("; %s times as long as all at once, where the size is known", threeDigits(*x.Ratio))
		}
	}
	return []string{fmt.Sprintf("%s. The peak is %s%s; the pointer stays.", s, size.Approx(vmm.Stats.Peak), strings.Join(peaks, ""))}
}

// growthAgainst says how growth in place compares with a rival, and whether that is firm.
func growthAgainst(x *Comparison, rival *Case, words string) (says string, firm bool) {
	switch {
	case x == nil || x.Low == nil || x.High == nil:
		return fmt.Sprintf("against %s not certain: it took %s, too few samples", words, formatTime(rival.Stats.Median)), false
	case !x.Verdict.Firm():
		return fmt.Sprintf("against %s not certain: %s times as fast, %s", words, inverse(*x.Ratio), x.turned()), false
	case x.Verdict == stat.Equal:
		return "as fast as " + words, true
	case x.Verdict == stat.Slower:
		return fmt.Sprintf("%s times as long as %s (%s)", threeDigits(*x.Ratio), words, x.within()), true
	}
	return fmt.Sprintf("%s times as fast as %s (%s)", inverse(*x.Ratio), words, x.turned()), true
}

// runsFound returns what the comparison of two runs found.
func runsFound(r *Report) []string {
	b := r.Baseline
	if b == nil {
		return nil
	}
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
	s := fmt.Sprintf("%d cases are in both runs", all)
	if all > 0 {
		s += fmt.Sprintf(". The new one against the old one, within %g %%: %s", 100*margin, tally(count, stat.Verdicts()...))
	}
	list := []string{s + "."}
	if count[stat.TooNoisy]+count[stat.TooFew] > 0 {
		list = append(list, "Only more samples in each run, by --samples and --max-time, make an interval narrower.")
	}
	if worst != nil {
		list = append(list, fmt.Sprintf("The most, %s takes %.3g times as long (%s).", worst.B, *worst.Ratio, worst.within()))
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

// manyIntervals is how many 95 % intervals there are, at least, if one of them is likely
// to miss by chance.
const manyIntervals = 20

// chance returns how many verdicts are firm, and, of many, how many may be wrong by chance.
// The difference between two runs is not chance.
func chance(r *Report) string {
	count := map[stat.Verdict]int{}
	intervals := 0
	for _, c := range r.Comparisons {
		if !c.ofRuns() {
			count[c.Verdict]++
			if c.interval() != "" {
				intervals++
			}
		}
	}
	if intervals == 0 {
		return ""
	}
	s := fmt.Sprintf("%d of %d ratios have a firm verdict", count[stat.Equal]+count[stat.Slower]+count[stat.Faster], intervals)
	if firm := tally(count, stat.Equal, stat.Slower, stat.Faster); firm != "" {
		s += " (" + firm + ")"
	}
	s += "."
	if intervals >= manyIntervals {
		s += fmt.Sprintf(" On average at most %.1f of %d intervals at 95 %% miss the true ratio by chance.", float64(intervals)/20, intervals)
	}
	return s
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

// made is how many comparisons this machine could make.
func made(r *Report) int {
	return len(without(r.Comparisons, func(c Comparison) bool { return c.Verdict == stat.Waived || c.Verdict == stat.NotMeasured }))
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

// next are the commands to try after a run, and what for.
func next(r *Report) (list []Word) {
	flags := r.Run.Flags()
	again := strings.Join(append([]string{"vmmbench"}, flags...), " ")
	m := r.Run.Measure
	switch {
	case r.Run.Command == CommandCompare:
		return nil
	case m == nil:
		return []Word{{"What fits the device, in half a minute", "vmmbench"}}
	case r.Count()[Failed] > 0:
		return []Word{{"Data were wrong. Once more, with every byte checked", again + " --verify full"}}
	}
	open := without(r.Comparisons, func(c Comparison) bool { return c.Verdict != stat.TooNoisy && c.Verdict != stat.TooFew })
	given := func(name string) bool { return len(withoutFlags(flags, name)) < len(flags) }
	if len(open) > 0 && !given("--for") {
		more := append(withoutFlags(flags, "--samples", "--max-time"), fmt.Sprintf("--samples %d --max-time %gs", 3*m.Samples, 3*m.MaxTime/1e9))
		list = append(list, Word{
			fmt.Sprintf("%d of %d comparisons have no verdict. With more samples, on CPUs near the GPU (--numa, --cpus) and without other work they may", len(open), made(r)),
			"vmmbench " + strings.Join(more, " "),
		})
	}
	gpu := func(d Device) bool { return !strings.HasPrefix(d.Open, "host") }
	if len(r.Devices) > 0 && !slices.ContainsFunc(r.Devices, gpu) && !given("--device") {
		list = append(list, Word{"This was host memory, for want of a GPU: copies lie within it. What fails in place of that", again + " --device cuda:0"})
	}
	if r.Run.Command == CommandQuick {
		list = append(list, Word{"The cases of NVIDIA's nvbandwidth, under their names", "vmmbench --preset nvbandwidth"},
			Word{"Many more cases; the same line goes on after an interruption", "vmmbench --preset full -o full.ndjson --resume full.ndjson"})
	}
	return append(list, Word{"A page with pictures and all figures", again + " -o run.json && vmmbench report run.json -o run.html"})
}

// Flags are the arguments of a run without those that name files or say how progress is
// shown: they change no figure.
func (r Run) Flags() []string {
	return withoutFlags(r.Args, "-o", "--output", "--resume", "--progress")
}

// withoutFlags leaves out flags with their values.
func withoutFlags(args []string, names ...string) []string {
	kept := []string{}
	for i := 0; i < len(args); i++ {
		name, _, joined := strings.Cut(args[i], "=")
		switch {
		case slices.Contains(names, name):
			if !joined {
				i++ // the next one is its value
			}
		case slices.Contains(names, "-o") && strings.HasPrefix(name, "-o"): // -oFILE
		default:
			kept = append(kept, args[i])
		}
	}
	return kept
}
