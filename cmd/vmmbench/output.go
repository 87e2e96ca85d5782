package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
)

// output is one place that the report goes to.
type output struct {
	report.Output
	file   *os.File // nil for stdout
	target string   // the final name of file, until it has it; empty if file is written in place
}

// maxWidth is how long a line is on the widest terminal: longer ones are hard to follow.
const maxWidth = 160

// openOutputs opens stdout and the files. It is called before anything is measured,
// so that a path which cannot be written is found early.
func (a *app) openOutputs(o *outputFlags) (list []*output, err error) {
	for _, name := range o.files {
		out, err := openTarget(name)
		if err != nil {
			for _, opened := range list {
				err = errors.Join(err, opened.drop())
			}
			return nil, err
		}
		out.Format, _ = report.FormatOf(name) // which was checked before
		list = append(list, out)
	}
	// Stdout is written last: if it is a pipe, its reader may have ended.
	return append(list, &output{Output: report.Output{W: a.stdout, Format: o.format, Width: min(terminalWidth(a.stdout), maxWidth)}}), nil
}

// writeFile writes b to a file. If that fails, an earlier file stays.
func writeFile(name string, b []byte) error {
	out, err := openTarget(name)
	if err != nil {
		return err
	}
	if _, err = out.W.Write(b); err == nil {
		err = out.complete()
	}
	return errors.Join(err, out.drop()) // which leaves a complete file alone
}

// openTarget opens a file beside the one of that name, which takes its place when it is complete: so an
// earlier one stays until then. ndjson takes it before the first case, so that a killed run leaves what it
// had. A pipe or a device, and a file in a folder that cannot be written, are written in place.
func openTarget(name string) (*output, error) {
	// A pipe would wait for a reader. A file that must not be written is not replaced either.
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|withoutWaiting, 0o666)
	if errors.Is(err, syscall.ENXIO) {
		return nil, fmt.Errorf("output file %q: this pipe has no reader", name)
	}
	if err != nil {
		return nil, err
	}
	out := &output{Output: report.Output{W: file}, file: file}
	if err := out.moveBeside(name); err != nil {
		return nil, errors.Join(err, out.drop())
	}
	return out, nil
}

// moveBeside has a regular file written to a new one beside it, whose name it takes later. Links to it
// stay links.
func (o *output) moveBeside(name string) error {
	st, err := o.file.Stat()
	if err != nil || !st.Mode().IsRegular() {
		return err
	}
	target, err := filepath.EvalSymlinks(name)
	if err != nil {
		return err
	}
	mode := st.Mode().Perm()
	beside, err := os.OpenFile(fmt.Sprintf("%s.%d.tmp", target, os.Getpid()), os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if errors.Is(err, fs.ErrPermission) { // the folder cannot be written; a full disk is no reason
		return o.file.Truncate(0)
	}
	if err != nil {
		return err
	}
	err = o.file.Close()
	if st.Size() == 0 { // it is new, or it has no report
		err = errors.Join(err, os.Remove(target))
	}
	o.W, o.file, o.target = beside, beside, target
	return errors.Join(err, beside.Chmod(mode)) // the process may take some permissions from what it creates
}

// start writes what is known before the first case. If it fails, the caller must drop
// the output.
func (o *output) start(r *report.Report) error {
	if err := o.Started(r); err != nil || o.Format != report.NDJSON {
		return err
	}
	return o.rename()
}

// rename gives the file its final name, if it does not have it yet. If it cannot have that, as a file
// that is mounted into a container, the report stays where the error says.
func (o *output) rename() error {
	target := o.target
	if target == "" {
		return nil
	}
	o.target = ""
	return os.Rename(o.file.Name(), target)
}

// finish writes the rest of the report and renames the file. If it fails, the
// caller must drop the output.
func (o *output) finish(r *report.Report) error {
	if err := o.Finished(r); err != nil || o.file == nil {
		return err
	}
	return o.complete()
}

// complete closes the file, which may show that a write has failed, and then renames it.
func (o *output) complete() error {
	if err := o.file.Close(); err != nil {
		return err
	}
	return o.rename()
}

// drop closes the file, unless it is closed. A file that was not renamed yet is removed, and the earlier
// report stays.
func (o *output) drop() error {
	if o.file == nil {
		return nil
	}
	err := o.file.Close()
	if errors.Is(err, os.ErrClosed) {
		err = nil
	}
	if o.target != "" {
		err = errors.Join(err, os.Remove(o.file.Name()))
	}
	return err
}
