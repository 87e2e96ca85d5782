package repochecks

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"
)

// Links of documents to files of this module, and to headings in them, must lead there.
func TestLinks(t *testing.T) {
	dir := root(t)
	count := 0
	require.NoError(t, filepath.WalkDir(dir, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && file != dir && (d.Name() == "bin" || strings.HasPrefix(d.Name(), ".")) {
			return fs.SkipDir
		}
		if d.IsDir() || filepath.Ext(file) != ".md" {
			return nil
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		count += len(linksIn(string(text)))
		for _, broken := range brokenLinks(file, string(text)) {
			t.Errorf("%s: %s", file, broken)
		}
		return nil
	}))
	require.NotZero(t, count)

	got := brokenLinks(filepath.Join(dir, "README.md"), `# The top
[here](#the-top) [there](docs/README.md) [away](https://example.com/none) [title](#top)
[none](docs/none.md) <img src="docs/images/none.svg"> [part](docs/contributing/architecture.md#no-part)
`)
	require.Equal(t, []string{
		"#top: no such heading", "docs/none.md: no such file",
		"docs/contributing/architecture.md#no-part: no such heading", "docs/images/none.svg: no such file",
	}, got)
}

var (
	markdownLink = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	htmlLink     = regexp.MustCompile(`(?:src|srcset|href)="([^"]+)"`)
	heading      = regexp.MustCompile(`(?m)^#+ (.*)$`)
	codeBlock    = regexp.MustCompile("(?ms)^```.*?^```$")
)

// linksIn are the links of a document, those to other sites left out.
func linksIn(text string) (links []string) {
	text = codeBlock.ReplaceAllString(text, "")
	for _, form := range []*regexp.Regexp{markdownLink, htmlLink} {
		for _, m := range form.FindAllStringSubmatch(text, -1) {
			if !strings.Contains(m[1], "://") {
				links = append(links, m[1])
			}
		}
	}
	return links
}

// brokenLinks returns which links of the document at file lead nowhere.
func brokenLinks(file, text string) (broken []string) {
	for _, link := range linksIn(text) {
		to, part, _ := strings.Cut(link, "#")
		target, found := text, error(nil)
		if to != "" {
			to = filepath.Join(filepath.Dir(file), filepath.FromSlash(to))
			if _, found = os.Stat(to); found == nil && part != "" {
				var b []byte
				b, found = os.ReadFile(to)
				target = string(b)
			}
		}
		switch {
		case found != nil:
			broken = append(broken, link+": no such file")
		case part != "" && !hasHeading(target, part):
			broken = append(broken, link+": no such heading")
		}
	}
	return broken
}

// hasHeading reports whether a heading of the document has that anchor on GitHub.
func hasHeading(text, anchor string) bool {
	for _, m := range heading.FindAllStringSubmatch(codeBlock.ReplaceAllString(text, ""), -1) {
		slug := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-', r == '_', unicode.IsLetter(r), unicode.IsDigit(r):
				return unicode.ToLower(r)
			}
			return -1
		}, m[1])
		if slug == anchor {
			return true
		}
	}
	return false
}

// Every page of docs is in the index, and in the site's navigation if it is for users.
func TestPagesAreListed(t *testing.T) {
	docs, nav, index := filepath.Join(root(t), "docs"), readDoc(t, "mkdocs.yml"), readDoc(t, "docs/README.md")
	pages := 0
	require.NoError(t, filepath.WalkDir(docs, func(file string, d fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(file) != ".md" {
			return err
		}
		page, err := filepath.Rel(docs, file)
		if err != nil || page == "README.md" {
			return err
		}
		pages++
		page = filepath.ToSlash(page)
		if !strings.HasPrefix(page, "contributing/") && page != "reference/protocol.md" {
			require.Contains(t, nav, ": "+page+"\n")
		}
		require.Contains(t, index, "]("+page+")")
		return nil
	}))
	require.NotZero(t, pages)
}

// A name of this module that a document shows as code must exist.
func TestNamesInDocuments(t *testing.T) {
	names := exportedNames(t)
	for _, doc := range snippetPages {
		require.Empty(t, unknownNames(readDoc(t, doc), names), doc)
	}
	require.Equal(t, []string{"vmm.Opened", "Range.Nothing"},
		unknownNames("`vmm.Open`, `vmm.Opened`, `Range.Append`, `Range.Nothing()`, `os.Exit`, `Len`", names))
}

// troubleshooting.md has a line for each error of the packages that it is about, with its text as a
// log shows it.
func TestErrorsAreExplained(t *testing.T) {
	page, texts, count := readDoc(t, "docs/guides/troubleshooting.md"), errorTexts(t), 0
	for name := range exportedNames(t) {
		pkg, of, _ := strings.Cut(name, ".")
		if !regexp.MustCompile(`^Err[A-Z]`).MatchString(of) || pkg == "driver" || pkg != strings.ToLower(pkg) {
			continue
		}
		count++
		require.NotEmpty(t, texts[name], name)
		require.Contains(t, page, fmt.Sprintf("| `%s`, %q |", name, texts[name]))
	}
	require.NotZero(t, count)
}

// errorTexts are the texts of the library's errors by name, as "vmm.ErrFull". What an error wraps
// is not in its text here.
func errorTexts(t *testing.T) map[string]string {
	t.Helper()
	texts, others := map[string]string{}, map[string]string{}
	for _, pkg := range append([]string{"cgo/nccl"}, libraryPackages...) {
		for _, file := range parsePackage(t, pkg) {
			ast.Inspect(file, func(n ast.Node) bool {
				s, ok := n.(*ast.ValueSpec)
				if !ok {
					return true
				}
				for i, name := range s.Names {
					if i >= len(s.Values) || !strings.HasPrefix(name.Name, "Err") {
						continue
					}
					key := path.Base(pkg) + "." + name.Name
					if sel, ok := s.Values[i].(*ast.SelectorExpr); ok { // another package's error
						others[key] = types.ExprString(sel)
					} else {
						texts[key] = strings.TrimPrefix(firstString(s.Values[i]), "%w: ")
					}
				}
				return false
			})
		}
	}
	for key, other := range others {
		texts[key] = texts[other]
	}
	return texts
}

// firstString is the first string in an expression.
func firstString(x ast.Expr) (text string) {
	ast.Inspect(x, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING && text == "" {
			text, _ = strconv.Unquote(lit.Value)
		}
		return text == ""
	})
	return text
}

// libraryPackages are the packages whose names documents use.
var libraryPackages = []string{
	"cgo/nvrtc", "growable", "shareable", "shareable/collective", "shareable/collective/collectivetest", "shareable/ipc", "shareable/store", "vmm", "vmm/driver", "vmm/driver/drivertest", "vmm/driver/host", "vmm/dlpack", "vmm/kernel",
	"vmm/memmap", "vmm/memmap/gpuprocs", "vmm/memprof", "vmm/memtrace", "vmm/pool", "vmm/vmmtest",
}

// exportedNames are the exported names of the library's packages: "vmm.Open", and fields
// and methods as "Range.Append".
func exportedNames(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	for _, pkg := range libraryPackages {
		for _, file := range parsePackage(t, pkg) {
			addNames(names, path.Base(pkg), file)
		}
	}
	return names
}

// parsePackage is the files of a package, without its tests.
func parsePackage(t *testing.T, pkg string) (all []*ast.File) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root(t), filepath.FromSlash(pkg), "*.go"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		all = append(all, parsed)
	}
	return all
}

func addNames(names map[string]bool, pkg string, file *ast.File) {
	for _, decl := range file.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			names[declaredName(pkg, d)] = true
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch s := spec.(type) {
				case *ast.ValueSpec:
					for _, name := range s.Names {
						names[pkg+"."+name.Name] = true
					}
				case *ast.TypeSpec:
					names[pkg+"."+s.Name.Name] = true
					ast.Inspect(s.Type, func(n ast.Node) bool {
						if field, ok := n.(*ast.Field); ok {
							for _, name := range field.Names {
								names[s.Name.Name+"."+name.Name] = true
							}
						}
						return true
					})
				}
			}
		}
	}
}

// declaredName is "pkg.Func", or "Type.Method".
func declaredName(pkg string, d *ast.FuncDecl) string {
	if d.Recv == nil {
		return pkg + "." + d.Name.Name
	}
	of := ""
	ast.Inspect(d.Recv.List[0].Type, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok && of == "" {
			of = id.Name
		}
		return of == ""
	})
	return of + "." + d.Name.Name
}

var (
	shownAsCode = regexp.MustCompile("`([A-Za-z]+)\\.([A-Z][A-Za-z]*)(?:\\(\\))?`")
	ourPackage  = regexp.MustCompile(`^(collective|dlpack|growable|ipc|shareable|vmm|driver|drivertest|gpuprocs|host|kernel|memmap|memprof|memtrace|nvrtc|pool|store|vmmtest|[A-Z]\w*)$`)
)

// unknownNames are the names of this module in a document that names does not have.
func unknownNames(doc string, names map[string]bool) (unknown []string) {
	for _, m := range shownAsCode.FindAllStringSubmatch(doc, -1) {
		if name := m[1] + "." + m[2]; ourPackage.MatchString(m[1]) && !names[name] {
			unknown = append(unknown, name)
		}
	}
	return unknown
}
