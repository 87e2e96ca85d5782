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
	return append(list, &output{Output: report.Output{W: a.stdout, Format: o.format, Width: min(terminalWidth(a.stdout), maxWidth)}}), nil
}

// maxWidth is how long a line is on the widest terminal: longer ones are hard to follow.
const maxWidth = 160

// openFile opens a file for the report, in the format of its suffix.
func openFile(name string) (*output, error) {
	format, err := report.FormatOf(name)
	if err != nil {
		return nil, err
	}
	out, err := openTarget(name)
	if err == nil {
		out.Format = format
	}
	return out, err
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
	if err != nil {
		err = errors.Join(err, out.drop())
	}
	return err
}

// openTarget opens a file beside the one of that name, which takes its place when it is complete: so an
// earlier one stays until then. ndjson takes it before the first case, so that a killed run leaves what it
// had. A pipe or a device, and a file in a folder that cannot be written, are written in place.
func openTarget(name string) (*output, error) {
	name, err := resolveLinks(name)
	if err != nil {
		return nil, err
	}
	out := &output{}
	st, err := os.Stat(name)
	switch {
	case err == nil && !st.Mode().IsRegular():
		out.file, err = openInPlace(name, st.Mode())
	case err == nil:
		// A file that must not be written is not replaced either.
		f, refused := os.OpenFile(name, os.O_WRONLY, 0)
		if refused != nil {
			return nil, refused
		}
		out.target = name
		out.file, err = createBeside(name, st)
		if errors.Is(err, fs.ErrPermission) { // the folder cannot be written; a full disk is no reason
			out.target, out.file, err = "", f, f.Truncate(0)
		} else {
			err = errors.Join(err, f.Close())
		}
	case errors.Is(err, fs.ErrNotExist):
		out.target = name
		out.file, err = createBeside(name, nil)
	}
	if err != nil {
		return nil, err
	}
	out.W = out.file
	return out, nil
}

// createBeside creates the temporary file for name, with the permissions of old, the file
// that is there. old may be nil.
func createBeside(name string, old fs.FileInfo) (*os.File, error) {
	mode := fs.FileMode(0o666)
	if old != nil {
		mode = old.Mode().Perm()
	}
	f, err := os.OpenFile(fmt.Sprintf("%s.%d.tmp", name, os.Getpid()), os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil || old == nil {
		return f, err
	}
	// The process may take some permissions from what it creates.
	if err := f.Chmod(mode); err != nil {
		return nil, errors.Join(err, f.Close(), os.Remove(f.Name()))
	}
	return f, nil
}

// maxLinks is how many links of links are followed: a loop has no end.
const maxLinks = 40

// resolveLinks returns what a name is a link to, so that it stays a link. There need not be
// such a file yet.
func resolveLinks(name string) (string, error) {
	first := name
	for range maxLinks {
		st, err := os.Lstat(name)
		if err != nil || st.Mode()&fs.ModeSymlink == 0 {
			return name, nil // what is wrong with it is found when it is opened
		}
		to, err := os.Readlink(name)
		if err != nil {
			return "", err
		}
		if !filepath.IsAbs(to) {
			// Its folder may be a link too, and have another folder above it.
			dir, err := filepath.EvalSymlinks(filepath.Dir(name))
			if err != nil {
				return "", err
			}
			to = filepath.Join(dir, to)
		}
		name = to
	}
	return "", fmt.Errorf("output file %q: too many links", first)
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
	return o.complete()
}

// complete closes the file, which may show that a write has failed, and then renames it.
func (o *output) complete() error {
	if err := o.file.Close(); err != nil {
		return err
	}
	err := o.rename()
	if !errors.Is(err, syscall.EBUSY) {
		return err
	}
	// A file that is mounted, as into a container, has no name that could be another's.
	text, err := os.ReadFile(o.file.Name())
	if err == nil {
		err = os.WriteFile(o.target, text, 0o666)
	}
	return errors.Join(err, o.drop())
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
