package repochecks

import (
	"go/ast"
	"go/build"
	"go/doc"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// surfaces are the packages that programs use, by their folders.
var surfaces = []string{
	"vmm", "growable", "shareable", "shareable/store", "vmm/pool", "vmm/kernel", "vmm/dlpack", "shareable/ipc", "shareable/collective",
}

// mostSurface is how many exported functions, methods and types they have together, at most. Who adds one
// takes one away, or says in the commit why the users need it.
const mostSurface = 762

// surface is what go doc shows of a package.
type surface struct {
	names    []string // of functions, methods and types
	internal []string // where a type of an internal package stands in a signature or an exported field
}

// surfaceOf reads a package, of the files that are built on Linux with cgo.
func surfaceOf(t *testing.T, dir string) (s surface) {
	t.Helper()
	ctx := build.Default
	ctx.GOOS, ctx.CgoEnabled = "linux", true
	p, err := ctx.ImportDir(dir, 0)
	require.NoError(t, err)
	fset := token.NewFileSet()
	var files []*ast.File
	for _, name := range slices.Concat(p.GoFiles, p.CgoFiles) {
		f, err := parser.ParseFile(fset, filepath.Join(dir, name), nil, parser.ParseComments|parser.SkipObjectResolution)
		require.NoError(t, err)
		files = append(files, f)
	}
	return shown(t, fset, files)
}

// shown is the surface of files of one package.
func shown(t *testing.T, fset *token.FileSet, files []*ast.File) (s surface) {
	t.Helper()
	inside := map[string]bool{} // names of imported internal packages
	for _, f := range files {
		for _, i := range f.Imports {
			path, err := strconv.Unquote(i.Path.Value)
			require.NoError(t, err)
			if strings.Contains("/"+path+"/", "/internal/") {
				name := path[strings.LastIndex(path, "/")+1:]
				if i.Name != nil {
					name = i.Name.Name
				}
				inside[name] = true
			}
		}
	}
	d, err := doc.NewFromFiles(fset, files, "example.test/p")
	require.NoError(t, err)
	note := func(name string, signature ast.Node) {
		s.names = append(s.names, name)
		ast.Inspect(signature, func(n ast.Node) bool {
			if x, ok := n.(*ast.SelectorExpr); ok {
				if of, ok := x.X.(*ast.Ident); ok && inside[of.Name] {
					s.internal = append(s.internal, name+" has "+of.Name+"."+x.Sel.Name)
				}
			}
			return true
		})
	}
	for _, f := range d.Funcs {
		note(f.Name, f.Decl.Type)
	}
	for _, x := range d.Types {
		note(x.Name, x.Decl) // go/doc leaves out what is not exported
		for _, f := range x.Funcs {
			note(f.Name, f.Decl.Type)
		}
		for _, f := range x.Methods {
			note(x.Name+"."+f.Name, f.Decl.Type)
		}
	}
	return s
}

// TestSurface: go doc of what programs use shows nothing that a program cannot use.
func TestSurface(t *testing.T) {
	dir := root(t)
	all := 0
	for _, name := range surfaces {
		s := surfaceOf(t, filepath.Join(dir, name))
		require.Empty(t, s.internal, name)
		t.Logf("%s: %d", name, len(s.names))
		all += len(s.names)
	}
	t.Logf("together: %d", all)
	require.LessOrEqual(t, all, mostSurface)
	require.LessOrEqual(t, len(surfaceOf(t, filepath.Join(dir, "cgo", "cuda")).names), 15, "the others only satisfy interfaces")
}

// TestSurfaceIsSeen: the check finds what it looks for, and leaves alone what is not exported.
func TestSurfaceIsSeen(t *testing.T) {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, "p.go", `package p

import (
	"example.test/internal/inner"
	other "example.test/x/internal/y"
)

func Open(inner.Key) {}

type T struct {
	Shown  other.Z
	hidden inner.Key
}

func (T) M() *other.Z { return nil }
func (T) quiet(inner.Key) {}

type alias = inner.Key
`, parser.ParseComments|parser.SkipObjectResolution)
	require.NoError(t, err)
	s := shown(t, fset, []*ast.File{f})
	require.ElementsMatch(t, []string{"Open", "T", "T.M"}, s.names)
	require.ElementsMatch(t, []string{"Open has inner.Key", "T has other.Z", "T.M has other.Z"}, s.internal)
}
