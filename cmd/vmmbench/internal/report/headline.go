package report

import (
	"cmp"
	"fmt"
	"math"
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
	return append(list, floorFindings(r)...)
}

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
			named[c.Verdict] = append(named[c.Verdict], fmt.Sprintf("%s (%s times as long, %s)", name, ofCopies(*c.Ratio), c.within()))
		}
	}
	if all == 0 {
		return ""
	}
	what := "Copies in memory that grows"
	if between {
		what = "Copies between devices in memory that grows"
	}
	if len(named[stat.TooNoisy]) == all {
		return fmt.Sprintf("%s: whether they are as fast as in other memory, within %g %%, is not certain in any of %d.", what, margin, all)
	}
	s := fmt.Sprintf("%s: as fast as in other memory, within %g %%, in %d of %d", what, margin, equal, all)
	for _, x := range []struct {
		verdict stat.Verdict
		words   string
	}{{stat.Slower, "slower"}, {stat.Faster, "faster"}, {stat.TooNoisy, "not certain"}} {
		if list := named[x.verdict]; len(list) > 0 {
			s += fmt.Sprintf("; %s: %s", x.words, some(list))
		}
	}
	if host > 0 {
		s += fmt.Sprintf("; without a grant, through the host, up to %s times as long", threeDigits(host))
	}
	return s + "."
}

// growthHeadline compares growth in place with rivals, and its peak with the largest of theirs.
func growthHeadline(r *Report, g Group[Case]) string {
	i := slices.IndexFunc(g.Of, func(c Case) bool { return c.Axes.text(axisMem) == "vmm" })
	if i < 0 || g.Of[i].Stats.Steps == 1 { // one step is no growth
		return ""
	}
	vmm, least, peak := g.Of[i], uint64(math.MaxUint64), uint64(0)
	var sure, open []string
	for _, rival := range rivals {
		k := slices.IndexFunc(g.Of, func(c Case) bool { return strings.HasSuffix(c.Axes.text(axisMem), rival.mem) })
		if k < 0 {
			continue
		}
		least, peak = min(least, g.Of[k].Stats.Peak), max(peak, g.Of[k].Stats.Peak)
		x := growthAgainst(r, g.Of[k], vmm)
		switch {
		case !rival.usual && (x == nil || x.Verdict != stat.Slower):
		case x == nil || x.Low == nil || x.High == nil:
			open = append(open, fmt.Sprintf("against %s not certain: %s and %s, too few samples",
				rival.short, formatTime(vmm.Stats.Median), formatTime(g.Of[k].Stats.Median)))
		case !x.Verdict.Firm():
			open = append(open, fmt.Sprintf("against %s not certain: %s times as fast, %s",
				rival.short, threeDigits(1 / *x.Ratio), x.turned()))
		case x.Verdict == stat.Equal:
			sure = append(sure, "as fast as "+rival.short)
		case x.Verdict == stat.Slower:
			sure = append(sure, fmt.Sprintf("%s times as long as %s (%s)", threeDigits(*x.Ratio), rival.short, x.within()))
		default:
			sure = append(sure, fmt.Sprintf("%s times as fast as %s (%s)", threeDigits(1 / *x.Ratio), rival.short, x.turned()))
		}
	}
	if peak == 0 {
		return ""
	}
	theirs := size.Approx(peak)
	if low := size.Approx(least); low != theirs {
		theirs = low + " to " + theirs
	}
	return fmt.Sprintf("Growth to %s in place: %s; the peak is %s instead of %s; the pointer stays.", g.Key,
		strings.Join(append(sure, open...), "; "), size.Approx(vmm.Stats.Peak), theirs)
}
