package repochecks

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestAliasesShowWhatTheyAre: go doc shows no field and no constant of an alias, so the
// comment on each alias of package vmm has the lines of package driver.
func TestAliasesShowWhatTheyAre(t *testing.T) {
	dir := root(t)
	drivers := parsed(t, filepath.Join(dir, "vmm", "driver"))
	found := 0
	texts := map[string]string{}
	for _, f := range parsed(t, filepath.Join(dir, "vmm")) {
		for _, d := range f.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok || g.Tok != token.TYPE {
				continue
			}
			for _, s := range g.Specs {
				spec, ok := s.(*ast.TypeSpec)
				if !ok || !spec.Assign.IsValid() || !strings.HasPrefix(source(t, spec.Type), "driver.") {
					continue
				}
				found++
				doc := g.Doc.Text() + spec.Doc.Text()
				name := spec.Name.Name
				require.Empty(t, texts[doc], "%s has the text of another", name)
				texts[doc] = name
				require.True(t, strings.HasPrefix(doc, name+" "), "the text of %s begins with its name", name)
				for _, line := range membersOf(t, drivers, name) {
					require.Contains(t, spaced(doc), line, "the text of %s", name)
				}
			}
		}
	}
	require.NotZero(t, found)
	require.Contains(t, membersOf(t, drivers, "Info"), `Arch string // "sm_90"; empty where it has no meaning`)
	require.Contains(t, membersOf(t, drivers, "Feature"), "FeatureRDMA Prop.RDMA")
}

// membersOf is the lines of a type: its fields as they are written, or its constants
// and their comments.
func membersOf(t *testing.T, files []*ast.File, name string) (lines []string) {
	t.Helper()
	for _, f := range files {
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.TypeSpec:
				if s, ok := n.Type.(*ast.StructType); ok && n.Name.Name == name {
					for _, field := range s.Fields.List {
						line := field.Names[0].Name + " " + source(t, field.Type)
						if comment := spaced(field.Comment.Text()); comment != "" {
							line += " // " + comment
						}
						lines = append(lines, line)
					}
				}
			case *ast.GenDecl:
				// A constant without a type has that of the one before it.
				of := ""
				for _, s := range n.Specs {
					c, ok := s.(*ast.ValueSpec)
					if !ok || n.Tok != token.CONST {
						return true
					}
					if c.Type != nil {
						of = source(t, c.Type)
					}
					if of == name && c.Names[0].IsExported() {
						lines = append(lines, strings.TrimSpace(c.Names[0].Name+" "+spaced(c.Comment.Text())))
					}
				}
			}
			return true
		})
	}
	return lines
}

// spaced is text with single spaces.
func spaced(text string) string { return strings.Join(strings.Fields(text), " ") }

func source(t *testing.T, n ast.Node) string {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, printer.Fprint(&b, token.NewFileSet(), n))
	return b.String()
}

// parsed is the files of a package, tests left out.
func parsed(t *testing.T, dir string) (files []*ast.File) {
	t.Helper()
	all, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range all {
		if !strings.HasSuffix(e.Name(), ".go") || strings.HasSuffix(e.Name(), "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(dir, e.Name()), nil, parser.ParseComments)
		require.NoError(t, err)
		files = append(files, f)
	}
	require.NotEmpty(t, files)
	return files
}
