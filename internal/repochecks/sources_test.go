package repochecks

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const maxLines = 600

func TestSources(t *testing.T) {
	dir := root(t)
	files := 0
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != dir && (d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".")) {
			return fs.SkipDir
		}
		if d.IsDir() || filepath.Ext(path) != ".go" {
			return nil
		}
		src, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		files++
		for _, c := range violations(filepath.ToSlash(rel), src) {
			t.Errorf("%s: %s", rel, c)
		}
		return nil
	})
	require.NoError(t, err)
	require.NotZero(t, files)
}

func TestSourceRules(t *testing.T) {
	const (
		c      = "package p\n\nimport \"C\"\n"
		bare   = "package p\n\nimport \"unsafe\"\n"
		argued = bare + "\n// Safety: p outlives the call.\nvar _ unsafe.Pointer\n"
	)
	long := "package p\n" + strings.Repeat("\n", maxLines)
	for _, test := range []struct{ path, src, want string }{
		{"vmm/range.go", "package p\n", ""},
		{"vmm/range.go", c, `import "C" belongs under cgo/`},
		{"vmm/cgo/range.go", c, `import "C" belongs under cgo/`},
		{"cgo/cuda/shim.go", c, ""},
		{"internal/testing/fakecuda/control_unsafe.go", c, ""},
		{"internal/testing/fakelib/control_unsafe.go", c, ""},
		{"internal/testing/fakecuda/other/shim.go", c, `import "C" belongs under cgo/`},
		{"vmm/range.go", argued, `import "unsafe" belongs in a file named *_unsafe.go, or under cgo/`},
		{"vmm/unsafe.go", argued, `import "unsafe" belongs in a file named *_unsafe.go, or under cgo/`},
		{"vmm/range_unsafe.go", bare, "uses unsafe without a Safety: line"},
		{"vmm/range_unsafe.go", argued, ""},
		{"vmm/range_unsafe_test.go", argued, ""},
		{"cgo/cuda/shim.go", bare, "uses unsafe without a Safety: line"},
		{"vmm/range.go", long[:len(long)-1], ""},
		{"vmm/range.go", long, "601 lines, over 600"},
		{"vmm/range.go", "package", "expected 'IDENT'"},
	} {
		got := strings.Join(violations(test.path, []byte(test.src)), "; ")
		if test.want == "" {
			require.Empty(t, got, "%s: %q", test.path, test.src)
		} else {
			require.Contains(t, got, test.want, "%s: %q", test.path, test.src)
		}
	}
}

// testsOfC are the packages for tests that have C and are not under cgo.
var testsOfC = []string{"internal/testing/fakelib", "internal/testing/fakecuda", "internal/testing/fakenvrtc", "internal/testing/fakenccl", "internal/testing/nccloop"}

// violations returns what is wrong with the file at path, from the module's root.
func violations(path string, src []byte) []string {
	file, err := parser.ParseFile(token.NewFileSet(), path, src, parser.ImportsOnly)
	if err != nil {
		return []string{err.Error()}
	}
	var out []string
	inCgo := strings.HasPrefix(path, "cgo/")
	dir := filepath.ToSlash(filepath.Dir(path))
	if imports(file, "C") && !inCgo && !slices.Contains(testsOfC, dir) {
		out = append(out, `import "C" belongs under cgo/`)
	}
	if imports(file, "unsafe") {
		base := strings.TrimSuffix(strings.TrimSuffix(path, ".go"), "_test")
		if !inCgo && !strings.HasSuffix(base, "_unsafe") {
			out = append(out, `import "unsafe" belongs in a file named *_unsafe.go, or under cgo/`)
		}
		if !bytes.Contains(src, []byte("// Safety: ")) {
			out = append(out, "uses unsafe without a Safety: line")
		}
	}
	if n := bytes.Count(src, []byte("\n")); n > maxLines {
		out = append(out, fmt.Sprintf("%d lines, over %d", n, maxLines))
	}
	return out
}

func imports(file *ast.File, path string) bool {
	for _, spec := range file.Imports {
		if spec.Path.Value == `"`+path+`"` {
			return true
		}
	}
	return false
}
