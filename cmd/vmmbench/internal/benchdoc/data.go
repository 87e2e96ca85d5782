package benchdoc

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
)

// filler fills documents.
type filler struct {
	reports  map[string]*report.Report    // by their files
	programs map[string]map[string]string // figures of other programs, by their files and names
	made     map[string][]byte            // all files that are made, by their names below the folder
}

// read reads what documents show.
func read(dir fs.FS) (*filler, error) {
	reports, err := load(dir, dataDir, func(text []byte) (*report.Report, error) { return report.Read(bytes.NewReader(text)) })
	programs, wrong := load(dir, dataDir+"programs/", readPrograms)
	return &filler{reports, programs, map[string][]byte{}}, cmp.Or(err, wrong)
}

// load reads all JSON files of a folder, by their names below dataDir.
func load[T any](dir fs.FS, folder string, read func([]byte) (T, error)) (map[string]T, error) {
	files, err := fs.Glob(dir, folder+"*.json")
	all := map[string]T{}
	for _, file := range files {
		text, err := fs.ReadFile(dir, file)
		if err == nil {
			all[strings.TrimPrefix(file, dataDir)], err = read(text)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
	}
	return all, err
}

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

// encode is a report as it is kept: on one line, without the names of the files that the
// run has written.
func encode(r *report.Report) ([]byte, error) {
	r.Run.Args = r.Run.Flags()
	text, err := json.Marshal(r)
	return append(text, '\n'), err
}
