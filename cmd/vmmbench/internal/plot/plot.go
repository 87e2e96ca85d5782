package plot

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"gonum.org/v1/plot/vg"

	"github.com/cuvmm/cuvmm/cmd/internal/size"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
)

// Kind is what a picture shows.
type Kind string

// Kinds, in the order in which a report is read.
const (
	Growth    Kind = "growth"    // time over the bytes appended so far
	Steps     Kind = "steps"     // how long the steps of growing take, by quantile
	Ratio     Kind = "ratio"     // comparisons with their intervals and the margin
	Bandwidth Kind = "bandwidth" // GB/s by size
	Peers     Kind = "peers"     // pairs of devices
	Calls     Kind = "calls"     // time of a call by size
	Samples   Kind = "samples"   // every sample, in order
)

// Kinds are all kinds.
var Kinds = []Kind{Growth, Steps, Ratio, Bandwidth, Peers, Calls, Samples}

// Chart is one picture, and its figures as a table.
type Chart struct {
	Kind   Kind
	Name   string // a file's name without suffix, unlike that of any other picture of the report
	Title  string // what is seen
	Alt    string // what the picture shows and how to read it, for those who do not see it
	Header []string
	Rows   [][]string

	legend     []entry
	panels     []panel
	panelWidth vg.Length // at least, to stand beside others; 0 for a panel of the whole width
	footer     string
}

// Charts returns the pictures of a report, of no more cases than report.MaxShown. left says
// what no picture shows, and why.
func Charts(r *report.Report, kinds ...Kind) (list []*Chart, left []string) {
	r, left = r.First(report.MaxShown)
	d := &drawing{report: r, left: left}
	waived := 0
	for _, c := range r.Cases {
		switch {
		case c.Status == report.Waived:
			waived++
		case !usable(c):
			d.leaveOut("%s: %s", c.ID, c.Status)
		}
	}
	if waived > 0 {
		d.leaveOut("cases that this machine cannot do: %d", waived)
	}
	// If kinds were asked for, one without a picture is named.
	of := map[Kind]func(){
		Growth: d.growth, Ratio: d.ratios, Bandwidth: d.bandwidth, Peers: d.peers,
		Calls: d.calls, Steps: d.steps, Samples: d.samples,
	}
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
	var devices []string
	for _, d := range r.Devices {
		of := d.Name
		switch {
		case d.State != nil && d.State.DriverVersion != "":
			of += fmt.Sprintf(", driver %s (%s)", d.State.DriverVersion, d.Driver)
		case d.Driver != "":
			of += ", driver " + string(d.Driver)
		}
		if !slices.Contains(devices, of) {
			devices = append(devices, of)
		}
	}
	parts = append(parts, devices...)
	if r.Run.Version != "" {
		parts = append(parts, "version "+string(r.Run.Version))
	}
	day, _, _ := strings.Cut(r.Run.Started, "T")
	parts = append(parts, day)
	if r.Run.Measure != nil {
		parts = append(parts, fmt.Sprintf("seed %d", r.Run.Measure.Seed))
	}
	if r.Run.Interrupted {
		parts = append(parts, "interrupted")
	}
	// A short part stays on one line.
	for i, part := range parts {
		if len(part) < 30 {
			parts[i] = strings.ReplaceAll(part, " ", "\u00A0")
		}
	}
	return strings.Join(parts, " · ")
}

// usable reports whether a case has figures that can be trusted.
func usable(c report.Case) bool {
	return c.Status == report.Passed && c.Stats != nil && len(c.Samples) > 0
}

// split parts the name of a case: the contenders of a group differ in the label only.
func split(id string) (group, label string) {
	i := strings.LastIndexByte(id, '/')
	return id[:max(i, 0)], id[i+1:]
}

// command is the first part of a name, and the rest.
func command(id string) (first, rest string) {
	first, rest, _ = strings.Cut(id, "/")
	return first, rest
}

// pairCase reports whether a case is for a pair of devices.
func pairCase(c report.Case) bool { return c.Axes.Of("from") != nil && c.Axes.Of("to") != nil }

// sizeOf is the number by which cases are ordered: the bytes of a copy or a chunk, or how
// many devices get access. in is how it stands in the case's name.
func sizeOf(c report.Case) (n float64, in, label string, ok bool) {
	if n, ok := number64(c.Axes.Of("size")); ok {
		return float64(n), size.Format(n), "size", true
	}
	if n, ok := number64(c.Axes.Of("peers")); ok {
		return float64(n), fmt.Sprintf("peers-%d", n), "devices that get access", true
	}
	return 0, "", "", false
}

// number64 is the value of an axis that is a number above 0.
func number64(value any) (uint64, bool) {
	switch v := value.(type) {
	case uint64:
		return v, v > 0
	case int:
		return uint64(max(v, 0)), v > 0
	}
	return 0, false
}

// noHost stands in the name of a copy that has no end on the host, for the memory there.
const noHost = "none"

// without is a group's name without its command, one of its parts, and what says nothing.
func without(group, part string) string {
	_, rest := command(group)
	list := slices.DeleteFunc(strings.Split(rest, "/"), func(s string) bool { return s == part || s == noHost })
	return strings.Join(list, " ")
}

// ordered is a map that keeps its order.
type ordered[T any] struct {
	keys []string
	of   map[string]T
}

// at returns the value of key, made by fresh if there is none.
func (o *ordered[T]) at(key string, fresh func() T) T {
	if _, ok := o.of[key]; !ok {
		if o.of == nil {
			o.of = map[string]T{}
		}
		o.keys, o.of[key] = append(o.keys, key), fresh()
	}
	return o.of[key]
}

// byKey groups a list by a key, in the order in which the keys come. It leaves out what has
// no key.
func byKey[T any](list []T, key func(T) string) (o ordered[[]T]) {
	for _, x := range list {
		if k := key(x); k != "" {
			same := o.at(k, func() []T { return nil })
			o.of[k] = append(same, x)
		}
	}
	return o
}

// plural prints a number of things.
func plural(n int, one, more string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, more)
}
