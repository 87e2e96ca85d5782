package main

import (
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

// Values of --fail-on.
const (
	failNone      = "none"
	failSlower    = "slower"
	failFaster    = "faster"
	failDifferent = "different" // slower or faster
)

// baselineFlags are the flags of what is compared with an older run.
type baselineFlags struct {
	failOn               choice
	anyDevice, anyDriver bool
}

func (b *baselineFlags) add(f *pflag.FlagSet) {
	b.failOn = choice{value: failNone, of: []string{failNone, failSlower, failFaster, failDifferent}}
	f.Var(&b.failOn, "fail-on", "exit with 4 if a case has this verdict against the older run")
	f.BoolVar(&b.anyDevice, "any-device", false, "also compare runs on different devices")
	f.BoolVar(&b.anyDriver, "any-driver", false, "also compare runs with different drivers")
}

// given reports whether one of the flags was given.
func (b *baselineFlags) given() bool { return b.failOn.value != failNone || b.anyDevice || b.anyDriver }

// compare compares a new report with an older one, by report.Compare. For runs that differ
// it returns a usageError that names the flags which allow that.
func (b *baselineFlags) compare(older, newer []*report.Report, margin float64) (*report.Baseline, []report.Comparison, error) {
	base, list, err := report.CompareRuns(older, newer, report.CompareOptions{Margin: margin, AnyDevice: b.anyDevice, AnyDriver: b.anyDriver})
	if errors.Is(err, report.ErrDifferent) {
		err = usageError{fmt.Errorf("%w (see --any-device and --any-driver)", err)}
	}
	return base, list, err
}

// fails reports whether one of the comparisons is what --fail-on names.
func (b *baselineFlags) fails(list []report.Comparison) bool {
	for _, c := range list {
		slower, faster := c.Verdict == stat.Slower, c.Verdict == stat.Faster
		switch b.failOn.value {
		case failSlower:
			faster = false
		case failFaster:
			slower = false
		case failNone:
			return false
		}
		if slower || faster {
			return true
		}
	}
	return false
}

func (a *app) compare() *cobra.Command {
	var o outputFlags
	var b baselineFlags
	margin := percent(0.02)
	c := command(&cobra.Command{
		Use:   "compare OLD NEW",
		Short: "Compare runs, case by case",
		Long: `Compare two reports, JSON or ndjson, by the names of their cases. The ratio is the
median time of the new run over that of the old one: above 1 the new one is slower.
Its 95 % interval is made of those of the two medians. The verdict is
equal if that lies within --margin, slower or faster if it lies outside.

An interval shows only what chance does within two runs. It does not know what was different
between them: clocks, temperature, where memory lay. So OLD and NEW may each be
several reports, with commas between: each old one is compared with each new one, and
the interval contains all of theirs. Use three of each before you believe a small
difference, and where --fail-on decides.

Runs on different devices or with different drivers are refused, unless --any-device
or --any-driver is given, and so are cases of one name that did not do the same work.

Exit status: 0, 4 if a verdict is what --fail-on names, 3 if data were wrong in the new
run (before 4), 1 if no case is in both runs or a report cannot be read, 2 usage, also
for runs that may not be compared.`,
		Example: `  vmmbench compare old.json new.json
  vmmbench compare a1.json,a2.json,a3.json b1.json,b2.json,b3.json --fail-on slower`,
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
		if err := o.check(); err != nil {
			return err
		}
		if err := o.reject("compare measures nothing", report.GoBench, report.NDJSON, report.NVBandwidth, report.NVBandwidthJSON); err != nil {
			return err
		}
		return a.compareFiles(&o, &b, args[0], args[1], float64(margin))
	}
	return c
}

// compareFiles compares the reports in two files, writes the comparisons and sets the exit
// code.
func (a *app) compareFiles(o *outputFlags, b *baselineFlags, oldFile, newFile string, margin float64) error {
	older, err := loadReports(oldFile)
	if err != nil {
		return err
	}
	newer, err := loadReports(newFile)
	if err != nil {
		return err
	}
	base, list, err := b.compare(older, newer, margin)
	if err != nil {
		return err
	}
	if len(list) == 0 {
		return errors.New("no case is in both runs")
	}
	if err := a.writeComparison(o, base, newer[0], list); err != nil {
		return err
	}
	// An error of a case in the new run is not counted: it was the exit code of that run.
	wrong := func(r *report.Report) bool { return r.Count()[report.Failed] > 0 }
	switch {
	case slices.ContainsFunc(newer, wrong):
		a.code = report.ExitMismatch
	case b.fails(list):
		a.code = report.ExitWorse
	default:
		a.code = report.ExitPassed
	}
	return nil
}

// writeComparison writes a report with the cases of the new run, and where it ran.
func (a *app) writeComparison(o *outputFlags, base *report.Baseline, newer *report.Report, list []report.Comparison) error {
	return a.withReport(report.CommandCompare, o, func(r *runner) error {
		r.report.Host, r.report.Devices, r.report.Baseline = newer.Host, newer.Devices, base
		base.New = &newer.Run
		if err := r.start(); err != nil {
			return err
		}
		r.add(newer.Cases, list)
		return nil
	})
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
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	r, err := report.Read(f)
	if err != nil {
		err = fmt.Errorf("%s: %w", name, err)
	}
	return r, errors.Join(err, f.Close())
}
