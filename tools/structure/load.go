package main

import (
	"fmt"
	"go/ast"
	"go/scanner"
	"go/token"
	"go/types"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/tools/go/packages"
)

// decl is what moves as one: a function, a method, a type with its fields, one
// line of a var block, or a whole const block. Every file has one more, without
// a name, for its package clause and imports.
type decl struct {
	names    []string // "Name" or "Type.Method"
	dir      string   // of its package, below the root
	file     string   // below the root; what-if changes it
	pos, end token.Pos
	lines    int // of code
}

// ref is one identifier in from that stands for something declared in to.
type ref struct {
	from, to *decl
	name     string
}

// kinds says what counts besides the names of functions, types, variables and
// constants of a package.
type kinds struct {
	fields, methods bool
	methodSets      bool // a type refers to its methods
}

// loader finds the declaration at a position.
type loader struct {
	fset  *token.FileSet
	decls map[string][]*decl // by absolute file name, the unnamed one first
}

// load returns the declarations of the packages and the references between them.
func load(root string, patterns []string, k kinds) ([]*decl, []ref, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return nil, nil, err
	}
	l := loader{token.NewFileSet(), map[string][]*decl{}}
	pkgs, err := packages.Load(&packages.Config{
		Mode: packages.NeedName | packages.NeedFiles | packages.NeedCompiledGoFiles | packages.NeedImports |
			packages.NeedDeps | packages.NeedTypes | packages.NeedTypesInfo | packages.NeedSyntax,
		Dir: root, Fset: l.fset,
	}, patterns...)
	if err != nil {
		return nil, nil, err
	}
	if packages.PrintErrors(pkgs) > 0 {
		return nil, nil, fmt.Errorf("%v does not compile", patterns)
	}
	var all []*decl
	for _, p := range pkgs {
		for _, f := range p.Syntax {
			if err := l.add(root, f); err != nil {
				return nil, nil, err
			}
		}
	}
	for _, ds := range l.decls {
		all = append(all, ds...)
	}
	var found []ref
	add := func(from token.Pos, obj types.Object) {
		a, b := l.at(from), l.at(obj.Pos())
		if b != nil && a != b && k.count(obj) {
			found = append(found, ref{a, b, obj.Name()})
		}
	}
	for _, p := range pkgs {
		for id, obj := range p.TypesInfo.Uses {
			add(id.Pos(), obj)
		}
		for _, obj := range p.TypesInfo.Defs {
			if f, ok := obj.(*types.Func); ok && k.methodSets {
				if t := receiver(f); t != nil {
					add(t.Pos(), f)
				}
			}
		}
	}
	return all, found, nil
}

func (k kinds) count(obj types.Object) bool {
	switch obj := obj.(type) {
	case *types.Var:
		return !obj.IsField() || k.fields
	case *types.Func:
		return obj.Signature().Recv() == nil || k.methods
	}
	return true
}

// add splits a file into declarations and counts their lines.
func (l loader) add(root string, f *ast.File) error {
	abs := l.fset.Position(f.FileStart).Filename
	rel, err := filepath.Rel(root, abs)
	if err != nil {
		return err
	}
	rel = filepath.ToSlash(rel)
	add := func(n ast.Node, names ...string) {
		l.decls[abs] = append(l.decls[abs], &decl{names, path.Dir(rel), rel, n.Pos(), n.End(), 0})
	}
	add(f)
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			name := d.Name.Name
			if d.Recv != nil {
				name = typeName(d.Recv.List[0].Type) + "." + name
			}
			add(d, name)
		case *ast.GenDecl:
			var consts []string
			for _, s := range d.Specs {
				switch s := s.(type) {
				case *ast.TypeSpec:
					add(s, s.Name.Name)
				case *ast.ValueSpec:
					var names []string
					for _, n := range s.Names {
						names = append(names, n.Name)
					}
					if d.Tok == token.CONST {
						consts = append(consts, names...)
					} else {
						add(s, names...)
					}
				}
			}
			if consts != nil {
				add(d, consts...)
			}
		}
	}
	if ds := l.decls[abs]; len(ds) == 1 {
		ds[0].names = []string{"package " + f.Name.Name} // doc.go
	}
	src, err := os.ReadFile(abs)
	if err != nil {
		return err
	}
	l.countLines(l.fset.File(f.FileStart), src)
	return nil
}

// typeName returns the name of a receiver's type.
func typeName(t ast.Expr) string {
	switch t := t.(type) {
	case *ast.StarExpr:
		return typeName(t.X)
	case *ast.IndexExpr:
		return typeName(t.X)
	case *ast.IndexListExpr:
		return typeName(t.X)
	}
	return t.(*ast.Ident).Name
}

// receiver returns the type whose method f is, or nil.
func receiver(f *types.Func) types.Object {
	r := f.Signature().Recv()
	if r == nil {
		return nil
	}
	t := r.Type()
	if p, ok := t.(*types.Pointer); ok {
		t = p.Elem()
	}
	if t, ok := t.(*types.Named); ok {
		return t.Obj()
	}
	return nil
}

// countLines gives each line that holds more than a comment to a declaration.
func (l loader) countLines(f *token.File, src []byte) {
	own := token.NewFileSet()
	var s scanner.Scanner
	s.Init(own.AddFile("", -1, len(src)), src, nil, 0)
	last := 0
	for {
		pos, tok, lit := s.Scan()
		if tok == token.EOF {
			return
		}
		if tok == token.SEMICOLON && lit == "\n" {
			continue
		}
		at := f.Pos(own.Position(pos).Offset)
		line, more := f.Line(at), strings.Count(lit, "\n")
		if line > last {
			l.at(at).lines++
		}
		l.at(at).lines += more
		last = line + more
	}
}

// at returns the declaration at pos, or nil if pos is in none of the packages.
func (l loader) at(pos token.Pos) *decl {
	f := l.fset.File(pos)
	if f == nil {
		return nil
	}
	var found *decl
	for i, d := range l.decls[f.Name()] {
		if i == 0 || d.pos <= pos && pos < d.end {
			found = d
		}
	}
	return found
}
