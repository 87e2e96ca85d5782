package main

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/verify"
)

// Within a margin of 1 the ratio of two times counts as equal: the defaults of --margin.
const (
	defaultMargin = 0.02 // of all commands except p2p, and of compare
	peerMargin    = 0.01 // of p2p
)

// outputFlags are the flags for the report: formats and files.
type outputFlags struct {
	format report.Format
	files  []string
}

func (o *outputFlags) add(f *pflag.FlagSet) {
	o.format = report.Table
	f.Var(choice[report.Format]{&o.format, report.Formats}, "format", "format of what is written to stdout")
	f.StringArrayVarP(&o.files, "output", "o", nil,
		"also write to this `FILE`, in the format of its suffix: .txt, .json, .ndjson, .csv, .bench (repeatable)")
}

// check refuses files of unknown format, files that are given twice, and these formats, for a reason. It
// is called before anything is measured.
func (o *outputFlags) check(reason string, refused ...report.Format) error {
	given, formats := map[string]bool{}, []report.Format{o.format}
	for _, name := range o.files {
		f, err := report.FormatOf(name)
		if err != nil {
			return usageError{err}
		}
		if name = filepath.Clean(name); given[name] {
			return usageError{fmt.Errorf("output file %q: given twice", name)}
		}
		given[name], formats = true, append(formats, f)
	}
	for _, f := range formats {
		if slices.Contains(refused, f) {
			return usageError{fmt.Errorf("format %s: %s", f, reason)}
		}
	}
	return nil
}

// measureFlags are the flags of the commands that measure.
type measureFlags struct {
	outputFlags
	settings         *settings
	device           string
	samples          int
	minTime, maxTime time.Duration
	rounds           int // how often contenders that keep their memory make it, each time at other addresses
	seed             uint64
	verify           verify.Mode
	margin           percent
	progress         string
	dryRun           bool
	resume           string // the file of an earlier run
	baseline         string // what to compare with: reports, or a program
	runs             int    // how often to measure, each time in another process
	floors           floors
	filter           string // a regular expression for the names of cases
	set              *pflag.FlagSet
	against          baselineFlags
	corrupt          int64
}

func (m *measureFlags) add(f *pflag.FlagSet, set *settings, samples int, maxTime time.Duration) {
	m.settings, m.rounds, m.set = set, 10, f
	m.outputFlags.add(f)
	m.verify, m.corrupt = verify.Off, -1
	m.margin, m.progress = defaultMargin, "plain"
	f.StringVar(&m.device, "device", "auto", "the device, as vmm.Open takes it: auto, cuda:0, cuda:GPU-<uuid>, host")
	f.IntVar(&m.samples, "samples", samples, "samples of each case, at most")
	f.DurationVar(&m.maxTime, "max-time", maxTime, "stop measuring a group of cases after this long")
	f.Uint64Var(&m.seed, "seed", 1, "seed of the order and the data")
	f.Var(&m.margin, "margin", "how far apart two cases may be and still count as equal")
	f.Var(choice[string]{&m.progress, []string{"plain", "off"}}, "progress", "what stderr gets: a line for each group, or nothing")
	f.StringVar(&m.resume, "resume", "", "go on with an earlier run: take over the cases in this `FILE`, .json or .ndjson, if it exists, and measure the others")
	f.StringVar(&m.baseline, "baseline", "", "compare each case with the same case of the report in this `FILE`, .json or .ndjson; of several, with commas between; or of another vmmbench, which measures in turn with this one")
	f.IntVar(&m.runs, "runs", 1, "measure so often, each time in a new process, and compare all runs with --baseline")
	f.Func("at-least", "exit with 4 if a case has less than a rate in GB/s, given as `CASE=RATE`: bw/h2d/pinned/*/vmm=50; * is any text between two slashes (repeatable)", m.floors.add)
	m.against.add(f)
	f.StringVar(&m.filter, "filter", "", "measure only the cases whose names match this `REGEX`; --dry-run lists them")
	f.BoolVar(&m.dryRun, "dry-run", false, "print the names of the cases and measure nothing")
}

// addVerify adds the flags for work whose data can be checked.
func (m *measureFlags) addVerify(f *pflag.FlagSet) {
	m.verify = verify.Full
	f.Var(choice[verify.Mode]{&m.verify, []verify.Mode{verify.Full, verify.Edges, verify.Off}}, "verify", "how much of the data is checked")
	f.Int64Var(&m.corrupt, "corrupt", -1, "flip the byte at this offset of the device buffer before it is verified")
	f.Lookup("corrupt").Hidden = true // for the tests of vmmbench itself
}

// addMinTime adds the flag for work that can be repeated within a sample.
func (m *measureFlags) addMinTime(f *pflag.FlagSet) {
	f.DurationVar(&m.minTime, "min-time", m.settings.minTime, "repeat a copy within a sample until it takes this long")
}

// check refuses what does not go together.
func (m *measureFlags) check() error {
	var err error
	switch {
	case m.samples < 1:
		err = fmt.Errorf("--samples %d: want at least 1", m.samples)
	case m.minTime < 0:
		err = fmt.Errorf("--min-time %v: negative", m.minTime)
	case m.maxTime <= 0:
		err = fmt.Errorf("--max-time %v: want more than 0", m.maxTime)
	case m.baseline == "" && m.against.given():
		err = errors.New("--fail-on, --any-device and --any-driver are about --baseline, which is not given")
	case m.dryRun && (m.format != report.Table || len(m.files) > 0):
		err = errors.New("--dry-run prints names, which have no --format and go into no -o")
	case m.runs < 1:
		err = fmt.Errorf("--runs %d: want 1 or more", m.runs)
	case m.runs > 1 && m.baseline == "":
		err = errors.New("--runs is for --baseline, which is not given: several runs tell what differs from run to run")
	case m.manyRuns() && (m.resume != "" || len(m.floors) > 0):
		err = errors.New("--resume and --at-least are for one run: leave out --runs, and --baseline if it is a program")
	}
	if err != nil {
		return usageError{err}
	}
	if m.manyRuns() {
		return m.outputFlags.check("--runs compares runs", report.GoBench, report.NDJSON)
	}
	return m.outputFlags.check("")
}

// plan returns the groups of a plan, without the cases that --filter leaves out.
func (m *measureFlags) plan(p plan, devs []device) ([]group, error) {
	match, err := regexp.Compile(m.filter)
	if err != nil {
		return nil, usageError{fmt.Errorf("--filter %s: no regular expression: %w", m.filter, err)}
	}
	groups, err := p.groups(devs, m.seed)
	if err != nil {
		return nil, err
	}
	if groups, err = filtered(groups, match); err != nil {
		return nil, err
	}
	_, err = m.floors.of(casesOf(groups))
	return groups, err
}

// describe returns the flags for the report.
func (m *measureFlags) describe() *report.Measure {
	return &report.Measure{
		Seed: m.seed, Samples: m.samples, MinTime: float64(m.minTime), MaxTime: float64(m.maxTime),
		Order: "random", Verify: m.verify, Margin: float64(m.margin),
	}
}

// choice is a flag that takes one of a few words.
type choice[T ~string] struct {
	value *T
	of    []T
}

// Set implements pflag.Value.
func (c choice[T]) Set(s string) error {
	if !slices.Contains(c.of, T(s)) {
		return fmt.Errorf("want one of %v", c.of)
	}
	*c.value = T(s)
	return nil
}

func (c choice[T]) String() string { return string(*c.value) }

// Type implements pflag.Value.
func (c choice[T]) Type() string {
	return strings.ReplaceAll(strings.Trim(fmt.Sprint(c.of), "[]"), " ", "|")
}

// choices is a flag that takes a list of words.
type choices struct {
	values, of []string
	what       string // if not empty, the help prints it instead of the words
}

// Set implements pflag.Value. It replaces the default.
func (c *choices) Set(s string) error {
	var values []string
	for v := range strings.SplitSeq(s, ",") {
		if !slices.Contains(c.of, v) {
			return fmt.Errorf("%q: want a list of %s", v, strings.Join(c.of, ", "))
		}
		if !slices.Contains(values, v) {
			values = append(values, v)
		}
	}
	c.values = values
	return nil
}

func (c *choices) String() string { return strings.Join(c.values, ",") }

// Type implements pflag.Value.
func (c *choices) Type() string {
	if c.what != "" {
		return c.what
	}
	return strings.Join(c.of, ",")
}

// maxStreams is the largest number of streams that a flag takes.
const maxStreams = 64

// counts is a flag that takes a list of numbers of streams.
type counts []int

// Set implements pflag.Value. It replaces the default.
func (c *counts) Set(s string) error {
	var list counts
	for v := range strings.SplitSeq(s, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(v))
		if err != nil || n < 0 || n > maxStreams {
			return fmt.Errorf("%q: want a list of numbers from 0 to %d", v, maxStreams)
		}
		if !slices.Contains(list, n) {
			list = append(list, n)
		}
	}
	*c = list
	return nil
}

func (c *counts) String() string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint([]int(*c)), " ", ","), "[]")
}

// Type implements pflag.Value.
func (c *counts) Type() string { return "COUNTS" }

// percent is a flag that takes a share, as 2% or 0.02.
type percent float64

// Set implements pflag.Value.
func (p *percent) Set(s string) error {
	number, cut := strings.CutSuffix(strings.TrimSpace(s), "%")
	v, err := strconv.ParseFloat(number, 64)
	if cut {
		v /= 100
	}
	if err != nil || math.IsNaN(v) || v < 0 || v >= 1 {
		return fmt.Errorf("%q: want a share from 0%% to below 100%%, such as 2%% or 0.02", s)
	}
	*p = percent(v)
	return nil
}

func (p *percent) String() string { return strconv.FormatFloat(float64(*p)*100, 'g', -1, 64) + "%" }

// Type implements pflag.Value.
func (p *percent) Type() string { return "PERCENT" }
