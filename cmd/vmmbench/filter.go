package main

import (
	"fmt"
	"math"
	"path"
	"regexp"
	"strconv"
	"strings"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
)

// filtered returns the groups with the cases whose names match only. Nothing that matches is
// a usageError.
func filtered(groups []group, match *regexp.Regexp) (list []group, err error) {
	for _, g := range groups {
		if g = g.only(match); len(g.tasks) > 0 {
			list = append(list, g)
		}
	}
	if len(list) > 0 || len(groups) == 0 {
		return list, nil
	}
	return nil, usageError{fmt.Errorf("--filter %s: no case matches; --dry-run lists the names, such as %s", match, casesOf(groups)[0].ID)}
}

// only is the group with the tasks whose names match.
func (g group) only(match *regexp.Regexp) group {
	at := map[int]int{} // where tasks are afterwards
	var tasks []task
	for i, t := range g.tasks {
		if match.MatchString(t.c.ID) {
			at[i], tasks = len(tasks), append(tasks, t)
		}
	}
	pairs := []pair{}
	for _, p := range g.pairs() {
		a, ok := at[p.a]
		b, too := at[p.b]
		if ok && too {
			pairs = append(pairs, pair{a, b})
		}
	}
	g.tasks, g.compared = tasks, pairs
	return g
}

// floors is the flag --at-least: rates that cases must reach. The names of cases are patterns.
type floors []report.Floor

// add adds what the flag was given, as bw/h2d/pinned/*/vmm=50.
func (f *floors) add(s string) error {
	at := max(strings.LastIndexByte(s, '='), 0)
	pattern, rate := s[:at], strings.TrimPrefix(s[at:], "=")
	least, err := strconv.ParseFloat(rate, 64)
	switch _, bad := path.Match(pattern, ""); {
	case at == 0:
		return fmt.Errorf("%q: want CASE=RATE, as bw/h2d/pinned/*/vmm=50", s)
	case err != nil || !(least > 0) || math.IsInf(least, 0):
		return fmt.Errorf("%q: want a rate in GB/s above 0", rate)
	case bad != nil:
		return fmt.Errorf("%q: %w", pattern, bad)
	}
	*f = append(*f, report.Floor{Case: pattern, Least: least})
	return nil
}

// of are the floors of single cases, whose medians they have if the cases have passed. It refuses a floor
// that no case can reach, as a slip in a name would pass for ever.
func (f floors) of(cases []report.Case) (list []report.Floor, err error) {
	for _, x := range f {
		found := false
		for _, c := range cases {
			if ok, _ := path.Match(x.Case, c.ID); !ok {
				continue
			}
			if found = true; c.Unit != unitGBs {
				return nil, usageError{fmt.Errorf("--at-least %s: there is a case that has no rate: its figure is a time", x.Case)}
			}
			one := report.Floor{Case: c.ID, Least: x.Least}
			if c.Status == report.Passed && c.Stats != nil {
				one.Value = &c.Stats.Value
			}
			list = append(list, one)
		}
		if !found {
			return nil, usageError{fmt.Errorf("--at-least %s: no case is called so; --dry-run lists them", x.Case)}
		}
	}
	return list, nil
}
