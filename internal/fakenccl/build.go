package fakenccl

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

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
func root(tb testing.TB) string {
	tb.Helper()
	dir, err := os.Getwd()
	if err != nil {
		tb.Fatal(err)
	}
	for ; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "internal", "fakenccl", "lib")); err == nil {
			return dir
		}
	}
	tb.Skip("needs the module's sources")
	return ""
}

// compile returns the bytes of the shared library.
func compile(cc, root string, flags []string) ([]byte, error) {
	dir, err := os.MkdirTemp("", "fakenccl")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a leftover in the folder for leftovers
	lib, binding := filepath.Join(root, "internal", "fakenccl", "lib"), filepath.Join(root, "cgo", "nccl")
	sources, err := filepath.Glob(filepath.Join(lib, "*.c"))
	if err != nil {
		return nil, err
	}
	headers, err := filepath.Glob(filepath.Join(lib, "*.h"))
	if err != nil {
		return nil, err
	}
	// The test cache knows which files this process looks at, not which the compiler
	// reads.
	for _, file := range append(append(headers, filepath.Join(binding, "symbols.h")), sources...) {
		if _, err := os.Stat(file); err != nil {
			return nil, err
		}
	}
	out := filepath.Join(dir, fileName)
	args := append([]string{"-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-g", "-fPIC", "-shared",
		"-fvisibility=hidden", "-pthread", "-I", lib, "-I", binding, "-o", out}, flags...)
	if text, err := exec.Command(cc, append(args, sources...)...).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w\n%s", err, text)
	}
	return os.ReadFile(out)
}
