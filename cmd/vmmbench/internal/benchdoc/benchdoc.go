// Package benchdoc makes what documents show of reports of vmmbench in docs/benchmarks: tables
// and pictures of docs/benchmarks.md, a page for each report, and single figures of
// docs/benchmarks.md, docs/fast.md, docs/coming-from/others.md and README.md.
//
// A table or picture stands in a block, between two comments:
//
//	<!-- bench table h200-growth.json rows=mem column=size only=grow/8GiB -->
//	<!-- /bench -->
//
// The first word says what to show, the next ones of which files, where * is all of them. only=
// takes some of their cases. What stands between the comments is replaced.
//
// A single figure is the text of a link to the report, whose title says which one it is:
//
//	[11.03 ms](benchmarks/h200-growth.json "time of grow/8GiB/vmm")
//
// The text is replaced. report.Report.Figure has what a title may say. Figures that other
// programs measured are in docs/benchmarks/programs; the title is their name.
package benchdoc

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
)

// Where things are, below the folder of the documents.
const (
	document = "benchmarks.md"
	dataDir  = "benchmarks"
	pictures = "images/bench-*.svg"
	pages    = dataDir + "/*.html"
)

// withFigures are the documents whose figures are links.
var withFigures = []string{document, "fast.md", "coming-from/others.md", "../README.md"}

// files makes the documents of dir, their data, pictures and pages anew. It returns them by
// their names below dir, and changes nothing. stale are the pictures and pages that are not
// made any more.
func files(dir string) (made map[string][]byte, stale []string, err error) {
	data, err := load(filepath.Join(dir, dataDir), readReport)
	if err != nil {
		return nil, nil, err
	}
	programs, err := load(filepath.Join(dir, dataDir, "programs"), readPrograms)
	if err != nil {
		return nil, nil, err
	}
	made = map[string][]byte{}
	for name, r := range data {
		if made[dataDir+"/"+name], err = encode(r, maxData); err != nil {
			return nil, nil, fmt.Errorf("%s: %w", name, err)
		}
		if html, err := pageOf(name, r); err != nil {
			return nil, nil, err
		} else if html != nil {
			made[dataDir+"/"+pageName(name)] = html
		}
	}
	f := filler{data: data, programs: programs, files: made, unused: slices.Sorted(maps.Keys(data))}
	for _, name := range withFigures {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if os.IsNotExist(err) && name != document {
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		filled := string(text)
		if name == document {
			filled, err = f.fill(filled)
		}
		if err == nil {
			filled, err = f.figures(filled)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", name, err)
		}
		made[name] = []byte(filled)
	}
	for _, pattern := range []string{pictures, pages} {
		old, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			return nil, nil, err
		}
		for _, file := range old {
			if name := filepath.ToSlash(filepath.Dir(pattern)) + "/" + filepath.Base(file); made[name] == nil {
				stale = append(stale, name)
			}
		}
	}
	return made, stale, nil
}

// filler fills the blocks of a document.
type filler struct {
	data     map[string]*report.Report
	programs map[string]map[string]string // figures of other programs, by their files and names
	files    map[string][]byte            // pictures are added to them
	unused   []string                     // names of data that no block has shown yet
}

const blockStart, blockEnd, commentEnd = "<!-- bench ", "<!-- /bench -->", " -->"

// fill replaces what is in the blocks of the text.
func (f *filler) fill(text string) (string, error) {
	var b strings.Builder
	open := 0 // the line in which a block has started
	for i, line := range strings.SplitAfter(text, "\n") {
		starts, ends := strings.HasPrefix(line, blockStart), strings.HasPrefix(line, blockEnd)
		switch {
		case starts && open == 0:
			open = i + 1
			line = strings.TrimSpace(line)
			filled, err := f.block(strings.Fields(strings.TrimSuffix(strings.TrimPrefix(line, blockStart), commentEnd)))
			if err != nil {
				return "", fmt.Errorf("line %d: %s: %w", open, line, err)
			}
			b.WriteString(line + "\n\n" + filled + "\n\n")
		case starts:
			return "", fmt.Errorf("line %d: the block has no end", open)
		case ends && open == 0:
			return "", fmt.Errorf("line %d: the end of a block that has no start", i+1)
		case ends || open == 0:
			open = 0
			b.WriteString(line)
		}
	}
	if open > 0 {
		return "", fmt.Errorf("line %d: the block has no end", open)
	}
	if len(f.unused) > 0 {
		return "", fmt.Errorf("no block shows %s", strings.Join(f.unused, ", "))
	}
	return b.String(), nil
}

// source is a report that a block shows, and the name of its file.
type source struct {
	file string
	*report.Report
}

// block makes what stands in a block.
func (f *filler) block(words []string) (string, error) {
	if len(words) < 2 {
		return "", errors.New("want what to show and of which files")
	}
	what, kind, _ := strings.Cut(words[0], ":")
	show := blocks[what]
	if show == nil {
		return "", fmt.Errorf("%q is none of %v", what, slices.Sorted(maps.Keys(blocks)))
	}
	var list []source
	options := map[string]string{}
	for _, word := range words[1:] {
		if key, value, ok := strings.Cut(word, "="); ok {
			options[key] = value
			continue
		}
		names := []string{word}
		if word == "*" {
			names = slices.Sorted(maps.Keys(f.data))
		}
		for _, name := range names {
			r := f.data[name]
			if r == nil {
				return "", fmt.Errorf("no %s in docs/%s", name, dataDir)
			}
			list = append(list, source{name, r})
			// Of all, only a list with links shows each; elsewhere a block of its own has to.
			if word != "*" || what == "reports" {
				f.unused = slices.DeleteFunc(f.unused, func(unused string) bool { return unused == name })
			}
		}
	}
	for i := range list {
		if options["only"] == "" {
			continue
		}
		if list[i].Report = list[i].Only(strings.Split(options["only"], ",")...); len(list[i].Cases) == 0 {
			return "", fmt.Errorf("%s has no such cases", list[i].file)
		}
	}
	if what == "picture" {
		options["kind"] = kind
	}
	text, err := show(f, options, list)
	return strings.TrimSpace(text), err
}

// Write writes what files makes, and removes the stale pictures.
func Write(dir string) error {
	made, stale, err := files(dir)
	if err != nil {
		return err
	}
	for name, text := range made {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o666); err != nil {
			return err
		}
	}
	for _, name := range stale {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

// Check returns an error that names what Write would change.
func Check(dir string) error {
	made, stale, err := files(dir)
	if err != nil {
		return err
	}
	for name, want := range made {
		got, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil && !os.IsNotExist(err) {
			return err
		}
		if !bytes.Equal(got, want) {
			stale = append(stale, name)
		}
	}
	if len(stale) > 0 {
		slices.Sort(stale)
		return fmt.Errorf("not as the reports in docs/%s make them: %s; run make benchmarks-doc", dataDir, strings.Join(stale, ", "))
	}
	return nil
}
