package main

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
)

// earlier has the cases of the run that --resume goes on with, by their names.
type earlier map[string]report.Case

// resumedFlag is the flag of a case that an earlier run has measured.
const resumedFlag = "resumed"

// readEarlier reads the report of an earlier run, if the file exists. That run has to have measured
// as this one does, on the same devices: cases of both stand beside each other.
func readEarlier(file string, now *report.Report) (earlier, error) {
	old, err := loadReport(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("--resume: %w", err)
	case old.Run.Measure == nil:
		return nil, usageError{fmt.Errorf("--resume %s: that run has measured nothing", file)}
	}
	was, is := conditions(old), conditions(now)
	for i, what := range [...]string{"command", "version", "machine", "devices", "flags"} {
		if was[i] != is[i] {
			return nil, usageError{fmt.Errorf("--resume %s: that run had other %s: %s, and now %s", file, what, was[i], is[i])}
		}
	}
	list := earlier{}
	for _, c := range old.Cases {
		list[c.ID] = c
	}
	return list, nil
}

// conditions are what has to be the same in both runs.
func conditions(r *report.Report) [5]string {
	devices := []string{}
	for _, d := range r.Devices {
		devices = append(devices, fmt.Sprint(d.Open, " ", d.Name, " ", d.Driver, " ", d.UUID))
	}
	return [5]string{
		r.Run.Command, string(r.Run.Version), fmt.Sprintf("%s, %s", r.Host.CPU, r.Host.Kernel),
		fmt.Sprint(devices), fmt.Sprintf("%+v", *r.Run.Measure),
	}
}

// cases returns the cases of a group if all of them have ended. If one has not, the whole group
// is measured again, since its cases are compared with each other.
func (e earlier) cases(g group) []report.Case {
	var list []report.Case
	for _, t := range g.tasks {
		c := e[t.c.ID]
		if !slices.Contains([]report.Status{report.Passed, report.Failed, report.Waived}, c.Status) {
			return nil
		}
		if !slices.Contains(c.Flags, resumedFlag) {
			c.Flags = append(c.Flags, resumedFlag)
		}
		list = append(list, c)
	}
	return list
}
