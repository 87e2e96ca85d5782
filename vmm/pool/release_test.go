package pool

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestOneFunctionReleasesTheLock: no function but search.without releases a lock that its caller
// holds, and none whose name says that the lock is held calls it, directly or through others.
func TestOneFunctionReleasesTheLock(t *testing.T) {
	names, err := filepath.Glob("*.go")
	require.NoError(t, err)
	var found releases
	for _, name := range names {
		if !strings.HasSuffix(name, "_test.go") {
			src, err := os.ReadFile(name)
			require.NoError(t, err)
			found.add(t, string(src))
		}
	}
	require.Equal(t, []string{"without"}, found.first)
	reach := found.reach()
	require.Contains(t, reach, "obtain")
	for _, name := range reach {
		require.NotContains(t, name, "Locked")
	}
}

// TestReleasesAreFound: what the test above looks for.
func TestReleasesAreFound(t *testing.T) {
	for _, test := range []struct {
		body  string
		first bool
	}{
		{"p.mu.Unlock(); f(); p.mu.Lock()", true},
		{"p.mu.Unlock(); defer func() { p.mu.Lock() }(); f()", true},
		{"p.mu.Unlock(); p.lockAll()", true},
		{"p.moved.Wait()", true},
		{"st.mu.Lock(); p.mu.Unlock(); f(); p.mu.Lock()", true},
		{"p.mu.Lock(); f(); p.mu.Unlock()", false},
		{"p.mu.Lock(); defer p.mu.Unlock(); p.moved.Wait()", false},
		{"p.lockAll(); p.mu.Unlock()", false},
		{"defer p.mu.Unlock(); f()", false},
	} {
		var found releases
		found.add(t, "package pool\nfunc (p *Pool) g() {"+test.body+"}\nfunc (p *Pool) xLocked() { p.y() }\nfunc (p *Pool) y() { p.g() }")
		require.Equal(t, test.first, len(found.first) > 0, test.body)
		require.Equal(t, test.first, slices.Contains(found.reach(), "xLocked"), test.body)
	}
}

// releases is which functions release a lock of their caller.
type releases struct {
	first []string            // they unlock before they lock
	calls map[string][]string // what each function calls, by name
}

func (r *releases) add(t *testing.T, src string) {
	file, err := parser.ParseFile(token.NewFileSet(), "", src, parser.SkipObjectResolution)
	require.NoError(t, err)
	if r.calls == nil {
		r.calls = map[string][]string{}
	}
	for _, d := range file.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok && fn.Body != nil && !strings.HasPrefix(fn.Name.Name, "unlock") {
			r.function(fn)
		}
	}
}

func (r *releases) function(fn *ast.FuncDecl) {
	name := fn.Name.Name
	locked := map[string]bool{} // by the expression for what has the lock
	all, released := false, false
	ast.Inspect(fn.Body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.DeferStmt: // at the end, unless it is a whole function
			_, whole := n.Call.Fun.(*ast.FuncLit)
			return whole
		case *ast.SelectorExpr: // also one that is not called here, as in the table of steps
			r.calls[name] = append(r.calls[name], n.Sel.Name)
		case *ast.CallExpr:
			called := types.ExprString(n.Fun)
			at := strings.LastIndex(called, ".")
			of := strings.TrimSuffix(called[:max(at, 0)], ".mu")
			switch called[at+1:] {
			case "lockAll", "lockFreed":
				all = true
			case "Lock":
				locked[of] = true
			case "Wait":
				of = strings.TrimSuffix(strings.TrimSuffix(of, ".moved"), ".noneUnderWay")
				fallthrough
			case "Unlock":
				released = released || !all && !locked[of]
			}
		}
		return true
	})
	if released {
		r.first = append(r.first, name)
	}
}

// reach is the functions that call one of the first, and those that call these, and so on.
func (r *releases) reach() []string {
	all := slices.Clone(r.first)
	for i := 0; i < len(all); i++ {
		for name, calls := range r.calls {
			if slices.Contains(calls, all[i]) && !slices.Contains(all, name) {
				all = append(all, name)
			}
		}
	}
	return all
}
