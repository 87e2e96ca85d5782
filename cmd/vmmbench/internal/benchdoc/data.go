package benchdoc

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
)

// program is a figure that another program than vmmbench has measured.
type program struct {
	Name    string  `json:"name"`
	Unit    string  `json:"unit"` // empty for ratios
	Value   float64 `json:"value"`
	Meaning string  `json:"meaning"`
	Machine string  `json:"machine"`
	Commit  string  `json:"commit"`
	Command string  `json:"command"`
}

// loadPrograms reads the figures of other programs, by the files' names and their own, as a
// document prints them.
func loadPrograms(dir string) (map[string]map[string]string, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return nil, err
	}
	all := map[string]map[string]string{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		var list []program
		if err := json.Unmarshal(text, &list); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		figures := map[string]string{}
		for _, p := range list {
			if p.Name == "" || p.Meaning == "" || p.Machine == "" || p.Commit == "" || p.Command == "" {
				return nil, fmt.Errorf("%s: %q does not say what, where and how it was measured", file, p.Name)
			}
			figures[p.Name] = strings.TrimSpace(strconv.FormatFloat(p.Value, 'f', -1, 64) + " " + p.Unit)
		}
		all[filepath.Base(file)] = figures
	}
	return all, nil
}

// maxData is how large the file of a report may be, in bytes.
const maxData = 400 << 10

// loadData reads all reports of a folder, by their files' names.
func loadData(dir string) (map[string]*report.Report, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return nil, err
	}
	data := map[string]*report.Report{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		r, err := report.Read(bytes.NewReader(text))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		data[filepath.Base(file)] = r
	}
	return data, nil
}

// encode is a report as it is kept: on one line, without the names of the files that the
// run has written. If it would be larger than limit, it has no samples of steps.
func encode(r *report.Report, limit int) ([]byte, error) {
	r.Run.Args = r.Run.Flags()
	text, err := json.Marshal(r)
	if err == nil && len(text) > limit {
		for _, c := range r.Cases {
			if c.Stats != nil && c.Stats.Growth != nil {
				c.Stats.Growth.Samples = [][]float64{}
			}
		}
		text, err = json.Marshal(r)
	}
	if err != nil {
		return nil, err
	}
	if len(text) > limit {
		return nil, fmt.Errorf("%d bytes, over %d, also without the samples of steps", len(text), limit)
	}
	return append(text, '\n'), nil
}
