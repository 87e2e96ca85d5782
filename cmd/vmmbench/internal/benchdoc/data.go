package benchdoc

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
)

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
	r.Run.Args = withoutFiles(r.Run.Args)
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

// withoutFiles leaves out the flags that name files or say how progress is shown: they
// change no figure.
func withoutFiles(args []string) []string {
	kept := []string{}
	for i := 0; i < len(args); i++ {
		name, _, joined := strings.Cut(args[i], "=")
		switch {
		case slices.Contains([]string{"-o", "--output", "--resume", "--progress"}, name):
			if !joined {
				i++ // the next one is its value
			}
		case strings.HasPrefix(name, "-o"): // -oFILE
		default:
			kept = append(kept, args[i])
		}
	}
	return kept
}
