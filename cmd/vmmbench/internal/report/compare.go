package report

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/stat"
)

// Baseline is an earlier run that a report was compared with. Its comparisons are those
// whose A and B are one name: A is the case of the baseline.
type Baseline struct {
	Run     Run      `json:"run"`
	New     *Run     `json:"new_run"` // that of the cases, if another has compared them
	Host    Host     `json:"host"`
	Devices []Device `json:"devices"`
	OldRuns int      `json:"old_runs"` // of how many reports the comparisons are
	NewRuns int      `json:"new_runs"`
	OnlyOld []string `json:"only_old"` // cases that a new run does not have
	OnlyNew []string `json:"only_new"` // cases that an old run does not have
}

// CompareOptions say how two runs are compared.
type CompareOptions struct {
	Margin    float64 // how far from 1 a ratio may be and still count as equal
	AnyDevice bool    // also runs on different devices
	AnyDriver bool    // also runs with different drivers
	Once      bool    // one run of each can tell a difference
}

// ErrDifferent says that two reports may not be compared: they are of different devices or
// drivers, or cases of one name did not do the same work.
var ErrDifferent = errors.New("not comparable")

// Compare compares the cases of runs that have the same name: each old one with each new one, and
// the interval of a case contains theirs. So it knows what differs from run to run, and a
// verdict is firm if it is the same for all. Of one run each a difference is not firm, unless
// CompareOptions.Once says so. The samples of two runs are no pairs, so the ratios are those
// of stat.Unpaired.
//
// It returns the comparisons in the order of the new cases, for the caller to add to its report
// with the baseline, which is the first old run. No report is changed. A case that one run on the
// other side lacks is in OnlyOld or OnlyNew. A case that did not pass in all runs has a comparison
// without a ratio. If the runs may not be compared, the error is ErrDifferent.
func Compare(older, newer []*Report, o CompareOptions) (*Baseline, []Comparison, error) {
	first := older[0]
	for _, r := range slices.Concat(older, newer) {
		if err := sameMachine(first, r, o); err != nil {
			return nil, nil, err
		}
	}
	before, err := casesOf(older)
	after, twice := casesOf(newer)
	if err := cmp.Or(err, twice); err != nil {
		return nil, nil, err
	}
	base := &Baseline{
		Run: first.Run, Host: first.Host, Devices: first.Devices,
		OldRuns: len(older), NewRuns: len(newer), OnlyOld: lacking(before, after, len(newer)), OnlyNew: lacking(after, before, len(older)),
	}
	list, old := []Comparison{}, byKey(before)
	for _, news := range after {
		if olds := old[news.Key]; olds != nil {
			c, err := compareCases(olds, news.Of, len(older)*len(newer), o)
			if err != nil {
				return nil, nil, err
			}
			list = append(list, c)
		}
	}
	return base, list, nil
}

// casesOf are the cases of all runs by their names. It refuses a run that is there twice, which would
// count as two that agree, and a case that a run has twice.
func casesOf(runs []*Report) ([]Group[Case], error) {
	var all []Case
	for i, r := range runs {
		same := func(o *Report) bool {
			return r.Run.Started == o.Run.Started && r.Run.Seconds == o.Run.Seconds && len(r.Cases) == len(o.Cases) && len(r.Cases) > 0 &&
				slices.Equal(r.Cases[0].Samples, o.Cases[0].Samples)
		}
		if slices.ContainsFunc(runs[:i], same) {
			return nil, fmt.Errorf("%w: the run of %s is given twice", ErrDifferent, r.Run.Started)
		}
		if len(byID(r.Cases)) < len(r.Cases) {
			return nil, errors.New("a report has a case twice")
		}
		all = append(all, r.Cases...)
	}
	return GroupBy(all, func(c Case) string { return c.ID }), nil
}

// byKey are the cases of groups by their names.
func byKey(groups []Group[Case]) map[string][]Case {
	of := map[string][]Case{}
	for _, g := range groups {
		of[g.Key] = g.Of
	}
	return of
}

// lacking are the cases that one of so many runs on the other side does not have.
func lacking(cases, others []Group[Case], runs int) []string {
	list, there := []string{}, byKey(others)
	for _, g := range cases {
		if len(there[g.Key]) < runs {
			list = append(list, g.Key)
		}
	}
	return list
}

// compareCases compares a case of old runs with the same of new ones, of which there should be so many pairs.
func compareCases(olds, news []Case, want int, o CompareOptions) (c Comparison, err error) {
	mean, of := 0.0, stat.Interval{Low: math.Inf(1), Level: stat.Wide}
	for _, a := range olds {
		for _, b := range news {
			if err := sameCase(a, b, o); err != nil {
				return c, err
			}
			c = compareRuns(a, b, o.Margin)
			if c.Ratio == nil {
				return c, nil
			}
			mean += math.Log(*c.Ratio) / float64(want)
			of = stat.Interval{Low: min(of.Low, *c.Low), High: max(of.High, *c.High), Level: min(of.Level, c.Level)}
		}
	}
	switch {
	case len(olds)*len(news) < want:
		c.Ratio, c.Low, c.High = nil, nil, nil
		c.Verdict, c.Reason = stat.NotMeasured, "the case is not in all runs"
	case want > 1:
		c.Judge(stat.Estimate{Ratio: math.Exp(mean), Interval: of}, nil)
	case !o.Once && (c.Verdict == stat.Slower || c.Verdict == stat.Faster):
		c.Verdict = stat.OneRun // it does not know clocks, nor where memory lies, which differ from run to run
	}
	return c, nil
}

// sameMachine refuses runs on different devices, or with different drivers. Where a device
// is opened does not matter.
func sameMachine(older, newer *Report, o CompareOptions) error {
	of := func(r *Report) (devices, drivers string) {
		var names, versions []string
		for _, d := range r.Devices {
			name := strings.TrimSpace(d.Name + " " + string(d.MIG))
			// The memory of the host is as fast as its processor.
			if strings.HasPrefix(d.Open, "host") {
				name += " of " + string(r.Host.CPU)
			}
			names, versions = append(names, name), append(versions, string(d.Driver))
		}
		return strings.Join(names, ", "), strings.Join(slices.Compact(versions), ", ")
	}
	oldDevices, oldDrivers := of(older)
	newDevices, newDrivers := of(newer)
	switch {
	case !o.AnyDevice && oldDevices != newDevices:
		return fmt.Errorf("%w: devices %q and %q", ErrDifferent, oldDevices, newDevices)
	case !o.AnyDriver && oldDrivers != newDrivers:
		return fmt.Errorf("%w: drivers %q and %q", ErrDifferent, oldDrivers, newDrivers)
	}
	return nil
}

// sameCase refuses two cases of one name that did not do the same work.
func sameCase(a, b Case, o CompareOptions) error {
	if a.Bytes != b.Bytes || a.Unit != b.Unit {
		return fmt.Errorf("%w: case %s is of %d bytes in %s, and of %d in %s", ErrDifferent, a.ID, a.Bytes, a.Unit, b.Bytes, b.Unit)
	}
	for _, axis := range a.Axes {
		// An axis that only one of them has is of another version, or another program.
		if b.Axes.Of(axis.Name) == nil || axis.Name == "device" && o.AnyDevice {
			continue
		}
		if x, y := a.Axes.text(axis.Name), b.Axes.text(axis.Name); x != y {
			return fmt.Errorf("%w: case %s has %s %s, and %s", ErrDifferent, a.ID, axis.Name, x, y)
		}
	}
	return nil
}

// compareRuns compares a case with the same of an older run.
func compareRuns(a, b Case, margin float64) Comparison {
	c := Comparison{ID: b.ID + ": new against old", A: a.ID, B: b.ID, Margin: margin, Verdict: stat.NotMeasured}
	if a.Status != Passed || b.Status != Passed {
		c.Reason = Text(fmt.Sprintf("old: %s, new: %s", a.Status, b.Status))
		if a.Status == Waived || b.Status == Waived {
			c.Verdict = stat.Waived
		}
		return c
	}
	c.Judge(stat.Unpaired(a.Samples, b.Samples, a.Places(), b.Places()))
	return c
}

// Judge completes a comparison by an estimate, or by the error in its place.
func (c *Comparison) Judge(e stat.Estimate, err error) {
	if err != nil {
		c.Reason = Text(err.Error())
		c.Verdict = stat.NotMeasured
		if errors.Is(err, stat.ErrTooFew) {
			c.Verdict = stat.TooFew
		}
		return
	}
	c.Ratio, c.Low, c.High, c.Level, c.Verdict = &e.Ratio, &e.Interval.Low, &e.Interval.High, e.Interval.Level, stat.Judge(e, c.Margin)
}

// ofRuns reports whether a comparison is of one case in two runs.
func (c Comparison) ofRuns() bool { return c.A == c.B }
