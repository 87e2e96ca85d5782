package main

import (
	"cmp"
	"flag"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// pair is a file that refers to another.
type pair struct{ from, to string }

// refs prints the references between files, and what a what-if file makes of them.
func refs(root string, args []string) error {
	fs := flag.NewFlagSet("refs", flag.ExitOnError)
	verbose := fs.Bool("v", false, "print the order, and every pair with its identifiers")
	whatIf := fs.String("what-if", "", "count again after the moves in `file`: lines of "+
		`"old.go new.go", "Name new.go", "Type.Method new.go" or "Type.* new.go"`)
	var k kinds
	fs.BoolVar(&k.fields, "fields", true, "count struct fields")
	fs.BoolVar(&k.methods, "methods", true, "count methods")
	fs.BoolVar(&k.methodSets, "methodsets", true, "count each method as a reference by its type")
	_ = fs.Parse(args)
	patterns := fs.Args()
	if len(patterns) == 0 {
		patterns = []string{"./vmm"}
		if _, err := os.Stat(filepath.Join(root, "vmm/internal")); err == nil {
			patterns = append(patterns, "./vmm/internal/...")
		}
	}
	decls, found, err := load(root, patterns, k)
	if err != nil {
		return err
	}
	if *whatIf == "" {
		report(decls, found, *verbose)
		return nil
	}
	fmt.Print("now:     ")
	report(decls, found, false)
	if err := moveAll(decls, *whatIf); err != nil {
		return err
	}
	fmt.Print("what if: ")
	report(decls, found, *verbose)
	return nil
}

// moveAll gives the declarations the files that a what-if file names, line by line.
func moveAll(decls []*decl, file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	for i, line := range strings.Split(string(text), "\n") {
		line, _, _ = strings.Cut(line, "#")
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		if len(words) != 2 || !strings.HasSuffix(words[1], ".go") {
			return fmt.Errorf("%s:%d: want two words, the second a .go file", file, i+1)
		}
		dirs := map[string]bool{}
		for _, d := range decls {
			if !d.matches(words[0]) {
				continue
			}
			dirs[d.dir] = true
			d.file = words[1]
			if !strings.Contains(d.file, "/") {
				d.file = d.dir + "/" + d.file
			}
		}
		if len(dirs) == 0 {
			return fmt.Errorf("%s:%d: there is no %s", file, i+1, words[0])
		}
		if len(dirs) > 1 {
			return fmt.Errorf("%s:%d: %s is in %v; put the folder before it", file, i+1,
				words[0], slices.Sorted(maps.Keys(dirs)))
		}
	}
	return nil
}

// matches reports whether what names d, alone or with the folder before it:
// "range.go", "Range.Len", "Range.*", "vmm/range.go" or "vmm/Range.Len".
func (d *decl) matches(what string) bool {
	if dir, name := path.Split(what); dir != "" {
		if dir = path.Clean(dir); dir != d.dir && dir != path.Dir(d.file) {
			return false
		}
		what = name
	}
	if strings.HasSuffix(what, ".go") {
		return path.Base(d.file) == what
	}
	typ, all := strings.CutSuffix(what, ".*")
	return slices.ContainsFunc(d.names, func(n string) bool {
		return n == typ || all && strings.HasPrefix(n, typ+".")
	})
}

// report prints the numbers and, if verbose, what is behind them.
func report(decls []*decl, found []ref, verbose bool) {
	lines, declared := map[string]int{}, map[string]int{}
	for _, d := range decls {
		lines[d.file] += d.lines
		declared[d.file] += len(d.names)
	}
	// A file that everything has left is gone.
	maps.DeleteFunc(lines, func(f string, _ int) bool { return declared[f] == 0 })
	total := 0
	for _, n := range lines {
		total += n
	}
	pairs := map[pair]map[string]int{}
	for _, r := range found {
		p := pair{r.from.file, r.to.file}
		if p.from == p.to {
			continue
		}
		if pairs[p] == nil {
			pairs[p] = map[string]int{}
		}
		pairs[p][r.to.label(r.name)]++
	}
	files := slices.Sorted(maps.Keys(lines))
	number := map[string]int{}
	g := make(graph, len(files))
	for i, f := range files {
		number[f], g[i] = i, make([]bool, len(files))
	}
	for p := range pairs {
		g[number[p.from]][number[p.to]] = true
	}
	order := g.order()
	largest := 0
	for _, c := range g.components() {
		largest = max(largest, len(c))
	}
	fmt.Printf("%d files, %d pairs, %d against the order, largest cycle %d files, %d lines of code\n",
		len(files), len(pairs), g.against(order), largest, total)
	if !verbose {
		return
	}
	position := map[string]int{}
	fmt.Println("\nOrder; a file should refer only to those above it:")
	for i, n := range order {
		position[files[n]] = i
		fmt.Printf("%3d %-40s %5d lines\n", i+1, files[n], lines[files[n]])
	}
	sorted := slices.SortedFunc(maps.Keys(pairs), func(a, b pair) int {
		return cmp.Or(position[a.from]-position[b.from], position[a.to]-position[b.to])
	})
	for _, forward := range []bool{true, false} {
		fmt.Println(map[bool]string{true: "\nAgainst the order:", false: "\nWith the order:"}[forward])
		for _, p := range sorted {
			if (position[p.to] > position[p.from]) == forward {
				fmt.Printf("%-32s -> %-32s %s\n", p.from, p.to, examples(pairs[p]))
			}
		}
	}
}

// label is how a reference to d by this name is printed: a field with its type.
func (d *decl) label(name string) string {
	for _, n := range d.names {
		if n == name || strings.HasSuffix(n, "."+name) {
			return n
		}
	}
	return strings.Join(d.names[:min(1, len(d.names))], "") + "." + name
}

// examples returns the most used identifiers with their counts.
func examples(uses map[string]int) string {
	names := slices.SortedFunc(maps.Keys(uses), func(a, b string) int {
		return cmp.Or(uses[b]-uses[a], strings.Compare(a, b))
	})
	var out []string
	for _, n := range names[:min(8, len(names))] {
		out = append(out, fmt.Sprintf("%s %d", n, uses[n]))
	}
	if len(names) > 8 {
		out = append(out, fmt.Sprintf("and %d more", len(names)-8))
	}
	return strings.Join(out, ", ")
}
