package repochecks

import (
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
)

// listed is what go list says of a package.
type listed struct {
	ImportPath, Dir string
	GoFiles         []string
	ImportMap       map[string]string
	Standard        bool
	Module          *struct{ Main bool }
}

// typeCheck checks the types of all packages of the module in dir, as they are built for a system
// without cgo, and of their tests, where an int has 64 bits. It takes the sources of all they
// import, so it needs no compiler of that system.
func typeCheck(t *testing.T, dir, goos, goarch string) (found []error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", "-test",
		"-json=ImportPath,Dir,GoFiles,ImportMap,Standard,Module", "./...")
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-mod=mod", "GOOS="+goos, "GOARCH="+goarch)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	sizes := types.SizesFor("gc", goarch)
	small := sizes.Sizeof(types.Typ[types.Int]) < 8
	all := map[string]*types.Package{"unsafe": types.Unsafe}
	for list := json.NewDecoder(out); ; { // what a package imports comes before it
		var p listed
		err := list.Decode(&p)
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		if p.ImportPath == "unsafe" || strings.HasSuffix(p.ImportPath, ".test") { // go test writes that one
			continue
		}
		ours := p.Module != nil && p.Module.Main
		set := token.NewFileSet()
		var files []*ast.File
		for _, name := range p.GoFiles {
			file, err := parser.ParseFile(set, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
			require.NoError(t, err)
			files = append(files, file)
		}
		path, _, _ := strings.Cut(p.ImportPath, " ") // of "p [p.test]"
		config := types.Config{
			Importer:         importFrom(func(path string) *types.Package { return all[mapped(p.ImportMap, path)] }),
			IgnoreFuncBodies: !ours,
			FakeImportC:      true,
			Sizes:            sizes,
			Error: func(err error) {
				test := strings.HasSuffix(set.Position(err.(types.Error).Pos).Filename, "_test.go") //nolint:errorlint // the documentation says so
				// A package is checked again with its tests.
				if ours && !(test && small) && !slices.ContainsFunc(found, func(e error) bool { return e.Error() == err.Error() }) {
					found = append(found, err)
				}
			},
		}
		all[p.ImportPath], _ = config.Check(path, set, files, nil) // Error has its errors
	}
	require.NoError(t, cmd.Wait())
	return found
}

func mapped(paths map[string]string, path string) string {
	if to, ok := paths[path]; ok {
		return to
	}
	return path
}

type importFrom func(path string) *types.Package

func (f importFrom) Import(path string) (*types.Package, error) {
	if p := f(path); p != nil {
		return p, nil
	}
	return nil, errors.New("not listed before: " + path)
}

// TestOtherSystems: the module and its tests are right Go on systems that its tests do not
// run on.
func TestOtherSystems(t *testing.T) {
	testgate.Long(t)
	for _, target := range []string{
		"windows/amd64", "darwin/arm64", "freebsd/amd64", "js/wasm", "wasip1/wasm", "linux/arm64", "linux/386",
	} {
		t.Run(target, func(t *testing.T) {
			t.Parallel()
			goos, goarch, _ := strings.Cut(target, "/")
			require.Empty(t, typeCheck(t, "../..", goos, goarch))
		})
	}
}

// TestOtherSystemsFindsErrors: what is wrong on one system alone is found there.
func TestOtherSystemsFindsErrors(t *testing.T) {
	testgate.Long(t)
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":      "module m\n",
		"a.go":        "package m\n\nimport \"os\"\n\nvar Host, _ = os.Hostname()\n",
		"b_linux.go":  "package m\n\nimport \"syscall\"\n\nvar _ = syscall.SYS_MMAP\n",
		"c_darwin.go": "package m\n\nvar _ int = Host\n",
		"d.go":        "package m\n\nvar big = 1 << 40\n",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	require.Empty(t, typeCheck(t, dir, "linux", "amd64"))
	require.Len(t, typeCheck(t, dir, "darwin", "arm64"), 1)
	require.Len(t, typeCheck(t, dir, "linux", "386"), 1)
}
