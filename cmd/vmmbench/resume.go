package main

import (
	"encoding/json"
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

// readEarlier reads the report of an earlier run and makes sure that it measured the same,
// on the same devices, as now does. There is nothing to go on with if the file does not
// exist.
func readEarlier(file string, now *report.Report) (earlier, error) {
	old, err := loadReport(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("--resume: %w", err)
	}
	// What was measured otherwise must not stand beside what is measured now.
	for _, same := range []struct {
		what     string
		old, now any
	}{
		{"command", old.Run.Command, now.Run.Command},
		{"version", old.Run.Version, now.Run.Version},
		{"samples, times, order, margin or verification", old.Run.Measure, now.Run.Measure},
		{"kernel", old.Host.Kernel, now.Host.Kernel},
		{"devices", devicesOf(old), devicesOf(now)},
	} {
		if !sameJSON(same.old, same.now) {
			return nil, usageError{fmt.Errorf("--resume %s: that run had other %s", file, same.what)}
		}
	}
	list := earlier{}
	for _, c := range old.Cases {
		list[c.ID] = c
	}
	return list, nil
}

// devicesOf returns what identifies the devices of a report.
func devicesOf(r *report.Report) []string {
	list := []string{}
	for _, d := range r.Devices {
		list = append(list, fmt.Sprint(d.Open, " ", d.Name, " ", d.Driver, " ", d.UUID))
	}
	return list
}

// sameJSON compares what two values look like in a report, where nil and a zero may be the
// same.
func sameJSON(a, b any) bool {
	x, err := json.Marshal(a)
	y, err2 := json.Marshal(b)
	return err == nil && err2 == nil && string(x) == string(y)
}

// cases returns the cases of a group if all of them have ended. If one was interrupted or
// could not be run, it returns nil and the whole group is measured again, since its cases
// are compared with each other.
func (e earlier) cases(g group) []report.Case {
	var list []report.Case
	for _, t := range g.tasks {
		c, ok := e[t.c.ID]
		ended := c.Status == report.Passed || c.Status == report.Failed || c.Status == report.Waived
		if !ok || !ended || !sameJSON(c.Axes, t.c.Axes) || c.Bytes != t.c.Bytes {
			return nil
		}
		if !slices.Contains(c.Flags, resumedFlag) {
			c.Flags = append(c.Flags, resumedFlag)
		}
		list = append(list, c)
	}
	return list
}
