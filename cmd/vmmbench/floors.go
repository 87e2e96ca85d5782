package main

import (
	"fmt"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
)

// floors is the flag --at-least: rates that cases must reach.
type floors []floor

// floor is one of them, for the cases that a pattern names.
type floor struct {
	pattern string
	least   float64 // GB/s
}

// Set implements pflag.Value. It adds to what was given before.
func (f *floors) Set(s string) error {
	at := strings.LastIndexByte(s, '=')
	if at < 1 {
		return fmt.Errorf("%q: want CASE=RATE, as bw/h2d/pinned/*/vmm=50", s)
	}
	least, err := strconv.ParseFloat(s[at+1:], 64)
	if err != nil || !(least > 0) || math.IsInf(least, 0) {
		return fmt.Errorf("%q: want a rate in GB/s above 0", s[at+1:])
	}
	if _, err := path.Match(s[:at], ""); err != nil {
		return fmt.Errorf("%q: %w", s[:at], err)
	}
	*f = append(*f, floor{s[:at], least})
	return nil
}

func (f *floors) String() string {
	var list []string
	for _, x := range *f {
		list = append(list, fmt.Sprintf("%s=%g", x.pattern, x.least))
	}
	return strings.Join(list, " ")
}

// Type implements pflag.Value.
func (f *floors) Type() string { return "CASE=RATE" }

// of reports whether a floor is one of a case.
func (f floor) of(c report.Case) bool {
	ok, _ := path.Match(f.pattern, c.ID) // Set has refused bad patterns
	return ok
}

// check refuses a floor that no case can reach, as a slip in a name would pass for ever.
func (f floors) check(groups []group) error {
	for _, x := range f {
		var units []string
		for _, g := range groups {
			for _, t := range g.tasks {
				if x.of(t.c) {
					units = append(units, t.c.Unit)
				}
			}
		}
		switch {
		case len(units) == 0:
			return usageError{fmt.Errorf("--at-least %s: no case is called so; --dry-run lists them", x.pattern)}
		case slices.ContainsFunc(units, func(unit string) bool { return unit != unitGBs }):
			return usageError{fmt.Errorf("--at-least %s: there is a case that has no rate: its figure is a time", x.pattern)}
		}
	}
	return nil
}

// found is what became of each floor: by the median, or nothing if the case did not pass.
func (f floors) found(cases []report.Case) (list []report.Floor) {
	for _, x := range f {
		for _, c := range cases {
			if !x.of(c) {
				continue
			}
			one := report.Floor{Case: c.ID, Least: x.least}
			if c.Status == report.Passed && c.Stats != nil {
				one.Value = &c.Stats.Value
			}
			list = append(list, one)
		}
	}
	return list
}
