package report

import (
	"cmp"
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
	list := append(copiesFound(r, false), copiesFound(r, true)...)
	for _, c := range r.Cases {
		if c.Axes.text(axisMem) == "vmm" && c.Status == Passed && c.Stats != nil && c.Stats.Growth != nil && c.Stats.Steps > 1 { // one step is no growth
			list = append(list, growthFound(r, c)...)
		}
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

// tally says how many comparisons have each verdict: 1 equal, 2 slower.
func tally(list []Comparison) string {
	var words []string
	for _, v := range stat.Verdicts() {
		if n := len(without(list, func(c Comparison) bool { return c.Verdict != v })); n > 0 {
			words = append(words, fmt.Sprint(n, " ", v))
		}
	}
	return strings.Join(words, ", ")
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
		verdict, name := c.Verdict, fmt.Sprintf("%s (%s times as long, %s)", c.B, fourDigits(*c.Ratio), c.within())
		if !verdict.Firm() {
			verdict = "not certain"
		}
		named[verdict] = append(named[verdict], name)
	}
	if all == 0 {
		return nil
	}
	what := "Copies to and from memory that grows"
	if between {
		what = "Copies between devices, in memory that grows"
	}
	s := fmt.Sprintf("%s: %d of %d as fast as in ordinary memory, within %g %%", what, len(named[stat.Equal]), all, margin)
	for _, verdict := range []stat.Verdict{stat.Slower, stat.Faster, "not certain"} {
		if list := named[verdict]; len(list) > 0 {
			s += fmt.Sprintf("; %d %s: %s", len(list), verdict, some(list))
		}
	}
	if host > 0 {
		s += fmt.Sprintf("; without a grant they go through the host and take up to %s times as long", threeDigits(host))
	}
	return []string{s + "."}
}

// growthFound has the time and the peak of growth in place beside those of what it is compared with.
func growthFound(r *Report, vmm Case) []string {
	cases := byID(r.Cases)
	times, peaks := "", ""
	for _, x := range r.Comparisons {
		other := cases[x.A]
		if x.B != vmm.ID || x.ofRuns() || x.Ratio == nil || other.Stats == nil || other.Stats.Growth == nil {
			continue
		}
		name, certain := Contender(x.A), ""
		if !x.Verdict.Firm() {
			certain = ", " + string(x.Verdict)
		}
		times += fmt.Sprintf("; %s takes %s times as long (%s%s)", name, inverse(*x.Ratio), x.turned(), certain)
		if other.Stats.Peak != vmm.Stats.Peak {
			peaks += fmt.Sprintf(", %s with %s", size.Approx(other.Stats.Peak), name)
		}
	}
	if times == "" {
		return nil
	}
	took := formatTime(vmm.Stats.Median)
	return []string{fmt.Sprintf("Growth in place (%s) takes %s%s. The peak is %s%s; the pointer stays.", vmm.ID, took, times, size.Approx(vmm.Stats.Peak), peaks)}
}

// runsFound returns what the comparison of two runs found.
func runsFound(r *Report) []string {
	b := r.Baseline
	if b == nil {
		return nil
	}
	of := without(r.Comparisons, func(c Comparison) bool { return !c.ofRuns() })
	list := []string{fmt.Sprintf("%d cases are in both runs.", len(of))}
	if len(of) > 0 {
		list[0] += fmt.Sprintf(" The new one against the old one, within %g %%: %s.", 100*of[0].Margin, tally(of))
	}
	// Of what is slower, the worst has its figures.
	slower := without(of, func(c Comparison) bool { return c.Verdict != stat.Slower })
	if len(slower) > 0 {
		worst := slices.MaxFunc(slower, func(a, b Comparison) int { return cmp.Compare(*a.Ratio, *b.Ratio) })
		list = append(list, fmt.Sprintf("The most, %s takes %.3g times as long (%s).", worst.B, *worst.Ratio, worst.within()))
	}
	if slices.ContainsFunc(of, Comparison.open) {
		list = append(list, "Only more samples in each run, by --samples and --max-time, make an interval narrower.")
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

// open reports whether more samples may give a verdict.
func (c Comparison) open() bool { return c.Verdict == stat.TooNoisy || c.Verdict == stat.TooFew }

// manyIntervals is how many 95 % intervals there are, at least, if one of them is likely
// to miss by chance.
const manyIntervals = 20

// chance returns how many verdicts are firm, and, of many, how many may be wrong by chance.
// The difference between two runs is not chance.
func chance(r *Report) string {
	list := without(r.Comparisons, func(c Comparison) bool { return c.ofRuns() || c.Low == nil })
	firm := without(list, func(c Comparison) bool { return !c.Verdict.Firm() })
	if len(list) == 0 {
		return ""
	}
	s := fmt.Sprintf("%d of %d ratios have a firm verdict", len(firm), len(list))
	if len(firm) > 0 {
		s += " (" + tally(firm) + ")"
	}
	s += "."
	if len(list) >= manyIntervals {
		s += fmt.Sprintf(" On average at most %.1f of %d intervals at 95 %% miss the true ratio by chance.", float64(len(list))/20, len(list))
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

// summary is how the cases ended, and how much was checked.
func summary(r *Report) string {
	var checked, wrong uint64
	for _, c := range r.Cases {
		if c.Verify != nil {
			checked += c.Verify.Bytes
			wrong += c.Verify.Errors
		}
	}
	s := fmt.Sprintf("%s: %d passed", counted(len(r.Cases), "case"), r.Count()[Passed])
	for _, status := range statuses[1:] { // only if there are any
		if n := r.Count()[status]; n > 0 {
			s += fmt.Sprintf(", %d %s", n, status)
		}
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
	open := without(r.Comparisons, func(c Comparison) bool { return !c.open() })
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
