package plot

import (
	"cmp"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
)

// Kind is what a picture shows.
type Kind string

// Kinds, in the order in which a report is read.
const (
	Growth    Kind = "growth"    // time over the bytes appended so far
	Ratios    Kind = "ratios"    // comparisons with their intervals and the margin
	Bandwidth Kind = "bandwidth" // GB/s by size
	Matrix    Kind = "matrix"    // pairs of devices
)

// Kinds are all kinds.
var Kinds = []Kind{Growth, Ratios, Bandwidth, Matrix}

// Chart is one picture.
type Chart struct {
	Kind  Kind
	Name  string // a file's name without suffix, unlike that of any other picture of the report
	Title string // what is seen
	Alt   string // what the picture shows and how to read it, for those who do not see it

	figure func(k look) figure
	footer string
}

// Charts returns the pictures of a report, of no more cases than report.MaxShown. left says
// what no picture shows, and why.
func Charts(r *report.Report, kinds ...Kind) (list []*Chart, left []string) {
	r, left = r.First(report.MaxShown)
	d := &drawing{report: r, left: left}
	waived, tables := 0, 0
	for _, c := range r.Cases {
		switch {
		case c.Status == report.Waived:
			waived++
		case !usable(c):
			d.leaveOut("%s: %s", c.ID, c.Status)
		case kindOf(c) == "":
			tables++
		}
	}
	if waived > 0 {
		d.leaveOut("cases that this machine cannot do: %d", waived)
	}
	if tables > 0 && len(kinds) == 0 {
		d.leaveOut("cases that stand in tables only: %d", tables)
	}
	// If kinds were asked for, one without a picture is named.
	of := map[Kind]func(){Growth: d.growth, Ratios: d.ratios, Bandwidth: d.bandwidth, Matrix: d.matrix}
	for _, kind := range Kinds {
		if len(kinds) > 0 && !slices.Contains(kinds, kind) {
			continue
		}
		before := len(d.charts)
		of[kind]()
		if len(d.charts) == before && len(kinds) > 0 {
			d.leaveOut("%s: the report has no figures for it", kind)
		}
	}
	return d.charts, d.left
}

// drawing is the work of Charts.
type drawing struct {
	report *report.Report
	charts []*Chart
	left   []string
}

func (d *drawing) leaveOut(format string, args ...any) {
	d.left = append(d.left, fmt.Sprintf(format, args...))
}

var notInName = regexp.MustCompile(`[^a-z0-9]+`)

// add completes a picture: its name and what is below it.
func (d *drawing) add(kind Kind, what string, c *Chart) {
	base := strings.Trim(notInName.ReplaceAllString(strings.ToLower(string(kind)+" "+what), "-"), "-")
	c.Kind, c.Name = kind, base
	taken := func(o *Chart) bool { return o.Name == c.Name }
	for n := 2; slices.ContainsFunc(d.charts, taken); n++ {
		c.Name = fmt.Sprintf("%s-%d", base, n)
	}
	c.footer = footer(d.report)
	d.charts = append(d.charts, c)
}

// footer says where the figures come from.
func footer(r *report.Report) string {
	parts := []string{strings.Join(append([]string{"vmmbench"}, r.Run.Args...), " ")}
	for _, d := range r.Devices {
		of := d.Name + ", driver " + string(d.Driver)
		if d.State != nil && d.State.DriverVersion != "" {
			of = fmt.Sprintf("%s, driver %s (%s)", d.Name, d.State.DriverVersion, d.Driver)
		}
		if !slices.Contains(parts, of) {
			parts = append(parts, of)
		}
	}
	day, _, _ := strings.Cut(r.Run.Started, "T")
	parts = append(parts, "version "+cmp.Or(string(r.Run.Version), "unknown"), day)
	if r.Run.Measure != nil {
		parts = append(parts, fmt.Sprintf("seed %d", r.Run.Measure.Seed))
	}
	if r.Run.Interrupted {
		parts = append(parts, "interrupted")
	}
	return strings.Join(parts, " · ")
}

// usable reports whether a case has figures that can be trusted.
func usable(c report.Case) bool {
	return c.Status == report.Passed && c.Stats != nil && len(c.Samples) > 0
}

// kindOf is the kind of picture that shows a case, empty if none does.
func kindOf(c report.Case) Kind {
	_, sized := number64(c.Axes.Of("size"))
	switch {
	case c.Axes.Of("from") != nil && c.Axes.Of("to") != nil && c.Axes.Of("mem") != nil:
		return Matrix
	case c.Stats != nil && c.Stats.Growth != nil && len(c.Stats.Growth.Samples) > 0:
		return Growth
	case sized && c.Unit == "GB/s":
		return Bandwidth
	}
	return ""
}

// shown are the cases that pictures of a kind are made of.
func (d *drawing) shown(kind Kind) (list []report.Case) {
	for _, c := range d.report.Cases {
		if kindOf(c) == kind && (usable(c) || kind == Matrix) { // a cell says why it has no value
			list = append(list, c)
		}
	}
	return list
}

// parent is the name of a case without its last part, which tells contenders apart.
func parent(id string) string { return id[:max(0, strings.LastIndexByte(id, '/'))] }

// number64 is the value of an axis that is a number above 0.
func number64(value any) (uint64, bool) {
	n, ok := value.(uint64)
	return n, ok && n > 0
}

// words is a name without its command and its size, and without "none", which stands for the
// host's memory where a copy has no end there.
func words(name, size string) string {
	list := strings.Split(name, "/")[1:]
	return strings.Join(slices.DeleteFunc(list, func(s string) bool { return s == size || s == "none" }), " ")
}

// number prints three digits, without an exponent for what is read often.
func number(v float64) string {
	if a := math.Abs(v); a >= 100 && a < 1e7 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}
