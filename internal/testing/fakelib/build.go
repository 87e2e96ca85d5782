package fakelib

import (
	"crypto/sha256"
	"encoding/hex"
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
	Name    string // the package's, below internal/testing; the C is in its folder lib
	Binding string // the binding's, below cgo, whose headers the C includes
	File    string // the library's, one of those that NVIDIA uses
}

// Build compiles the library, if it has not been compiled on this machine, and returns the path
// of a copy with these changes. Each call makes a new file, which is a library of its own when it
// is loaded. Without a C compiler the test is skipped.
func (s Source) Build(tb testing.TB, changes ...Change) string {
	tb.Helper()
	path, err := s.Copy(tb, changes...)
	if err != nil {
		tb.Fatalf("copy %s: %v", s.Name, err)
	}
	return path
}

// Copy is Build, but returns the error of a change that the library cannot have.
func (s Source) Copy(tb testing.TB, changes ...Change) (string, error) {
	tb.Helper()
	if runtime.GOOS != "linux" {
		tb.Skipf("%s is for Linux", s.Name)
	}
	cc, root := compiler(tb), s.root(tb)
	library, err := os.ReadFile(s.compile(tb, cc, root, nil, "-O1", "-fPIC", "-shared", "-fvisibility=hidden"))
	if err == nil {
		err = apply(library, changes)
	}
	if err != nil {
		return "", err
	}
	path := filepath.Join(tb.TempDir(), s.File)
	return path, os.WriteFile(path, library, 0o700)
}

// Selftest compiles the library with selftest/selftest.c and every check that the compiler
// has, and runs that, for errors of the fake itself.
func (s Source) Selftest(tb testing.TB) {
	tb.Helper()
	cc, root := compiler(tb), s.root(tb)
	main := filepath.Join(root, "internal", "testing", s.Name, "selftest", "selftest.c")
	program := s.compile(tb, cc, root, []string{main}, "-fsanitize=address,undefined")
	if text, err := exec.CommandContext(tb.Context(), program).CombinedOutput(); err != nil {
		tb.Fatalf("%v\n%s", err, text)
	}
}

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

// version is what a compiler says of itself.
func version(cc string) string {
	said, _ := versions.LoadOrStore(cc, sync.OnceValue(func() string {
		text, err := exec.Command(cc, "--version").CombinedOutput()
		return fmt.Sprintf("%s\n%s%v", cc, text, err)
	}))
	return said.(func() string)() //nolint:forcetypeassert // nothing else is stored
}

var versions sync.Map // a func() string for each compiler

// folders are the sources' folder and the binding's, below the module's folder.
func (s Source) folders(root string) [2]string {
	return [2]string{filepath.Join(root, "internal", "testing", s.Name, "lib"), filepath.Join(root, "cgo", s.Binding)}
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

// compile returns the path of what cc makes of the library's sources and of more. It lies in the
// user's cache folder, under a name that is a hash of all that goes into it, so a machine compiles
// it once.
func (s Source) compile(tb testing.TB, cc, root string, more []string, flags ...string) string {
	tb.Helper()
	once := fmt.Sprint(s, cc, root, more, flags)
	if path, ok := compiled.Load(once); ok {
		return path.(string) //nolint:forcetypeassert // nothing else is stored
	}
	path := s.compileAnew(tb, cc, root, more, flags)
	compiled.Store(once, path)
	return path
}

// compiled is the path of what this process has asked for before, by what it is made of.
var compiled sync.Map

// compileAnew is compile without what it knows from before.
func (s Source) compileAnew(tb testing.TB, cc, root string, more, flags []string) string {
	tb.Helper()
	args := append([]string{"-std=gnu11", "-Wall", "-Wextra", "-Werror", "-g", "-pthread"}, flags...)
	sum := sha256.New()
	hash := func(file string) {
		text, err := os.ReadFile(file)
		if err != nil {
			tb.Fatal(err)
		}
		fmt.Fprintf(sum, "%s %d\n%s", filepath.Base(file), len(text), text)
	}
	for i, folder := range s.folders(root) {
		args = append(args, "-I", folder)
		files, err := filepath.Glob(filepath.Join(folder, "*.[ch]"))
		if err != nil {
			tb.Fatal(err)
		}
		for _, file := range files {
			if i == 0 && filepath.Ext(file) == ".c" {
				more = append(more, file)
			} else {
				hash(file)
			}
		}
	}
	for _, file := range more {
		hash(file)
	}
	fmt.Fprintf(sum, "%s\n%q", version(cc), args)
	dir := cacheFolder(tb)
	path := filepath.Join(dir, s.Name+"-"+hex.EncodeToString(sum.Sum(nil)))
	if _, err := os.Stat(path); err == nil {
		return path
	}
	// Processes may compile at once: the name appears when the file is whole.
	fresh, err := os.MkdirTemp(dir, "compiling-") //nolint:usetesting // a rename stays in one file system
	if err != nil {
		tb.Fatal(err)
	}
	defer os.RemoveAll(fresh) //nolint:errcheck // a leftover in a cache
	out := filepath.Join(fresh, s.File)
	text, err := exec.CommandContext(tb.Context(), cc, append(append(args, "-o", out), more...)...).CombinedOutput()
	if strings.Contains(string(text), "cannot find") { // the linker, of the sanitizers' libraries
		tb.Skipf("needs the address sanitizer: %s", text)
	}
	if err = errors.Join(err, os.Rename(out, path)); err != nil {
		tb.Fatalf("compile %s: %v\n%s", s.Name, err, text)
	}
	return path
}

// cacheFolder is where compiled libraries stay. It may be deleted at any time.
func cacheFolder(tb testing.TB) string {
	tb.Helper()
	dir, err := os.UserCacheDir()
	if err != nil { // a user without a home
		dir = os.TempDir()
	}
	dir = filepath.Join(dir, "cuvmm-fakes")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		tb.Fatal(err)
	}
	return dir
}
