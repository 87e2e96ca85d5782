package repochecks

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// clocksFile lists the functions of tests that may look at a clock, each with the reason. A
// reason is a line of its own, and the lines below it that begin with a tab have the functions
// of a file.
const clocksFile = "internal/repochecks/testdata/clocks.txt"

// testSupport are the folders whose code is for tests, beside the files of tests.
var testSupport = []string{
	"internal/testing/", "vmm/driver/drivertest/", "vmm/vmmtest/", "shareable/collective/collectivetest/",
}

// A test waits for events. Where it sleeps, or compares with a time of its own, the list has
// the reason; and the list has nothing else.
func TestClocks(t *testing.T) {
	listed, err := clocksListed(readDoc(t, clocksFile))
	require.NoError(t, err)
	found := map[string]string{}
	dir := root(t)
	require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != dir && (d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".")) {
			return fs.SkipDir
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil || d.IsDir() || !isForTests(filepath.ToSlash(rel)) {
			return err
		}
		src, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		calls, err := clocks(src)
		if err != nil {
			return err
		}
		for name, call := range calls {
			found[filepath.ToSlash(rel)+": "+name] = call
		}
		return nil
	}))
	require.NotEmpty(t, found)
	for _, name := range slices.Sorted(maps.Keys(found)) {
		if listed[name] == "" {
			t.Errorf("%s has %s: wait for an event, or say in %s why not", name, found[name], clocksFile)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(listed)) {
		if found[name] == "" {
			t.Errorf("%s: %s looks at no clock", clocksFile, name)
		}
	}
}

func isForTests(path string) bool {
	if strings.HasSuffix(path, "_test.go") {
		return true
	}
	return strings.HasSuffix(path, ".go") &&
		slices.ContainsFunc(testSupport, func(dir string) bool { return strings.HasPrefix(path, dir) })
}

// clocksListed returns the reason of each function in the list.
func clocksListed(text string) (map[string]string, error) {
	all, reason := map[string]string{}, ""
	for n, line := range strings.Split(text, "\n") {
		entry, indented := strings.CutPrefix(line, "\t")
		switch {
		case line == "" || strings.HasPrefix(line, "#"):
		case !indented:
			reason = line
		default:
			path, names, two := strings.Cut(entry, ": ")
			if !two || reason == "" {
				return nil, fmt.Errorf("%s:%d: neither a reason nor functions of a file", clocksFile, n+1)
			}
			for name := range strings.SplitSeq(names, ", ") {
				key := path + ": " + name
				if all[key] != "" {
					return nil, fmt.Errorf("%s:%d: %s stands there twice", clocksFile, n+1, key)
				}
				all[key] = reason
			}
		}
	}
	return all, nil
}

// clocks returns the functions of a file that sleep, or compare with a time of their own, and
// the first call by which each does. What is not meant: the clock of a bubble of testing/synctest,
// and a limit after which a test that hangs has failed, which is guardTime or more.
func clocks(src []byte) (map[string]string, error) {
	file, err := parser.ParseFile(token.NewFileSet(), "", src, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	found := map[string]string{}
	for _, d := range file.Decls {
		name := "variables"
		if f, is := d.(*ast.FuncDecl); is {
			if name = f.Name.Name; f.Recv != nil {
				name = receiver(f.Recv.List[0].Type) + "." + name
			}
		}
		look := clockFinder{guarded: map[ast.Node]bool{}}
		ast.Inspect(d, look.markGuards)
		ast.Inspect(d, look.find)
		if look.call != "" {
			found[name] = look.call
		}
	}
	return found, nil
}

// clockFinder looks at one declaration.
type clockFinder struct {
	guarded  map[ast.Node]bool // calls of time.Now whose result is only the end of a guard
	hasGuard bool              // one of those is in this function
	call     string
}

// guardTime is the least limit that is no wait: after it a test that hangs has failed.
const guardTime = 10 * time.Second

// markGuards finds time.Now().Add(guard).
func (c *clockFinder) markGuards(n ast.Node) bool {
	if call, is := n.(*ast.CallExpr); is {
		if now := onNow(call, "Add"); now != nil && isGuard(call.Args[0]) {
			c.guarded[now], c.hasGuard = true, true
		}
	}
	return true
}

// onNow returns the call of time.Now on whose result call is one of the methods.
func onNow(call *ast.CallExpr, methods ...string) *ast.CallExpr {
	method, is := call.Fun.(*ast.SelectorExpr)
	if !is || len(call.Args) != 1 || !slices.Contains(methods, method.Sel.Name) {
		return nil
	}
	if now, is := method.X.(*ast.CallExpr); is && selected(now.Fun) == "time.Now" {
		return now
	}
	return nil
}

func (c *clockFinder) find(n ast.Node) bool {
	call, is := n.(*ast.CallExpr)
	if !is {
		return true
	}
	if now := onNow(call, "Before", "After"); now != nil && c.hasGuard {
		c.guarded[now] = true
	}
	limit := -1 // which argument is one
	name := selected(call.Fun)
	if f, is := call.Fun.(*ast.Ident); is && f.Name == "bubble" { // vmm's synctest.Test
		return false
	}
	switch name {
	case "synctest.Test":
		return false
	case "time.Now":
		if c.guarded[call] {
			return true
		}
	case "time.Sleep", "time.Since", "time.Until", "time.NewTicker", "time.Tick", "require.Never", "assert.Never":
	case "time.After", "time.AfterFunc", "time.NewTimer":
		limit = 0
	case "context.WithTimeout", "context.WithTimeoutCause", "context.WithDeadline", "context.WithDeadlineCause":
		limit = 1
	case "require.Eventually", "require.Eventuallyf", "require.EventuallyWithT", "assert.Eventually", "assert.EventuallyWithT":
		limit = 2
	default:
		return true
	}
	if limit >= 0 && limit < len(call.Args) && isGuard(call.Args[limit]) {
		return true
	}
	if c.call == "" {
		c.call = name
	}
	return true
}

// selected is pkg.Name of such an expression.
func selected(e ast.Expr) string {
	s, is := e.(*ast.SelectorExpr)
	if !is {
		return ""
	}
	if x, is := s.X.(*ast.Ident); is {
		return x.Name + "." + s.Sel.Name
	}
	return ""
}

func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return "?"
}

// isGuard reports whether a limit can only be reached by a test that hangs.
func isGuard(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name == "patience" || e.Name == "inTime"
	case *ast.SelectorExpr:
		return isGuard(e.Sel) || length(e) >= guardTime
	case *ast.ParenExpr:
		return isGuard(e.X)
	case *ast.CallExpr: // time.Now().Add(guard), for a deadline
		return onNow(e, "Add") != nil && isGuard(e.Args[0])
	case *ast.BinaryExpr:
		if (e.Op == token.MUL || e.Op == token.ADD) && (isGuard(e.X) || isGuard(e.Y)) {
			return true
		}
	}
	return length(e) >= guardTime
}

// length is the value of a constant expression of whole numbers and units of time, or 0.
func length(e ast.Expr) time.Duration {
	switch e := e.(type) {
	case *ast.BasicLit:
		n, err := strconv.Atoi(e.Value)
		if err != nil {
			return 0
		}
		return time.Duration(n)
	case *ast.SelectorExpr:
		return map[string]time.Duration{
			"time.Millisecond": time.Millisecond, "time.Second": time.Second, "time.Minute": time.Minute, "time.Hour": time.Hour,
		}[selected(e)]
	case *ast.BinaryExpr:
		if e.Op == token.MUL {
			return length(e.X) * length(e.Y)
		}
	}
	return 0
}

func TestClocksAreFound(t *testing.T) {
	for body, want := range map[string]string{
		"time.Sleep(1)": "time.Sleep",
		"go func() { time.Sleep(time.Minute) }()":                        "time.Sleep",
		"<-time.After(9 * time.Second)":                                  "time.After",
		"<-time.After(10 * time.Second)":                                 "",
		"<-time.After(patience)":                                         "",
		"<-time.After(limit + inTime)":                                   "",
		"<-time.After(limit)":                                            "time.After",
		"require.Less(t, time.Since(begun), patience)":                   "time.Since",
		"require.Never(t, f, time.Minute, 1)":                            "require.Never",
		"require.Eventually(t, f, time.Second, 1)":                       "require.Eventually",
		"require.Eventually(t, f, time.Minute, 1)":                       "",
		"context.WithTimeout(ctx, 5*time.Second)":                        "context.WithTimeout",
		"context.WithTimeout(ctx, 2*inTime)":                             "",
		"synctest.Test(t, func() { time.Sleep(1) })":                     "",
		"c.SetDeadline(time.Now().Add(inTime))":                          "",
		"c.SetDeadline(time.Now().Add(1))":                               "time.Now",
		"begun := time.Now()":                                            "time.Now",
		"context.WithDeadline(ctx, time.Now().Add(1))":                   "context.WithDeadline",
		"end := time.Now().Add(patience); for time.Now().Before(end) {}": "",
		"end := time.Now().Add(1); for time.Now().Before(end) {}":        "time.Now",
		"for time.Now().Before(end) {}":                                  "time.Now",
	} {
		found, err := clocks([]byte("package p\n\nfunc (x *T[E]) f() {\n" + body + "\n}\n"))
		require.NoError(t, err, body)
		require.Equal(t, want, found["T.f"], body)
	}
	_, err := clocksListed("\ta_test.go: F\n")
	require.ErrorContains(t, err, ":1: neither")
	_, err = clocksListed("why\n\ta_test.go: F, F\n")
	require.ErrorContains(t, err, "twice")
	listed, err := clocksListed("# head\n\nwhy\n\ta_test.go: F, T.g\n")
	require.NoError(t, err)
	require.Equal(t, map[string]string{"a_test.go: F": "why", "a_test.go: T.g": "why"}, listed)
}
