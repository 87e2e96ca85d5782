package fakenccl

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// exports is what the library at path exports, with NCCL's symbols and the test's apart.
func exports(t *testing.T, path string) (library, control []string) {
	t.Helper()
	file, err := elf.Open(path)
	require.NoError(t, err)
	defer file.Close()
	symbols, err := file.DynamicSymbols()
	require.NoError(t, err)
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

func TestExports(t *testing.T) {
	text, err := os.ReadFile("../../cgo/nccl/symbols.h")
	require.NoError(t, err)
	var called []string
	for _, m := range regexp.MustCompile(`(?m)^\t(?:REQUIRED|OPTIONAL)\([^"]*"(\w+)"`).FindAllStringSubmatch(string(text), -1) {
		called = append(called, m[1])
	}
	require.NotEmpty(t, called)
	library, control := exports(t, Build(t))
	require.ElementsMatch(t, called, library)
	require.ElementsMatch(t, []string{
		"fake_reset", "fake_fail", "fake_calls", "fake_polls", "fake_kill", "fake_violations", "fake_log", "fake_live",
	}, control)
	library, _ = exports(t, Build(t, Version(21800)...))
	require.NotContains(t, library, "ncclCommRegister")
	require.NotContains(t, library, "ncclCommWindowRegister")
	require.Contains(t, library, "ncclCommAbort")
}

func TestOpen(t *testing.T) {
	path := Build(t, Version(21800)...)
	one, same, other := Open(t, path), Open(t, path), Open(t, Build(t))
	one.Fail("ncclGetVersion", 1, 2)
	one.Polls(2)
	for _, l := range []*Library{one, same, other} {
		require.Zero(t, l.Calls("ncclGetVersion"))
		require.Equal(t, -1, l.Calls("ncclGetVersions"))
		require.Zero(t, l.Kill(0, 6))
		require.Empty(t, l.Log())
		l.Reset()
		l.Clean()
	}
	require.Error(t, one.fail("ncclGetVersions", 1, 2))
}

// The fake's own errors show in C, with every check that the compiler has.
func TestSelf(t *testing.T) {
	cc := compiler(t)
	dir := root(t)
	lib := filepath.Join(dir, "internal", "fakenccl", "lib")
	files, err := filepath.Glob(filepath.Join(lib, "*.c"))
	require.NoError(t, err)
	program := filepath.Join(t.TempDir(), "selftest")
	args := append([]string{"-std=gnu11", "-Wall", "-Wextra", "-Werror", "-g", "-fsanitize=address,undefined", "-pthread",
		"-I", lib, "-I", filepath.Join(dir, "cgo", "nccl"), "-o", program, "selftest/selftest.c"}, files...)
	if text, err := exec.CommandContext(t.Context(), cc, args...).CombinedOutput(); err != nil {
		if strings.Contains(string(text), "cannot find") { // the linker, of the sanitizers' libraries
			t.Skipf("needs the address sanitizer: %s", text)
		}
		require.NoError(t, err, string(text))
	}
	text, err := exec.CommandContext(t.Context(), program).CombinedOutput()
	require.NoError(t, err, string(text))
}
