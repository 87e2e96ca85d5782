package main

import (
	_ "embed" // the probe
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

//go:embed testdata/probe.go
var probe []byte

// operations are printed in this order. Each is the sum of what the probe
// measured under the names after the first.
var operations = [][]string{
	{"Append that fits", "Append that fits"},
	{"Append that grows", "Append that grows"},
	{"Clip after Use", "Clip after Use", "background"},
	{"  until it returns", "Clip after Use"},
	{"  in the background", "background"},
	{"first Sleep", "first Sleep"},
}

// block is a line of a coverage profile: file, first line and column, count.
var block = regexp.MustCompile(`(?m)^(\S+):(\d+)\.(\d+),\S+ \d+ ([1-9]\d*)$`)

// crossed prints how many functions and files of vmm each operation runs through.
func crossed(root string, args []string) error {
	fs := flag.NewFlagSet("crossed", flag.ExitOnError)
	verbose := fs.Bool("v", false, "list the functions")
	closures := fs.Bool("closures", false, "count function literals, too")
	_ = fs.Parse(args)
	tmp, err := os.MkdirTemp("", "structure")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	if root, err = filepath.Abs(root); err != nil {
		return err
	}
	if err := runProbe(root, tmp); err != nil {
		return err
	}
	module, err := run(root, nil, "go", "list", "-m")
	if err != nil {
		return err
	}
	for _, op := range operations {
		profile, dirs := filepath.Join(tmp, "profile"), tmp+"/"+strings.Join(op[1:], ","+tmp+"/")
		if _, err := run(root, nil, "go", "tool", "covdata", "textfmt", "-i", dirs, "-o", profile); err != nil {
			return err
		}
		text, err := os.ReadFile(profile)
		if err != nil {
			return err
		}
		functions, err := functionsOf(root, strings.TrimSpace(module)+"/", string(text), *closures)
		if err != nil {
			return err
		}
		n := 0
		for _, names := range functions {
			n += len(names)
		}
		fmt.Printf("%-20s %3d functions, %2d files\n", op[0], n, len(functions))
		if *verbose {
			for _, file := range slices.Sorted(maps.Keys(functions)) {
				fmt.Printf("    %-28s %s\n", file, strings.Join(slices.Sorted(maps.Keys(functions[file])), " "))
			}
		}
	}
	return nil
}

// runProbe has the probe write a folder for each operation into tmp. It is
// built in a folder of the checkout, which is removed again.
func runProbe(root, tmp string) error {
	dir, err := os.MkdirTemp(root, "structureprobe")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := os.WriteFile(filepath.Join(dir, "main.go"), probe, 0o600); err != nil {
		return err
	}
	bin, pkg := filepath.Join(tmp, "probe"), "./"+filepath.Base(dir)
	if _, err := run(root, nil, "go", "build", "-cover", "-covermode=atomic",
		"-coverpkg=./vmm/...,"+pkg, "-o", bin, pkg); err != nil {
		return err
	}
	_, err = run(root, []string{"GOCOVERDIR=" + tmp}, bin, tmp)
	return err
}

// run returns what a command prints; what it says on stderr becomes the error.
func run(dir string, env []string, name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.Output()
	if exit, ok := err.(*exec.ExitError); ok {
		return "", fmt.Errorf("%s: %w: %s", name, err, exit.Stderr)
	}
	return string(out), err
}

// functionsOf returns the functions that a coverage profile says have run, by file.
func functionsOf(root, module, profile string, closures bool) (map[string]map[string]bool, error) {
	fset, parsed := token.NewFileSet(), map[string]*ast.File{}
	functions := map[string]map[string]bool{}
	for _, m := range block.FindAllStringSubmatch(profile, -1) {
		file := strings.TrimPrefix(m[1], module)
		dir := filepath.Dir(file)
		if dir != "vmm" && !strings.HasPrefix(dir, "vmm/internal") {
			continue
		}
		if parsed[file] == nil {
			f, err := parser.ParseFile(fset, filepath.Join(root, file), nil, 0)
			if err != nil {
				return nil, err
			}
			parsed[file], functions[file] = f, map[string]bool{}
		}
		line, _ := strconv.Atoi(m[2])
		column, _ := strconv.Atoi(m[3])
		f := fset.File(parsed[file].FileStart)
		name, closure := function(f, parsed[file], f.LineStart(line)+token.Pos(column-1))
		if !closure || closures {
			functions[file][name] = true
		}
	}
	maps.DeleteFunc(functions, func(_ string, names map[string]bool) bool { return len(names) == 0 })
	return functions, nil
}

// function returns the innermost function around pos, and whether it is a literal.
func function(f *token.File, file *ast.File, pos token.Pos) (name string, closure bool) {
	ast.Inspect(file, func(n ast.Node) bool {
		if n == nil || pos < n.Pos() || n.End() <= pos {
			return false
		}
		switch n := n.(type) {
		case *ast.FuncDecl:
			name = n.Name.Name
			if n.Recv != nil {
				name = typeName(n.Recv.List[0].Type) + "." + name
			}
		case *ast.FuncLit:
			if pos >= n.Body.Pos() {
				name, closure = fmt.Sprintf("%s:%d", name, f.Line(n.Pos())), true
			}
		}
		return true
	})
	return name, closure
}
