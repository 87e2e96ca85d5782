package repochecks

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A journey is a block of code of the language "journey" in docs/contributing/architecture.md: a function a
// line, indented by two below the function that calls it, in the order of the calls.
func TestJourneys(t *testing.T) {
	dir := root(t)
	text, err := os.ReadFile(filepath.Join(dir, "docs", "contributing", "architecture.md"))
	require.NoError(t, err)
	calls := callsOf(t, dir)
	all := journeysIn(string(text))
	require.GreaterOrEqual(t, len(all), 4)
	for _, journey := range all {
		for _, wrong := range calls.check(journey) {
			t.Error(wrong)
		}
	}

	require.Equal(t, []string{
		"Range.none: there is no such function",
		"Bank.MayCreate: Range.Append does not call it",
		"Range.append: Range.appendRows calls it earlier",
		"Bank.Limit: indented by 8 below 4",
	}, calls.check(journeysIn(`
` + "```journey" + `
Range.Append                 a comment
  Range.none
  Bank.MayCreate
  Range.appendRows
    Range.growFor
    Range.append
        Bank.Limit
` + "```")[0]))
}

// journeysIn are the journeys of a document, as their lines.
func journeysIn(text string) (all [][]string) {
	for _, block := range strings.Split(text, "```journey\n")[1:] {
		block, _, _ = strings.Cut(block, "```")
		all = append(all, strings.Split(strings.TrimRight(block, "\n"), "\n"))
	}
	return all
}

// calls is where each function, by "Type.method" and "package.function", mentions which names first: those that it
// calls among them. A method of an interface mentions none.
type calls map[string]map[string]token.Pos

func (c calls) check(journey []string) (wrong []string) {
	var above []string     // the functions that the next line may be called by, from the outermost on
	last := []token.Pos{0} // where each has called the one before the next
	for _, line := range journey {
		name := strings.Fields(line)[0]
		indent := len(line) - len(strings.TrimLeft(line, " "))
		depth := indent / 2
		if indent%2 != 0 || depth > len(above) {
			wrong = append(wrong, fmt.Sprintf("%s: indented by %d below %d", name, indent, 2*(len(above)-1)))
			continue
		}
		above, last = append(above[:depth], name), append(last[:depth+1], 0)
		if c[name] == nil {
			wrong = append(wrong, name+": there is no such function")
			continue
		}
		if depth == 0 {
			continue
		}
		_, short, _ := strings.Cut(name, ".")
		switch at := c[above[depth-1]][short]; {
		case at == 0:
			wrong = append(wrong, fmt.Sprintf("%s: %s does not call it", name, above[depth-1]))
		case at < last[depth]:
			wrong = append(wrong, fmt.Sprintf("%s: %s calls it earlier", name, above[depth-1]))
		default:
			last[depth] = at
		}
	}
	return wrong
}

// callsOf reads the sources of the module.
func callsOf(t *testing.T, dir string) calls {
	t.Helper()
	c := calls{}
	require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != dir && (d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".")):
			return fs.SkipDir
		case d.IsDir() || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				c.add(f.Name.Name, d)
			case *ast.GenDecl:
				c.addTypesAndTables(f.Name.Name, d)
			}
		}
		return nil
	}))
	return c
}

func (c calls) add(pkg string, d *ast.FuncDecl) {
	if d.Recv != nil {
		pkg = typeName(d.Recv.List[0].Type)
	}
	if d.Body == nil {
		c.mention(pkg+"."+d.Name.Name, &ast.EmptyStmt{})
	} else {
		c.mention(pkg+"."+d.Name.Name, d.Body)
	}
}

// addTypesAndTables adds the methods of interfaces, which mention nothing, and variables with what they name.
func (c calls) addTypesAndTables(pkg string, d *ast.GenDecl) {
	for _, s := range d.Specs {
		switch s := s.(type) {
		case *ast.ValueSpec:
			for i, value := range s.Values {
				if i < len(s.Names) {
					c.mention(pkg+"."+s.Names[i].Name, value)
				}
			}
		case *ast.TypeSpec:
			if x, ok := s.Type.(*ast.InterfaceType); ok {
				for _, m := range x.Methods.List {
					for _, name := range m.Names {
						c.mention(s.Name.Name+"."+name.Name, &ast.EmptyStmt{})
					}
				}
			}
		}
	}
}

func (c calls) mention(name string, n ast.Node) {
	if c[name] == nil {
		c[name] = map[string]token.Pos{}
	}
	ast.Inspect(n, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok && c[name][id.Name] == 0 {
			c[name][id.Name] = id.Pos()
		}
		return true
	})
}

// typeName is the name of a receiver's type.
func typeName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return typeName(e.X)
	case *ast.IndexExpr:
		return typeName(e.X)
	case *ast.IndexListExpr:
		return typeName(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}
