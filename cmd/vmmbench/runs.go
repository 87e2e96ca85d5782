package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
)

// isProgram reports whether --baseline names another vmmbench, not its report.
func isProgram(name string) bool {
	info, err := os.Stat(name)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 && filepath.Ext(name) != ".json" && filepath.Ext(name) != ".ndjson"
}

// manyRuns reports whether processes of their own measure.
func (m *measureFlags) manyRuns() bool { return m.runs > 1 || isProgram(m.baseline) }

// againstBaseline has processes measure, --runs of them, and compares them with the baseline. If
// that is a program it is measured as often, in turn, so that slow changes of the machine are in
// both. If a run fails or is interrupted, those before it are compared.
func (a *app) againstBaseline(ctx context.Context, command string, m *measureFlags) error {
	var older, newer []*report.Report
	err := a.withReport(report.CommandCompare, &m.outputFlags, func(r *runner) (err error) {
		if !isProgram(m.baseline) {
			if older, err = loadReports(m.baseline); err != nil {
				return err
			}
		}
		if err := r.start(); err != nil {
			return err
		}
		err = a.runInTurn(ctx, m, m.arguments(command), &older, &newer)
		r.report.Run.Interrupted = ctx.Err() != nil
		if len(older) == 0 || len(newer) == 0 {
			return err
		}
		return cmp.Or(err, r.compareRuns(&m.against, older, newer, float64(m.margin)))
	})
	for _, r := range newer { // the report has the cases of one
		if code := r.Exit(); a.code == report.ExitPassed || code == report.ExitMismatch {
			a.code = code
		}
	}
	return err
}

// runInTurn measures --runs times, and in turn with the baseline's program unless there are older
// reports. It adds the reports.
func (a *app) runInTurn(ctx context.Context, m *measureFlags, args []string, older, newer *[]*report.Report) error {
	type side struct {
		name, program, file string
		reports             *[]*report.Report
	}
	sides := []side{{"new", os.Args[0], runningProgram, newer}}
	if len(*older) == 0 {
		file, err := filepath.Abs(m.baseline) // a name alone would be looked for in PATH
		if err != nil {
			return err
		}
		sides = append(sides, side{"old", m.baseline, file, older})
	}
	keep, undo, err := m.keptRuns()
	if err != nil {
		return err
	}
	defer func() { _ = undo() }() // of temporary files
	for i := range m.runs {
		for k := range sides {
			x := sides[(i+k)%len(sides)] // each side begins in turn
			a.progress(m, i*len(sides)+k+1, m.runs*len(sides), x.name+", "+x.program)
			r, err := a.runProgram(ctx, x.file, x.name == "new", args, fmt.Sprintf("%s-%s%d.json", keep, x.name, i+1))
			if err != nil {
				return err
			}
			*x.reports = append(*x.reports, r)
		}
		if i == 0 { // programs that cannot be compared need not be measured again
			if _, _, err := m.against.compare(*older, *newer, float64(m.margin)); err != nil {
				return err
			}
		}
	}
	return nil
}

// runningProgram is this program, whatever its file is by now.
const runningProgram = "/proc/self/exe"

// keptRuns is how the files of single runs begin: as that of the first -o which is JSON, or in a folder
// that undo removes.
func (m *measureFlags) keptRuns() (keep string, undo func() error, err error) {
	for _, name := range m.files {
		if base, ext := strings.TrimSuffix(name, filepath.Ext(name)), filepath.Ext(name); ext == ".json" {
			return base, noUndo, nil
		}
	}
	dir, err := os.MkdirTemp("", "vmmbench-")
	return filepath.Join(dir, "run"), func() error { return os.RemoveAll(dir) }, err
}

// notInRuns are the flags that say what happens with several runs, not how one measures.
var notInRuns = []string{"runs", "baseline", "fail-on", "any-device", "any-driver", "format", "output", "progress"}

// arguments are those of one run.
func (m *measureFlags) arguments(command string) (list []string) {
	if !slices.Contains(presetNames(), command) {
		list = append(list, command)
	}
	list = append(list, "--progress", "off")
	m.set.Visit(func(f *pflag.Flag) {
		value := f.Value.String()
		if s, ok := f.Value.(pflag.SliceValue); ok {
			value = strings.Join(s.GetSlice(), ",")
		}
		if !slices.Contains(notInRuns, f.Name) {
			list = append(list, "--"+f.Name+"="+value)
		}
	})
	return list
}

// runProgram has a program, this one or another, measure, and returns its report. A run with wrong data
// has one, too.
func (a *app) runProgram(ctx context.Context, program string, own bool, args []string, file string) (*report.Report, error) {
	if err := os.Remove(file); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	args = append(slices.Clone(args), "-o", file)
	var env []string
	if own {
		args, env = a.settings.ownArgs(args...)
	}
	c := exec.CommandContext(ctx, program, args...)
	c.Env, c.Stderr = append(os.Environ(), env...), a.stderr
	c.WaitDelay = endTimeout
	endWithParent(c)
	ran := c.Run()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	r, err := loadReport(file)
	switch {
	case c.ProcessState.ExitCode() == report.ExitUsage:
		return nil, usageError{fmt.Errorf("%s refuses the command line", program)}
	case err != nil: // a report counts, whatever its cases have found
		return nil, fmt.Errorf("%s: %w", program, cmp.Or(ran, err))
	case r.Run.Interrupted:
		return nil, fmt.Errorf("%s: the run was interrupted", program)
	}
	return r, nil
}
