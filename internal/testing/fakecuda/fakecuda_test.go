package fakecuda

import (
	"os"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/fakelib"
)

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
	driver, control := fakelib.Exports(t, path)
	called := names(t, "../../../cgo/cuda/symbols.h")
	require.ElementsMatch(t, append(called, names(t, "lib/fake.h")...), driver)
	require.ElementsMatch(t, []string{"fake_reset", "fake_configure", "fake_fail", "fake_calls",
		"fake_last", "fake_violations", "fake_live", "fake_lose", "fake_link", "fake_pause", "fake_paused", "fake_foreign", "fake_end",
		"fake_init", "fake_version", "fake_fabric", "fake_node", "fake_numa_id"}, control)
}

func TestMissing(t *testing.T) {
	driver, _ := fakelib.Exports(t, Build(t, Missing("cuMemMap", "cuMemUnmap")))
	require.NotContains(t, driver, "cuMemMap")
	require.NotContains(t, driver, "cuMemUnmap")
	require.Contains(t, driver, "cuMemCreate")
}

// A change that the library cannot have is an error, not a library without it.
func TestChangesAreMade(t *testing.T) {
	for _, c := range []fakelib.Change{Missing("cuMemNap"), fakelib.Set("initial", 1)} {
		_, err := source.Copy(t, c)
		require.Error(t, err)
	}
	for _, c := range []fakelib.Change{Init(34), Fabric(), Version(12080), Node(3), NUMA(-2)} {
		_, err := source.Copy(t, c)
		require.NoError(t, err)
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
	require.Error(t, one.TryFail("cuMemNap", 1, 2))
}

// The fake's own errors show in C, with every check that the compiler has.
func TestSelf(t *testing.T) { source.Selftest(t) }
