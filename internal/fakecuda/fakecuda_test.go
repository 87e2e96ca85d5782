package fakecuda

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

// exports is what the library at path exports, with the driver's symbols and
// the test's apart.
func exports(t *testing.T, path string) (driver, control []string) {
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
			driver = append(driver, s.Name)
		}
	}
	return driver, control
}

// names finds the quoted symbols in a list of macros.
func names(t *testing.T, path string) []string {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	var all []string
	for _, m := range regexp.MustCompile(`(?m)^\t(?:REQUIRED|OPTIONAL|OLD|OTHER)\(\w+, "(\w+)"`).FindAllStringSubmatch(string(text), -1) {
		all = append(all, m[1])
	}
	require.NotEmpty(t, all)
	return all
}

func TestExports(t *testing.T) {
	path := Build(t)
	driver, control := exports(t, path)
	called := names(t, "../../cgo/cuda/symbols.h")
	require.ElementsMatch(t, append(called, names(t, "lib/fake.h")...), driver)
	require.ElementsMatch(t, []string{"fake_reset", "fake_configure", "fake_fail", "fake_calls",
		"fake_last", "fake_violations", "fake_live", "fake_lose", "fake_link", "fake_pause", "fake_paused", "fake_foreign", "fake_end"}, control)
}

func TestMissing(t *testing.T) {
	driver, _ := exports(t, Build(t, Missing("mem_map"), Missing("mem_unmap")))
	require.NotContains(t, driver, "cuMemMap")
	require.NotContains(t, driver, "cuMemUnmap")
	require.Contains(t, driver, "cuMemCreate")
}

// Each flag must compile.
func TestFlags(t *testing.T) {
	for _, flag := range []string{Stub, Broken, NoDevices} {
		Build(t, flag)
	}
}

func TestOpen(t *testing.T) {
	path := Build(t)
	one, same, other := Open(t, path), Open(t, path), Open(t, Build(t))
	one.Fail("cuMemMap", 1, 2)
	for _, l := range []*Library{one, same, other} {
		require.Zero(t, l.Calls("cuMemMap"))
		require.Equal(t, -1, l.Calls("cuMemNap"))
		require.Empty(t, l.Last("cuMemMap"))
		l.Configure(1, 1<<20)
		l.Lose()
		l.Reset()
		l.Clean()
	}
	require.Error(t, one.fail("cuMemNap", 1, 2))
}

// The fake's own errors show in C, with every check that the compiler has.
func TestSelf(t *testing.T) {
	cc := compiler(t)
	dir := root(t)
	lib := filepath.Join(dir, "internal", "fakecuda", "lib")
	files, err := filepath.Glob(filepath.Join(lib, "*.c"))
	require.NoError(t, err)
	program := filepath.Join(t.TempDir(), "selftest")
	args := append([]string{"-std=gnu11", "-Wall", "-Wextra", "-Werror", "-g", "-fsanitize=address,undefined", "-pthread",
		"-I", lib, "-I", filepath.Join(dir, "cgo", "cuda"), "-o", program, "selftest/selftest.c"}, files...)
	if text, err := exec.CommandContext(t.Context(), cc, args...).CombinedOutput(); err != nil {
		if strings.Contains(string(text), "cannot find") { // the linker, of the sanitizers' libraries
			t.Skipf("needs the address sanitizer: %s", text)
		}
		require.NoError(t, err, string(text))
	}
	text, err := exec.CommandContext(t.Context(), program).CombinedOutput()
	require.NoError(t, err, string(text))
}
