// Package fakelib builds and controls the fake libraries with which the bindings are tested:
// fakecuda, fakenvrtc and fakenccl. Each is C that exports the symbols of NVIDIA's library,
// and beside them control functions named fake_..., of which all have reset, fail, calls and
// violations. A test opens it as the binding does, and controls it through [Library].
package fakelib

import (
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
)

// Source is what a fake library is made of.
type Source struct {
	Name    string // the package's, below internal; the C is in its folder lib
	Binding string // the binding's, below cgo, whose headers the C includes
	File    string // the library's, one of those that NVIDIA uses
}

// folders are the sources' folder and the binding's, below the module's folder.
func (s Source) folders(root string) [2]string {
	return [2]string{filepath.Join(root, "internal", s.Name, "lib"), filepath.Join(root, "cgo", s.Binding)}
}

// Build compiles the library and returns its path. Each call makes a new file, which is a
// library of its own when it is loaded. The process compiles once for each set of flags.
// Without a C compiler the test is skipped.
func (s Source) Build(tb testing.TB, flags ...string) string {
	tb.Helper()
	if runtime.GOOS != "linux" {
		tb.Skipf("%s is for Linux", s.Name)
	}
	cc, dir := compiler(tb), s.root(tb)
	compile := func() ([]byte, error) { return s.compile(cc, dir, flags) }
	cached, _ := built.LoadOrStore(s.Name+"\x00"+strings.Join(flags, "\x00"), sync.OnceValues(compile))
	library, err := cached.(func() ([]byte, error))() //nolint:forcetypeassert // nothing else is stored
	if err != nil {
		tb.Fatalf("compile %s: %v", s.Name, err)
	}
	path := filepath.Join(tb.TempDir(), s.File)
	if err := os.WriteFile(path, library, 0o700); err != nil {
		tb.Fatal(err)
	}
	return path
}

// built holds a func() ([]byte, error) for each source and set of flags.
var built sync.Map

// compiler is the C compiler, as cgo finds it.
func compiler(tb testing.TB) string {
	tb.Helper()
	cc := os.Getenv("CC")
	if cc == "" {
		cc = "cc"
	}
	path, err := exec.LookPath(cc)
	if err != nil {
		tb.Skipf("needs a C compiler: %v", err)
	}
	return path
}

// root is the module's folder. A test runs in its package's folder.
func (s Source) root(tb testing.TB) string {
	tb.Helper()
	dir, err := os.Getwd()
	if err != nil {
		tb.Fatal(err)
	}
	for ; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		if _, err := os.Stat(s.folders(dir)[0]); err == nil {
			return dir
		}
	}
	tb.Skip("needs the module's sources")
	return ""
}

// arguments are those that every compilation has, the sources included.
func (s Source) arguments(root string) ([]string, error) {
	args := []string{"-std=gnu11", "-Wall", "-Wextra", "-Werror", "-g", "-pthread"}
	for i, folder := range s.folders(root) {
		args = append(args, "-I", folder)
		files, err := filepath.Glob(filepath.Join(folder, "*.[ch]"))
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			// The test cache knows which files this process looks at, not which the
			// compiler reads.
			if _, err := os.Stat(file); err != nil {
				return nil, err
			}
			if i == 0 && filepath.Ext(file) == ".c" {
				args = append(args, file)
			}
		}
	}
	return args, nil
}

// compile returns the bytes of the shared library.
func (s Source) compile(cc, root string, flags []string) ([]byte, error) {
	dir, err := os.MkdirTemp("", s.Name)
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a leftover in the folder for leftovers
	args, err := s.arguments(root)
	if err != nil {
		return nil, err
	}
	out := filepath.Join(dir, s.File)
	args = append(args, "-O1", "-fPIC", "-shared", "-fvisibility=hidden", "-o", out)
	if text, err := exec.Command(cc, append(args, flags...)...).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w\n%s", err, text)
	}
	return os.ReadFile(out)
}

// Selftest compiles the library with selftest/selftest.c and every check that the compiler
// has, and runs that, for errors of the fake itself.
func (s Source) Selftest(tb testing.TB) {
	tb.Helper()
	cc, root := compiler(tb), s.root(tb)
	args, err := s.arguments(root)
	if err != nil {
		tb.Fatal(err)
	}
	program := filepath.Join(tb.TempDir(), "selftest")
	args = append(args, "-fsanitize=address,undefined", "-o", program, filepath.Join(root, "internal", s.Name, "selftest", "selftest.c"))
	if text, err := exec.CommandContext(tb.Context(), cc, args...).CombinedOutput(); err != nil {
		if strings.Contains(string(text), "cannot find") { // the linker, of the sanitizers' libraries
			tb.Skipf("needs the address sanitizer: %s", text)
		}
		tb.Fatalf("%v\n%s", err, text)
	}
	if text, err := exec.CommandContext(tb.Context(), program).CombinedOutput(); err != nil {
		tb.Fatalf("%v\n%s", err, text)
	}
}

// Exports is what the library at path exports, its control functions apart.
func Exports(tb testing.TB, path string) (library, control []string) {
	tb.Helper()
	file, err := elf.Open(path)
	if err != nil {
		tb.Fatal(err)
	}
	defer file.Close()
	symbols, err := file.DynamicSymbols()
	if err != nil {
		tb.Fatal(err)
	}
	for _, s := range symbols {
		switch {
		case s.Section == elf.SHN_UNDEF:
		case strings.HasPrefix(s.Name, "fake_"):
			control = append(control, s.Name)
		default:
			library = append(library, s.Name)
		}
	}
	return library, control
}

// Library is a loaded fake library.
type Library struct {
	control
	tb testing.TB
}

// Open loads the library at path until the test ends. The binding, opening the same path,
// gets the same library. In a build that can load none the test is skipped.
func Open(tb testing.TB, path string) *Library {
	tb.Helper()
	c, err := openControl(path)
	if errors.Is(err, errors.ErrUnsupported) {
		tb.Skipf("cannot open %s: %v", path, err)
	} else if err != nil {
		tb.Fatalf("open %s: %v", path, err)
	}
	tb.Cleanup(func() {
		if err := c.close(); err != nil {
			tb.Errorf("close %s: %v", path, err)
		}
	})
	return &Library{control: c, tb: tb}
}

// TB is the test that has opened the library.
func (l *Library) TB() testing.TB { return l.tb }

// Fail makes the k-th call from now of symbol return code and do nothing else. In fakecuda an
// empty symbol is any.
func (l *Library) Fail(symbol string, k, code int) {
	l.tb.Helper()
	if err := l.TryFail(symbol, k, code); err != nil {
		l.tb.Fatal(err)
	}
}

// NoViolations fails the test if there are Violations.
func (l *Library) NoViolations() {
	l.tb.Helper()
	if v := l.Violations(); v != "" {
		l.tb.Errorf("violations:\n%s", v)
	}
}
