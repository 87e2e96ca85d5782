package repochecks

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// maxUnlisted is how many files a package may have without a list of them.
const maxUnlisted = 5

// A package's doc.go lists its files after the package clause, so that a reader finds the one
// to open. Commands and internal packages are no exception, examples are.
func TestFilesAreListed(t *testing.T) {
	dir := root(t)
	lists := 0
	require.NoError(t, filepath.WalkDir(dir, func(file string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(dir, file)
		if err != nil {
			return err
		}
		if rel != "." && (strings.HasPrefix(d.Name(), ".") || slices.Contains([]string{"bin", "testdata", "examples"}, d.Name())) {
			return fs.SkipDir
		}
		entries, err := os.ReadDir(file)
		if err != nil {
			return err
		}
		var files []string
		for _, e := range entries {
			if isSource.MatchString(e.Name()) && !strings.HasSuffix(e.Name(), "_test.go") && e.Name() != "doc.go" {
				files = append(files, e.Name())
			}
		}
		if !slices.ContainsFunc(files, func(name string) bool { return path.Ext(name) == ".go" }) {
			return nil
		}
		doc, err := os.ReadFile(filepath.Join(file, "doc.go"))
		if err != nil && !os.IsNotExist(err) {
			return err
		}
		listed := listedFiles(string(doc))
		if listed != nil {
			lists++
		}
		for _, wrong := range wronglyListed(listed, files, func(name string) bool {
			_, err := os.Stat(filepath.Join(file, filepath.FromSlash(name)))
			return err == nil
		}) {
			t.Errorf("%s/doc.go: %s", filepath.ToSlash(rel), wrong)
		}
		return nil
	}))
	require.NotZero(t, lists)
}

func TestListsOfFiles(t *testing.T) {
	listed := listedFiles(`// Package p is one.
package p

// Files:
//
//	one.go, .c        the first
//	two.go            the second, three.go
//	device/k.cu  a kernel

// Lock order:
//
//	four.go           not a file's line
`)
	require.Equal(t, []string{"one.go", "one.c", "two.go", "device/k.cu"}, listed)
	exists := func(name string) bool { return name != "two.go" }
	require.Empty(t, wronglyListed(listed, []string{"one.c", "one.go"}, func(string) bool { return true }))
	require.Equal(t, []string{"two.go is listed and does not exist", "five.go is not listed"},
		wronglyListed(listed, []string{"five.go", "one.c", "one.go"}, exists))
	require.Equal(t, []string{"one.go is listed twice"},
		wronglyListed([]string{"one.go", "one.go"}, []string{"one.go"}, exists))
	require.Empty(t, wronglyListed(nil, make([]string, maxUnlisted), exists))
	require.Equal(t, []string{`6 files and no list of them after "// Files:"`},
		wronglyListed(nil, make([]string, maxUnlisted+1), exists))
}

var (
	isSource  = regexp.MustCompile(`\.(go|c|h)$`)
	filesList = regexp.MustCompile(`(?m)^package \w+\n(?s:.*?)^// Files:\n//\n((?://\t.*\n)+)`)
	fileLine  = regexp.MustCompile(`^//\t([\w./]+(?:, [\w./]+)*)  +\S`)
)

// listedFiles are the files that a doc.go lists. A line names one, or several that belong
// together: "copy.go, .c".
func listedFiles(doc string) (names []string) {
	list := filesList.FindStringSubmatch(doc)
	if list == nil {
		return nil
	}
	for line := range strings.Lines(list[1]) {
		m := fileLine.FindStringSubmatch(line)
		if m == nil {
			names = append(names, strings.TrimSpace(line)) // no such file
			continue
		}
		first := ""
		for i, name := range strings.Split(m[1], ", ") {
			if i == 0 {
				first = strings.TrimSuffix(name, path.Ext(name))
			} else if strings.HasPrefix(name, ".") {
				name = first + name
			}
			names = append(names, name)
		}
	}
	return names
}

// wronglyListed returns what is wrong with the list of a package that has these files.
func wronglyListed(listed, files []string, exists func(string) bool) (wrong []string) {
	if listed == nil {
		if len(files) > maxUnlisted {
			wrong = append(wrong, fmt.Sprintf(`%d files and no list of them after "// Files:"`, len(files)))
		}
		return wrong
	}
	for i, name := range listed {
		if !exists(name) {
			wrong = append(wrong, name+" is listed and does not exist")
		}
		if slices.Contains(listed[:i], name) {
			wrong = append(wrong, name+" is listed twice")
		}
	}
	for _, name := range files {
		if !slices.Contains(listed, name) {
			wrong = append(wrong, name+" is not listed")
		}
	}
	return wrong
}
