package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/stat"
)

// baselineFlags are the flags of what is compared with an older run.
type baselineFlags struct {
	failOn               choices
	anyDevice, anyDriver bool
}

func (b *baselineFlags) add(f *pflag.FlagSet) {
	b.failOn = choices{values: []string{"none"}, of: []string{"none", "slower", "faster", "different", "missing", "failed", "unproven", "once"}}
	f.Var(&b.failOn, "fail-on", "exit with 4 if a case is slower or faster than in the older run, either (different), is missing, or failed, or if no verdict is firm (unproven); once: also by one run of each; a list")
	f.BoolVar(&b.anyDevice, "any-device", false, "also compare runs on different devices")
	f.BoolVar(&b.anyDriver, "any-driver", false, "also compare runs with different drivers")
}

// given reports whether one of the flags was given.
func (b *baselineFlags) given() bool {
	return b.failOn.String() != "none" || b.anyDevice || b.anyDriver
}

// compare compares a new report with an older one, by report.Compare. For runs that differ
// it returns a usageError that names the flags which allow that.
func (b *baselineFlags) compare(older, newer []*report.Report, margin float64) (*report.Baseline, []report.Comparison, error) {
	base, list, err := report.Compare(older, newer, report.CompareOptions{Margin: margin, AnyDevice: b.anyDevice, AnyDriver: b.anyDriver, Once: slices.Contains(b.failOn.values, "once")})
	if errors.Is(err, report.ErrDifferent) {
		err = usageError{fmt.Errorf("%w (see --any-device and --any-driver)", err)}
	}
	return base, list, err
}

// fails reports whether something that --fail-on names is so in the new runs.
func (b *baselineFlags) fails(base *report.Baseline, list []report.Comparison, older, newer []*report.Report) bool {
	verdict := func(what ...stat.Verdict) bool {
		return slices.ContainsFunc(list, func(c report.Comparison) bool { return slices.Contains(what, c.Verdict) })
	}
	is := map[string]bool{
		"slower":    verdict(stat.Slower),
		"faster":    verdict(stat.Faster),
		"different": verdict(stat.Slower, stat.Faster),
		"missing":   len(base.OnlyOld) > 0,
		"failed":    failed(older, newer),
		"unproven":  !verdict(stat.Equal, stat.Slower, stat.Faster),
	}
	return slices.ContainsFunc(b.failOn.values, func(kind string) bool { return is[kind] })
}

// failed reports whether a case of the new runs did not pass. One that is waived counts if it
// passed in an old run: the machine could do it then.
func failed(older, newer []*report.Report) bool {
	passed := map[string]bool{}
	for _, r := range older {
		for _, c := range r.Cases {
			passed[c.ID] = passed[c.ID] || c.Status == report.Passed
		}
	}
	wrong := func(c report.Case) bool {
		return c.Status != report.Passed && (c.Status != report.Waived || passed[c.ID])
	}
	return slices.ContainsFunc(newer, func(r *report.Report) bool { return slices.ContainsFunc(r.Cases, wrong) })
}

func (a *app) compare() *cobra.Command {
	var o outputFlags
	var b baselineFlags
	margin := percent(defaultMargin)
	c := command(&cobra.Command{
		Use:   "compare OLD NEW",
		Short: "Compare runs, case by case",
		Long: `Compare two reports, JSON or ndjson, by the names of their cases. The ratio is the
median time of the new run over that of the old one. The verdict is equal if its 95 %
interval lies within --margin, slower or faster if it lies outside.

OLD and NEW may each be several reports, with commas between: each old one is compared with
each new one, and the interval contains all of theirs. Use three of each, as clocks and
memory's place differ from run to run. Of one run each a difference has the verdict "one
run", at which --fail-on does not fail.

Exit status: 0, 4 if something that --fail-on names is so, 3 if data were wrong in the new
run (before 4), 1 if no case is in both runs or a report cannot be read, 2 usage, also
for runs that may not be compared.`,
		Example: `  vmmbench compare old.json new.json
  vmmbench compare a1.json,a2.json,a3.json b1.json,b2.json,b3.json --fail-on slower,missing,failed`,
	})
	f := c.Flags()
	o.add(f)
	b.add(f)
	f.Var(&margin, "margin", "how far apart two runs may be and still count as equal")
	c.Args = func(_ *cobra.Command, args []string) error {
		if len(args) != 2 {
			return usageError{fmt.Errorf("compare takes the files of two reports, not %d", len(args))}
		}
		return nil
	}
	c.RunE = func(_ *cobra.Command, args []string) error {
		if err := o.check("compare measures nothing", report.GoBench, report.NDJSON); err != nil {
			return err
		}
		older, errOld := loadReports(args[0])
		newer, errNew := loadReports(args[1])
		if err := cmp.Or(errOld, errNew); err != nil {
			return err
		}
		return a.compareReports(&o, &b, older, newer, float64(margin))
	}
	return c
}

// compareReports writes a report of the comparisons with the cases of the new run, and sets the exit code.
func (a *app) compareReports(o *outputFlags, b *baselineFlags, older, newer []*report.Report, margin float64) error {
	worse := false
	err := a.withReport(report.CommandCompare, o, func(r *runner) (err error) {
		err = r.compareRuns(b, older, newer, margin)
		worse = r.worse
		return err
	})
	if err != nil {
		return err
	}
	// An error of a case in the new run counts only for --fail-on: it was the exit code of that run.
	wrong := func(r *report.Report) bool { return r.Count()[report.Failed] > 0 }
	switch {
	case slices.ContainsFunc(newer, wrong):
		a.code = report.ExitMismatch
	case worse:
		a.code = report.ExitWorse
	default:
		a.code = report.ExitPassed
	}
	return nil
}

// compareRuns adds the comparisons of runs, with the cases of the first new one. If runs cannot be
// compared, it does not start.
func (r *runner) compareRuns(b *baselineFlags, older, newer []*report.Report, margin float64) error {
	base, list, err := b.compare(older, newer, margin)
	switch {
	case err != nil || r.started:
	case len(list) == 0:
		err = errors.New("no case is in both runs")
	default:
		err = r.start()
	}
	if err != nil {
		return err
	}
	r.report.Host, r.report.Devices, r.report.Baseline = newer[0].Host, newer[0].Devices, base
	base.New = &newer[0].Run
	r.add(newer[0].Cases, list)
	r.worse = b.fails(base, list, older, newer)
	return nil
}

// loadReports reads the reports in files with commas between their names.
func loadReports(names string) ([]*report.Report, error) {
	var list []*report.Report
	for name := range strings.SplitSeq(names, ",") {
		r, err := loadReport(name)
		if err != nil {
			return nil, err
		}
		list = append(list, r)
	}
	return list, nil
}

// loadReport reads the report in a file.
func loadReport(name string) (*report.Report, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	r, err := report.Read(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return r, nil
}
