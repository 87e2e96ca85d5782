package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const arrow = "github.com/apache/arrow-go/v18"

func needsLinux(t *testing.T) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("needs the host driver, which is for Linux")
	}
}

func TestRun(t *testing.T) {
	needsLinux(t)
	var out strings.Builder
	require.NoError(t, run(&out))
	require.Regexp(t, `^1000000 numbers, whose sum is 499999500000\n2 blocks, \d+ bytes used, \d+ reserved\n$`, out.String())
}

// Arrow's own tests of memory and array pass with the pool in place of Go's heap.
func TestArrowsTests(t *testing.T) {
	needsLinux(t)
	out, err := arrowsTests(t, nil, "memory", "array")
	require.NoError(t, err, failures(out))
	used := regexp.MustCompile(`(?m)^pool: (\d+) allocations, (\d+) frees, error <nil>$`).FindAllStringSubmatch(out, -1)
	require.Len(t, used, 2, "each package reports what the pool has done")
	for i, least := range []int{10, 1000} {
		allocs, err := strconv.Atoi(used[i][1])
		require.NoError(t, err)
		require.GreaterOrEqual(t, allocs, least, used[i][0])
	}
	t.Logf("%d tests passed, %d were skipped; %s; %s", strings.Count(out, "--- PASS: "), strings.Count(out, "--- SKIP: "),
		used[0][0], used[1][0])
}

// They fail where the allocator loses bytes.
func TestArrowsTestsSeeLostBytes(t *testing.T) {
	needsLinux(t)
	out, err := arrowsTests(t, strings.NewReplacer("Reallocate(size, b)", "Reallocate(size, nil)"), "memory")
	require.Error(t, err)
	require.Contains(t, out, "--- FAIL: TestGoAllocator_Reallocate/larger")
}

// arrowsTests runs Arrow's tests of some packages and returns what they print. They are those of
// the module that go.mod names, in a copy whose GoAllocator is that of testdata, as mend leaves
// it.
func arrowsTests(t *testing.T, mend *strings.Replacer, packages ...string) (string, error) {
	t.Helper()
	source, err := goCommand(t, "list", "-m", "-f", "{{.Dir}}", arrow).Output()
	require.NoError(t, err)
	from, dir := strings.TrimSpace(string(source)), t.TempDir()
	to := filepath.Join(dir, "arrow-go")
	for _, part := range []string{"arrow", "internal", "parquet"} {
		require.NoError(t, os.CopyFS(filepath.Join(to, part), os.DirFS(filepath.Join(from, part))))
	}
	write := func(file string, text []byte) { require.NoError(t, os.WriteFile(file, text, 0o600)) }
	read := func(file string) []byte {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		return text
	}
	write(filepath.Join(to, "go.mod"), read(filepath.Join(from, "go.mod")))

	// The generator of list views frees two buffers and goes on using them. Go's heap does not
	// mind; an allocator that uses memory again does.
	generator := filepath.Join(to, "arrow/internal/testing/gen/random_array_gen.go")
	text := string(read(generator))
	for _, freed := range []string{"lengths.NullBitmapBytes()", "lengths.Data().Buffers()[1].Bytes()"} {
		uses := "memory.NewBufferBytes(" + freed + ")"
		require.Equal(t, 1, strings.Count(text, uses), uses)
		text = strings.Replace(text, uses, "memory.NewBufferBytes(append([]byte(nil), "+freed+"...))", 1)
	}
	write(generator, []byte(text))

	substitute := string(read("testdata/go_allocator.go"))
	if mend != nil {
		substitute = mend.Replace(substitute)
	}
	write(filepath.Join(to, "arrow/memory/go_allocator.go"), []byte(substitute))
	args := []string{"test", "-count=1", "-v", "-timeout=10m", "-trimpath", "-mod=mod", "-modfile=" + filepath.Join(dir, "go.mod")}
	for _, p := range packages {
		report := strings.Replace(string(read("testdata/report_test.go")), "package memory_test", "package "+p+"_test", 1)
		write(filepath.Join(to, "arrow", p, "report_test.go"), []byte(report))
		args = append(args, arrow+"/arrow/"+p)
	}

	// Beside this module's requirements, Arrow's tests need those of Arrow's go.mod, and their
	// sums.
	write(filepath.Join(dir, "go.mod"), []byte(string(read("go.mod"))+"\nreplace "+arrow+" => "+to+"\n"))
	write(filepath.Join(dir, "go.sum"), append(read("go.sum"), read(filepath.Join(from, "go.sum"))...))
	out, err := goCommand(t, args...).CombinedOutput()
	return string(out), err
}

func goCommand(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Env = append(os.Environ(), "GOWORK=off")
	return cmd
}

// failures is what the go command has printed without the tests that passed, from the first
// failure on.
func failures(out string) string {
	var left []string
	for line := range strings.Lines(out) {
		if first := strings.TrimSpace(line); !strings.HasPrefix(first, "--- PASS") && !strings.HasPrefix(first, "=== ") {
			left = append(left, line)
		}
	}
	return strings.Join(left[:min(len(left), 200)], "")
}
