package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/verify"
)

// earlier is the run that --resume continues with. Without cases there is nothing to go on
// with.
type earlier struct {
	byID   map[string]report.Case
	verify verify.Mode // how much that run, and this one, checks
}

// resumedFlag is the flag of a case that an earlier run has measured.
const resumedFlag = "resumed"

// readEarlier reads the report of an earlier run and makes sure that it measured the same,
// on the same devices, as now does. There is nothing to go on with if the file does not
// exist.
func readEarlier(file string, now *report.Report) (list earlier, err error) {
	old, err := loadReport(file)
	if errors.Is(err, fs.ErrNotExist) {
		return list, nil
	}
	if err != nil {
		return list, fmt.Errorf("--resume: %w", err)
	}
	// What was measured otherwise must not stand beside what is measured now.
	if old.Run.Measure == nil {
		return list, usageError{fmt.Errorf("--resume %s: that run has measured nothing", file)}
	}
	was, is := described(old), described(now)
	for _, what := range slices.Sorted(maps.Keys(is)) {
		if string(was[what]) != string(is[what]) {
			return list, usageError{fmt.Errorf("--resume %s: that run had other %s: %s, and now %s", file, what, was[what], is[what])}
		}
	}
	list.byID, list.verify = map[string]report.Case{}, now.Run.Measure.Verify
	for _, c := range old.Cases {
		list.byID[c.ID] = c
	}
	return list, nil
}

// described returns what has to be the same in two runs, by its name: each part of how
// they measure, and on what.
func described(r *report.Report) map[string]json.RawMessage {
	devices := []string{}
	for _, d := range r.Devices {
		devices = append(devices, fmt.Sprint(d.Open, " ", d.Name, " ", d.Driver, " ", d.UUID))
	}
	all := map[string]json.RawMessage{}
	for _, part := range []any{*r.Run.Measure, map[string]any{
		"command": r.Run.Command, "version": r.Run.Version, "kernel": r.Host.Kernel, "CPU": r.Host.CPU, "devices": devices,
	}} {
		// Neither can fail: they are numbers, texts and lists of texts.
		text, _ := json.Marshal(part)
		_ = json.Unmarshal(text, &all)
	}
	return all
}

// cases returns the cases of a group if all of them have ended, and as this run would have
// it. If one has not, it returns nil and the whole group is measured again, since its cases
// are compared with each other.
func (e earlier) cases(g group) []report.Case {
	var list []report.Case
	for _, t := range g.tasks {
		c, ok := e.byID[t.c.ID]
		if !ok || !sameAxes(c.Axes, t.c.Axes) || c.Bytes != t.c.Bytes || !e.hasEnded(c, g, t) {
			return nil
		}
		if !slices.Contains(c.Flags, resumedFlag) {
			c.Flags = append(c.Flags, resumedFlag)
		}
		list = append(list, c)
	}
	return list
}

// sameAxes compares what axes look like in a report, where numbers have one type.
func sameAxes(a, b report.Axes) bool {
	x, err := json.Marshal(a)
	y, err2 := json.Marshal(b)
	return err == nil && err2 == nil && string(x) == string(y)
}

// hasEnded reports whether a case of a task came to its end, with all its samples and checks.
func (e earlier) hasEnded(c report.Case, g group, t task) bool {
	switch {
	case c.Status == report.Waived:
		return true
	case c.Status != report.Passed && c.Status != report.Failed:
		return false
	case c.Stats == nil || c.Verify == nil || c.Stats.N != len(c.Samples):
		return false
	}
	wanted := e.verify
	if g.edges && wanted == verify.Full {
		wanted = verify.Edges
	}
	if !t.data {
		wanted = verify.Off
	}
	strength := []verify.Mode{verify.Off, verify.Edges, verify.Full}
	return slices.Index(strength, c.Verify.Mode) >= slices.Index(strength, wanted)
}
