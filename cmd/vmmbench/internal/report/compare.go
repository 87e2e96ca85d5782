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

// Compare compares the cases of two runs that have the same name. It returns the
// comparisons in the order of the new run's cases, for the caller to add to its report
// with the baseline. Neither report is changed. The samples of two runs are no pairs, so
// the ratios are those of stat.Unpaired.
//
// If the runs may not be compared, the error is ErrDifferent. A case that did not pass in
// both runs has a comparison without a ratio.
func Compare(older, newer *Report, o CompareOptions) (*Baseline, []Comparison, error) {
	if err := sameMachine(older, newer, o); err != nil {
		return nil, nil, err
	}
	// Names pair the cases, so none may be there twice.
	before, after := byID(older.Cases), byID(newer.Cases)
	if len(before) < len(older.Cases) || len(after) < len(newer.Cases) {
		return nil, nil, errors.New("a report has a case twice")
	}
	base := &Baseline{Run: older.Run, Host: older.Host, Devices: older.Devices, OnlyOld: []string{}, OnlyNew: []string{}}
	list := []Comparison{}
	for _, b := range newer.Cases {
		a, ok := before[b.ID]
		if !ok {
			base.OnlyNew = append(base.OnlyNew, b.ID)
			continue
		}
		if err := sameCase(a, b, o); err != nil {
			return nil, nil, err
		}
		list = append(list, compareRuns(a, b, o.Margin))
	}
	for _, a := range older.Cases {
		if _, ok := after[a.ID]; !ok {
			base.OnlyOld = append(base.OnlyOld, a.ID)
		}
	}
	return base, list, nil
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
			names, versions = append(names, name), union(versions, []string{string(d.Driver)})
		}
		return strings.Join(names, ", "), strings.Join(versions, ", ")
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

// CompareRuns is Compare for several runs on a side: each old one is compared with each new
// one, and the interval of a case contains theirs. So it knows what differs from run to run,
// and a verdict is firm if it is the same for all. Of one run each a difference is not firm, unless
// CompareOptions.Once says so. The baseline is the first old run; a case
// that one run on the other side lacks is in OnlyOld or OnlyNew.
func CompareRuns(older, newer []*Report, o CompareOptions) (base *Baseline, list []Comparison, err error) {
	if err := cmp.Or(eachOnce(older), eachOnce(newer)); err != nil {
		return nil, nil, err
	}
	byName := map[string][]Comparison{}
	for _, a := range older {
		for _, b := range newer {
			one, more, err := Compare(a, b, o)
			if err != nil {
				return nil, nil, err
			}
			if base == nil {
				base, list = one, more
			}
			base.OnlyOld, base.OnlyNew = union(base.OnlyOld, one.OnlyOld), union(base.OnlyNew, one.OnlyNew)
			for _, c := range more {
				byName[c.B] = append(byName[c.B], c)
			}
		}
	}
	base.OldRuns, base.NewRuns = len(older), len(newer)
	for i, c := range list {
		list[i] = together(byName[c.B], len(older)*len(newer))
		// What differs from run to run, as clocks and where memory lies, one run of each does not know.
		if len(older)*len(newer) == 1 && !o.Once && (list[i].Verdict == stat.Slower || list[i].Verdict == stat.Faster) {
			list[i].Verdict = stat.OneRun
		}
	}
	return base, list, nil
}

// eachOnce refuses a run that is there twice: it would count as two, which agree.
func eachOnce(runs []*Report) error {
	for i, r := range runs {
		same := func(o *Report) bool {
			return r.Run.Started == o.Run.Started && r.Run.Seconds == o.Run.Seconds && len(r.Cases) == len(o.Cases) && len(r.Cases) > 0 &&
				slices.Equal(r.Cases[0].Samples, o.Cases[0].Samples)
		}
		if slices.ContainsFunc(runs[:i], same) {
			return fmt.Errorf("%w: the run of %s is given twice", ErrDifferent, r.Run.Started)
		}
	}
	return nil
}

// union returns a with what only b has.
func union(a, b []string) []string {
	for _, x := range b {
		if !slices.Contains(a, x) {
			a = append(a, x)
		}
	}
	return a
}

// together is one comparison of those of a case, of which there should be so many.
func together(list []Comparison, want int) Comparison {
	c := list[0]
	if want == 1 {
		return c
	}
	if len(list) < want {
		c.Ratio, c.Low, c.High = nil, nil, nil
		c.Verdict, c.Reason = stat.NotMeasured, "the case is not in all runs"
		return c
	}
	mean, of := 0.0, stat.Interval{Low: math.Inf(1), Level: stat.Wide}
	for _, x := range list {
		if x.Ratio == nil {
			return x
		}
		mean += math.Log(*x.Ratio) / float64(want)
		of = stat.Interval{Low: min(of.Low, *x.Low), High: max(of.High, *x.High), Level: min(of.Level, x.Level)}
	}
	c.Judge(stat.Estimate{Ratio: math.Exp(mean), Interval: of}, nil)
	return c
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
