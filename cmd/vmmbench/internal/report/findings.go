package report

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cuvmm/cuvmm/cmd/internal/size"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/stat"
)

// Findings says in sentences what was found: growth in place against what a program would do
// otherwise, and copies in memory that grows against others. There may be none.
func Findings(r *Report) []string {
	var list []string
	for _, g := range growthGroups(r) {
		if s := growthFinding(r, g); s != "" {
			list = append(list, s)
		}
	}
	return append(list, copyFindings(r)...)
}

type rival struct {
	mem, words, short string
	usual             bool
}

// rivals are ways to grow without this library, by the ends of their names: as the details call them, if
// they do, and as the headline does. The headline has what most programs do, and of the others those
// that are faster.
var rivals = []rival{
	{"-double", "Copying only when full, to twice the size,", "doubling", true},
	{"mmap-copy", "Allocating and copying at each step", "copying at each step", true},
	{"cuMemAlloc-copy", "Allocating and copying at each step", "copying at each step", true},
	{"mallocAsync-copy", "Copying at each step from the pool, which keeps its memory,", "copying at each step from the driver's pool", false},
	{"mremap", "mremap", "mremap", false},
	{"go-append", "", "append of Go", false},
}

// growthFinding says all of a group at once: what growing in place takes, what each rival
// takes, and what kept chunks give.
func growthFinding(r *Report, g Group[Case]) string {
	of := func(end string) *Case { return contender(g, end) }
	i := slices.IndexFunc(g.Of, func(c Case) bool { return c.Axes.text(axisMem) == "vmm" })
	if i < 0 || g.Of[i].Stats.Steps == 1 { // one step is no growth
		return ""
	}
	vmm := g.Of[i]
	name := g.Key
	if strings.Contains(name, ",") {
		name += ","
	}
	s := fmt.Sprintf("Growing to %s in place took %s, and %s at the peak; the pointer stays.", name, formatTime(vmm.Stats.Median), size.Approx(vmm.Stats.Peak))
	poolWins, some := false, false
	for _, rival := range rivals {
		c := of(rival.mem)
		if c == nil || rival.words == "" {
			continue
		}
		some = true
		took := formatTime(c.Stats.Median)
		if x := growthAgainst(r, *c, vmm); x != nil {
			if x.Low != nil && x.High != nil {
				took += fmt.Sprintf(", in pairs %.3g times as long (%s)", 1 / *x.Ratio, x.turned())
			}
			poolWins = poolWins || rival.mem == "mallocAsync-copy" && x.Verdict == stat.Slower
		}
		s += fmt.Sprintf(" %s took %s, and %s at the peak; the pointer %s.", rival.words, took, size.Approx(c.Stats.Peak), moves(c.Stats.Moves))
	}
	if !some {
		return ""
	}
	kept := of("vmm-kept")
	if kept != nil {
		s += fmt.Sprintf(" In place from kept chunks (vmm-kept, Device.SetReleaseThreshold) took %s.", formatTime(kept.Stats.Median))
	}
	if poolWins && !strings.HasPrefix(vmm.Axes.text("device"), "host") {
		return s + " The pool wins while there is little to copy, because it calls the driver less."
	}
	if poolWins {
		s += " The pool wins against new memory because it keeps its pages: here the first write to a new page costs more than copying an old one."
		if kept != nil {
			return s + " Kept chunks keep theirs, too, and are mapped anew."
		}
		s += " --mem vmm,kept,async has chunks that are kept as well."
	}
	return s
}

// contender is the case of a group whose memory has a name that ends so, nil if there is none.
func contender(g Group[Case], end string) *Case {
	i := slices.IndexFunc(g.Of, func(c Case) bool { return strings.HasSuffix(c.Axes.text(axisMem), end) })
	if i < 0 {
		return nil
	}
	return &g.Of[i]
}

// moves says how often a pointer moves.
func moves(n int) string {
	switch n {
	case 0:
		return "stays"
	case 1:
		return "moves once"
	}
	return fmt.Sprint("moves ", n, " times")
}

// step is a command to try, and what for.
type step struct{ what, command string }

// next are the commands to try after a run.
func next(r *Report) []step {
	open, all := 0, made(r)
	for _, c := range r.Comparisons {
		if c.Verdict == stat.TooNoisy || c.Verdict == stat.TooFew {
			open++
		}
	}
	without := fmt.Sprintf("%d of %d comparisons have no verdict", open, all)
	again := strings.Join(append([]string{"vmmbench"}, r.Run.Flags()...), " ")
	m := r.Run.Measure
	var list []step
	switch {
	case r.Run.Command == CommandCompare:
		return nil
	case m == nil:
		return []step{{"What fits the device, in half a minute:", "vmmbench"}}
	case r.Count()[Failed] > 0:
		return []step{{"Data were wrong. Once more, with every byte checked:", again + " --verify full"}}
	}
	flags := r.Run.Flags()
	has := func(names ...string) bool {
		return slices.ContainsFunc(flags, func(f string) bool { name, _, _ := strings.Cut(f, "="); return slices.Contains(names, name) })
	}
	switch pinned := has("--cpus", "--numa"); {
	case open == 0:
	case has("--for"):
		list = append(list, step{without + ", on CPUs near the GPU and without other work they may:", again})
	default:
		how := ", on CPUs near the GPU (--numa, --cpus) and without other work"
		if pinned {
			how = ", without other work"
		}
		list = append(list, step{without + ". With more samples" + how + " they may:", fmt.Sprintf("%s --samples %d --max-time %gs",
			strings.Join(append([]string{"vmmbench"}, withoutFlags(r.Run.Flags(), "--samples", "--max-time")...), " "), 3*m.Samples, 3*m.MaxTime/1e9)})
	}
	gpu := func(d Device) bool { return !strings.HasPrefix(d.Open, "host") }
	if len(r.Devices) > 0 && !slices.ContainsFunc(r.Devices, gpu) && !has("--device") {
		list = append(list, step{"This was host memory, for want of a GPU: copies lie within it. What fails in place of that:", again + " --device cuda:0"})
	}
	if r.Run.Command == CommandQuick {
		list = append(list, step{"The cases of NVIDIA's nvbandwidth, under their names:", "vmmbench --preset nvbandwidth"})
		list = append(list, step{"Many more cases; the same line goes on after an interruption:", "vmmbench --preset full -o full.ndjson --resume full.ndjson"})
	}
	return append(list, step{"A page with pictures and all figures:", again + " -o run.json && vmmbench report run.json -o run.html"})
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

// copyFindings say how copies with the host, or within a device, in memory that grows compare with
// others.
func copyFindings(r *Report) []string {
	cases, all, equal, margin := byID(r.Cases), 0, 0, 0.0
	var open, differ []string
	for _, c := range r.Comparisons {
		b := cases[c.B]
		if c.ofRuns() || c.Ratio == nil || b.Axes.text(axisMem) != "vmm" || b.Axes.Of("direction") == nil || b.Axes.Of("host") == nil {
			continue
		}
		all++
		margin = 100 * c.Margin
		name, _, _ := strings.Cut(strings.TrimPrefix(c.ID, "bw/"), ":")
		switch {
		case c.Verdict == stat.Equal:
			equal++
		case !c.Verdict.Firm():
			open = append(open, name)
		default:
			d := fmt.Sprintf("%s in %s takes %s times as long as in %s (%s).", name, Contender(c.B), fourDigits(*c.Ratio), Contender(c.A), c.within())
			differ = append(differ, strings.ToUpper(d[:1])+d[1:])
		}
	}
	switch {
	case all == 0:
		return nil
	case len(open) == all:
		return []string{fmt.Sprintf("Whether copies take as long in memory that grows as in other memory, within %g %%, cannot be told of any of the %d: this machine is too noisy for so few samples.", margin, all)}
	}
	s := fmt.Sprintf("Of %d copies in memory that grows, %d take as long as in other memory, within %g %%", all, equal, margin)
	if len(open) > 0 {
		s += fmt.Sprintf("; of %d it cannot be told, because this machine is too noisy for so few samples (%s)", len(open), some(open))
	}
	return append([]string{s + "."}, differ...)
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
	if b := r.Baseline; b != nil {
		if b.OldRuns*b.NewRuns == 1 {
			list = append(list, "Of one run each, an interval knows only what chance did within the runs: between them clocks, temperature and where memory lies may differ, too. Give three reports of each, as old1.json,old2.json,old3.json, or --runs 3.")
		}
		if len(b.OnlyOld) > 0 {
			list = append(list, fmt.Sprintf("Only in the old run: %s.", some(b.OnlyOld)))
		}
		if len(b.OnlyNew) > 0 {
			list = append(list, fmt.Sprintf("Only in the new run: %s.", some(b.OnlyNew)))
		}
	}
	return list
}

// some names the cases if they are few, else their number and the first.
func some(ids []string) string {
	if len(ids) > few {
		return fmt.Sprintf("%d cases, the first is %s", len(ids), ids[0])
	}
	return strings.Join(ids, ", ")
}

// growthGroups are the cases that grow to the same size by the same steps, under how far and by
// what steps. A case without figures is left out.
func growthGroups(r *Report) []Group[Case] {
	return GroupBy(without(r.Cases, func(c Case) bool {
		return c.Status != Passed || c.Stats == nil || c.Stats.Growth == nil
	}), growthName)
}

// growthName returns how far and by what steps a case grows, and what is unlike most.
func growthName(c Case) string {
	name := c.Axes.text("size") + " by " + c.Axes.text("step")
	switch write := c.Axes.text("write"); write {
	case "device", "-":
	case "none":
		name += ", nothing written"
	default:
		name += ", by " + write
	}
	if busy := c.Axes.text("busy"); busy != "0" && busy != "-" {
		name += ", busy " + busy
	}
	return name
}

// growthAgainst is the comparison of a case with growth in place, nil if there is none.
func growthAgainst(r *Report, c, vmm Case) *Comparison {
	i := slices.IndexFunc(r.Comparisons, func(x Comparison) bool {
		return x.A == c.ID && (vmm.ID == "" || x.B == vmm.ID) && !x.ofRuns() && x.Ratio != nil
	})
	if i < 0 {
		return nil
	}
	return &r.Comparisons[i]
}
