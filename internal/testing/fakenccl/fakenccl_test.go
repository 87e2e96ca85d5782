package fakenccl

import (
	"os"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/fakelib"
)

func TestExports(t *testing.T) {
	text, err := os.ReadFile("../../../cgo/nccl/symbols.h")
	require.NoError(t, err)
	var called []string
	for _, m := range regexp.MustCompile(`(?m)^\t(?:REQUIRED|OPTIONAL)\([^"]*"(\w+)"`).FindAllStringSubmatch(string(text), -1) {
		called = append(called, m[1])
	}
	require.NotEmpty(t, called)
	library, control := fakelib.Exports(t, Build(t))
	require.ElementsMatch(t, called, library)
	require.ElementsMatch(t, []string{
		"fake_reset", "fake_fail", "fake_calls", "fake_polls", "fake_kill", "fake_violations", "fake_log", "fake_version", "fake_live",
	}, control)
	library, _ = fakelib.Exports(t, Build(t, Version(21800)...))
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
	require.Error(t, one.TryFail("ncclGetVersions", 1, 2))
}

// The fake's own errors show in C, with every check that the compiler has.
func TestSelf(t *testing.T) { source.Selftest(t) }
