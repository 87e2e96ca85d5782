package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/cuvmm/cuvmm/cmd/internal/size"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/stat"
)

// Headline is the answer of a run: a sentence for copies, one for copies between devices and one for
// growth, as far as it has measured them. Findings has the details.
func Headline(r *Report) (list []string) {
	for _, between := range []bool{false, true} {
		if s := copyHeadline(r, between); s != "" {
			list = append(list, s)
		}
	}
	groups := growthGroups(r)
	slices.SortStableFunc(groups, func(a, b Group[Case]) int { return cmp.Compare(b.Of[0].Bytes, a.Of[0].Bytes) }) // the largest says most
	for _, g := range groups {
		if s := growthHeadline(r, g); s != "" {
			list = append(list, s)
			break
		}
	}
	return slices.Concat(list, linkFindings(r), floorFindings(r))
}

// few is the number of cases up to which a sentence names each.
const few = 3

// copyHeadline says how copies in memory that grows compare with others: those within a device and with
// the host, or those between devices.
func copyHeadline(r *Report, between bool) string {
	cases, all, equal, margin, host := byID(r.Cases), 0, 0, 0.0, 0.0
	named := map[stat.Verdict][]string{}
	for _, c := range r.Comparisons {
		b := cases[c.B]
		isCopy := b.Axes.Of(axisFrom) != nil || b.Axes.Of("direction") != nil && b.Axes.Of("host") != nil
		if c.ofRuns() || c.Ratio == nil || b.Axes.text(axisMem) != "vmm" || !isCopy || between != (b.Axes.Of(axisFrom) != nil) {
			continue
		}
		if Contender(c.A) == "none" { // which goes through the host
			host = max(host, 1 / *c.Ratio)
			continue
		}
		all++
		margin = 100 * c.Margin
		name, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(c.ID, "bw/"), "p2p/"), ": ")
		switch {
		case c.Verdict == stat.Equal:
			equal++
		case !c.Verdict.Firm():
			named[stat.TooNoisy] = append(named[stat.TooNoisy], name)
		default:
			named[c.Verdict] = append(named[c.Verdict], fmt.Sprintf("%s (%s times as long, %s)", name, fourDigits(*c.Ratio), c.within()))
		}
	}
	if all == 0 {
		return ""
	}
	what := "Copies to and from memory that grows"
	if between {
		what = "Copies between devices, in memory that grows"
	}
	s := fmt.Sprintf("%s: %d of %d as fast as in ordinary memory, within %g %%", what, equal, all, margin)
	for _, x := range []struct {
		verdict stat.Verdict
		words   string
	}{{stat.Slower, "slower"}, {stat.Faster, "faster"}, {stat.TooNoisy, "not certain"}} {
		if list := named[x.verdict]; len(list) > few {
			s += fmt.Sprintf("; %d %s", len(list), x.words)
		} else if len(list) > 0 {
			s += fmt.Sprintf("; %d %s: %s", len(list), x.words, strings.Join(list, ", "))
		}
	}
	if host > 0 {
		s += fmt.Sprintf("; without a grant they go through the host and take up to %s times as long", threeDigits(host))
	}
	return s + "."
}

// growthHeadline has the time and the peak of growth in place beside those of its rivals, and the time of
// one allocation.
func growthHeadline(r *Report, g Group[Case]) string {
	of := func(end string) *Case { return contender(g, end) }
	i := slices.IndexFunc(g.Of, func(c Case) bool { return c.Axes.text(axisMem) == "vmm" })
	if i < 0 || g.Of[i].Stats.Steps == 1 { // one step is no growth
		return ""
	}
	vmm := g.Of[i]
	var sure, open, peaks []string
	usual := slices.ContainsFunc(rivals, func(x rival) bool { return x.usual && of(x.mem) != nil })
	for _, rival := range rivals {
		c := of(rival.mem)
		if c == nil {
			continue
		}
		x := growthAgainst(r, *c, vmm)
		if usual && !rival.usual && (x == nil || x.Verdict != stat.Slower) {
			continue
		}
		if rival.usual {
			peaks = append(peaks, fmt.Sprintf(", %s with %s", size.Approx(c.Stats.Peak), rival.short))
		}
		switch {
		case x == nil || x.Low == nil || x.High == nil:
			open = append(open, fmt.Sprintf("against %s not certain: it took %s, too few samples", rival.short, formatTime(c.Stats.Median)))
		case !x.Verdict.Firm():
			open = append(open, fmt.Sprintf("against %s not certain: %s times as fast, %s", rival.short, threeDigits(1 / *x.Ratio), x.turned()))
		case x.Verdict == stat.Equal:
			sure = append(sure, "as fast as "+rival.short)
		case x.Verdict == stat.Slower:
			sure = append(sure, fmt.Sprintf("%s times as long as %s (%s)", threeDigits(*x.Ratio), rival.short, x.within()))
		default:
			sure = append(sure, fmt.Sprintf("%s times as fast as %s (%s)", threeDigits(1 / *x.Ratio), rival.short, x.turned()))
		}
	}
	if len(sure)+len(open) == 0 {
		return ""
	}
	s := fmt.Sprintf("Growth to %s in place: %s, %s", g.Key, formatTime(vmm.Stats.Median), strings.Join(append(sure, open...), "; "))
	if c := of("vmm-whole"); c != nil {
		if x := growthAgainst(r, *c, vmm); x != nil && x.Verdict == stat.Slower {
			s += fmt.Sprintf("; %s times as long as all at once, where the size is known", threeDigits(*x.Ratio))
		}
	}
	return fmt.Sprintf("%s. The peak is %s%s; the pointer stays.", s, size.Approx(vmm.Stats.Peak), strings.Join(peaks, ""))
}
