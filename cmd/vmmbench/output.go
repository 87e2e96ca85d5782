package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
)

// output is one place that the report goes to.
type output struct {
	report.Output
	file   *os.File // nil for stdout
	target string   // the final name of file, until it has it; empty if file is written in place
}

// openOutputs opens stdout and the files. It is called before anything is measured,
// so that a path which cannot be written is found early.
func (a *app) openOutputs(o *outputFlags) ([]*output, error) {
	var list []*output
	for _, name := range o.files {
		out, err := openFile(name)
		if err != nil {
			for _, opened := range list {
				err = errors.Join(err, opened.drop())
			}
			return nil, err
		}
		list = append(list, out)
	}
	// Stdout is written last: if it is a pipe, its reader may have ended.
	return append(list, &output{Output: report.Output{W: a.stdout, Format: o.format}}), nil
}

// openFile opens a file for the report. The report is written to a file beside it,
// which is renamed when it is complete: so an earlier report stays until then. ndjson is
// renamed before the first case, so that a killed run leaves what it had. What is not a
// regular file is written in place.
func openFile(name string) (*output, error) {
	format, err := report.FormatOf(name)
	if err != nil {
		return nil, err
	}
	if file, err := filepath.EvalSymlinks(name); err == nil {
		name = file // a link stays a link
	}
	out := &output{Output: report.Output{Format: format}}
	st, err := os.Stat(name)
	if inPlace := err == nil && !st.Mode().IsRegular(); inPlace {
		out.file, err = os.Create(name)
	} else {
		out.target = name
		out.file, err = os.OpenFile(fmt.Sprintf("%s.%d.tmp", name, os.Getpid()), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	}
	out.W = out.file
	return out, err
}

// start writes what is known before the first case. If it fails, the caller must drop
// the output.
func (o *output) start(r *report.Report) error {
	if err := o.Started(r); err != nil || o.Format != report.NDJSON {
		return err
	}
	return o.rename()
}

// rename gives the file its final name, if it does not have it yet.
func (o *output) rename() error {
	if o.target == "" {
		return nil
	}
	err := os.Rename(o.file.Name(), o.target)
	if err == nil {
		o.target = ""
	}
	return err
}

// finish writes the rest of the report and renames the file. If it fails, the
// caller must drop the output.
func (o *output) finish(r *report.Report) error {
	if err := o.Finished(r); err != nil || o.file == nil {
		return err
	}
	if err := o.rename(); err != nil {
		return err
	}
	return o.drop()
}

// drop closes the file. A file that was not renamed yet is removed, and the earlier
// report stays.
func (o *output) drop() error {
	if o.file == nil {
		return nil
	}
	err := o.file.Close()
	if o.target != "" {
		err = errors.Join(err, os.Remove(o.file.Name()))
	}
	return err
}
