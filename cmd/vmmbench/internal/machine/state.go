package machine

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
)

// AddState fills in the state of the host and of all devices of the report, as it is
// at the start of a run. It returns no error: what cannot be read is null.
func AddState(r *report.Report) {
	r.Host.State = hostState("/")
	for i, s := range deviceStates("/", r.Devices, openNVML) {
		r.Devices[i].State = s
	}
}

// AddEndState is AddState for the end of a run. Beside the first state it shows whether
// clocks went down or other users came.
func AddEndState(r *report.Report) {
	r.Host.StateEnd = hostState("/")
	for i, s := range deviceStates("/", r.Devices, openNVML) {
		r.Devices[i].StateEnd = s
	}
}

// hostState reads the state of the host.
func hostState(root string) *report.HostState {
	s := &report.HostState{Time: time.Now().UTC().Format(time.RFC3339)}
	var why reasons
	s.Load = load(root, &why)
	s.Governors = governors(root, &why)
	// The setting in use is the one in brackets.
	text, err := line(root, "sys/kernel/mm/transparent_hugepage/enabled")
	_, chosen, _ := strings.Cut(text, "[")
	chosen, _, ok := strings.Cut(chosen, "]")
	if err == nil && !ok {
		err = fmt.Errorf("%q", text)
	}
	s.HugePages = report.Text(chosen)
	why.add("transparent_huge_pages", err)
	s.Reason = why.text()
	return s
}

// load reads the load averages.
func load(root string, missing *reasons) []float64 {
	text, err := line(root, "proc/loadavg")
	list := make([]float64, 3)
	if err == nil {
		if _, err = fmt.Sscan(text, &list[0], &list[1], &list[2]); err != nil {
			err = fmt.Errorf("%q", text)
		}
	}
	if missing.add("load", err); err != nil {
		return nil
	}
	return list
}

// governors reads which governors the CPUs have, each once and sorted.
func governors(root string, missing *reasons) (list []string) {
	files, err := fs.Glob(os.DirFS(root), "sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor")
	if err == nil && len(files) == 0 {
		err = errors.New("the system shows none, as in most virtual machines")
	}
	for _, file := range files {
		text, failed := line(root, file)
		if err = cmp.Or(err, failed); failed == nil {
			list = append(list, text)
		}
	}
	missing.add("governors", err)
	slices.Sort(list)
	return slices.Compact(list)
}

// line reads a file of one line.
func line(root, name string) (string, error) {
	text, err := os.ReadFile(filepath.Join(root, name))
	return strings.TrimSpace(string(text)), short(err)
}

// short drops the path of an error, since a reason begins with the name of the value.
func short(err error) error {
	var at *fs.PathError
	if errors.As(err, &at) {
		return at.Err
	}
	return err
}

// reasons collects why values are missing. Those that are missing for the same reason
// are named together.
type reasons []struct{ names, text string }

// add notes why a value is missing. A nil error is no reason.
func (r *reasons) add(name string, err error) {
	if err == nil {
		return
	}
	text := strings.Join(strings.Fields(err.Error()), " ") // one line
	for i := range *r {
		if x := &(*r)[i]; x.text == text {
			x.names += ", " + name
			return
		}
	}
	*r = append(*r, struct{ names, text string }{name, text})
}

func (r reasons) text() report.Text {
	var list []string
	for _, x := range r {
		list = append(list, x.names+": "+x.text)
	}
	return report.Text(strings.Join(list, "; "))
}
