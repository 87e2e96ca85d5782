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

// load reads all JSON files of a folder, by their names.
func load[T any](dir string, read func([]byte) (T, error)) (map[string]T, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	all := map[string]T{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		if all[filepath.Base(file)], err = read(text); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
	}
	return all, err
}

// readReport reads a report.
func readReport(text []byte) (*report.Report, error) { return report.Read(bytes.NewReader(text)) }

// readPrograms reads figures of other programs, by their names, as a document prints them.
func readPrograms(text []byte) (map[string]string, error) {
	var list []program
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, err
	}
	figures := map[string]string{}
	for _, p := range list {
		if p.Name == "" || p.Meaning == "" || p.Machine == "" || p.Commit == "" || p.Command == "" {
			return nil, fmt.Errorf("%q does not say what, where and how it was measured", p.Name)
		}
		figures[p.Name] = strings.TrimSpace(strconv.FormatFloat(p.Value, 'f', -1, 64) + " " + p.Unit)
	}
	return figures, nil
}

// maxData is how large the file of a report may be, in bytes.
const maxData = 400 << 10

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
