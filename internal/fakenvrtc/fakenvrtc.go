// Package fakenvrtc builds a libnvrtc that compiles nothing, for tests of the binding:
// which calls it makes, what each error leads to, and what it frees. A source "fails" at
// a line that begins with #error, or that includes a header which was not given. The
// image of any other has a sum of all that a compiler would look at.
//
// The library is C, in lib. A test opens it as the binding opens NVIDIA's, and controls
// it through [Library].
//
//	path := fakenvrtc.Build(t)
//	fake := fakenvrtc.Open(t, path)
//	c, err := nvrtc.Open(path)
//	fake.Fail("nvrtcGetPTX", 1, 11)
package fakenvrtc

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
)

// fileName is the library's, one of those that NVIDIA uses.
const fileName = "libnvrtc.so.13"

// Library is a loaded fake compiler.
type Library struct {
	*control
	tb testing.TB
}

// Missing is the flag of Build that leaves a symbol out. The symbol is named by its
// field in cgo/nvrtc/symbols.h, like "cubin".
func Missing(field string) string { return "-DFAKE_MISSING_" + field }

// Version is the flags of Build that set the version, which is 12.4 otherwise.
func Version(major, minor int) []string {
	return []string{fmt.Sprintf("-DFAKE_MAJOR=%d", major), fmt.Sprintf("-DFAKE_MINOR=%d", minor)}
}

// Build compiles the fake compiler and returns the library's path. Each call makes a
// new file, which is a library of its own when it is loaded. The process compiles once
// for each set of flags. Without a C compiler the test is skipped.
func Build(tb testing.TB, flags ...string) string {
	tb.Helper()
	if runtime.GOOS != "linux" {
		tb.Skip("the fake compiler is for Linux")
	}
	cc := compiler(tb)
	dir := root(tb)
	object := func() ([]byte, error) { return compile(cc, dir, flags) }
	cached, _ := built.LoadOrStore(strings.Join(flags, "\x00"), sync.OnceValues(object))
	library, err := cached.(func() ([]byte, error))() //nolint:forcetypeassert // nothing else is stored
	if err != nil {
		tb.Fatalf("compile the fake compiler: %v", err)
	}
	path := filepath.Join(tb.TempDir(), fileName)
	if err := os.WriteFile(path, library, 0o700); err != nil {
		tb.Fatal(err)
	}
	return path
}

// built holds a func() ([]byte, error) for each set of flags.
var built sync.Map

// Open loads the library at path until the test ends. The binding, opening the same
// path, gets the same library. In a build that can load none the test is skipped.
func Open(tb testing.TB, path string) *Library {
	tb.Helper()
	c, err := openControl(path)
	if errors.Is(err, errors.ErrUnsupported) {
		tb.Skipf("cannot open the fake compiler: %v", err)
	} else if err != nil {
		tb.Fatalf("open the fake compiler: %v", err)
	}
	tb.Cleanup(func() {
		if err := c.close(); err != nil {
			tb.Errorf("close the fake compiler: %v", err)
		}
	})
	return &Library{control: c, tb: tb}
}

// Fail makes the k-th call from now of symbol return code and do nothing else.
func (l *Library) Fail(symbol string, k, code int) {
	l.tb.Helper()
	if err := l.control.fail(symbol, k, code); err != nil {
		l.tb.Fatal(err)
	}
}

// Clean fails the test if a rule was violated or a program was not destroyed.
func (l *Library) Clean() {
	l.tb.Helper()
	if v := l.Violations(); v != "" {
		l.tb.Errorf("violations:\n%s", v)
	}
	if n := l.Live(); n != 0 {
		l.tb.Errorf("%d programs are not destroyed", n)
	}
}
