package fakenvrtc

import (
	"os"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/fakelib"
)

func TestExports(t *testing.T) {
	text, err := os.ReadFile("../../../cgo/nvrtc/symbols.h")
	require.NoError(t, err)
	var called []string
	for _, m := range regexp.MustCompile(`(?m)^\tSYMBOL\([^"]*"(\w+)"`).FindAllStringSubmatch(string(text), -1) {
		called = append(called, m[1])
	}
	require.NotEmpty(t, called)
	compiler, control := fakelib.Exports(t, Build(t))
	require.ElementsMatch(t, called, compiler)
	require.ElementsMatch(t, []string{"fake_reset", "fake_fail", "fake_calls", "fake_violations", "fake_live", "fake_major", "fake_minor"}, control)
}

func TestMissing(t *testing.T) {
	compiler, _ := fakelib.Exports(t, Build(t, Missing("nvrtcGetCUBIN", "nvrtcGetSupportedArchs")))
	require.NotContains(t, compiler, "nvrtcGetCUBIN")
	require.NotContains(t, compiler, "nvrtcGetSupportedArchs")
	require.Contains(t, compiler, "nvrtcGetCUBINSize")
}

func TestOpen(t *testing.T) {
	path := Build(t, Version(13, 0)...)
	one, same, other := Open(t, path), Open(t, path), Open(t, Build(t))
	one.Fail("nvrtcVersion", 1, 2)
	for _, l := range []*Library{one, same, other} {
		require.Zero(t, l.Calls("nvrtcVersion"))
		require.Zero(t, l.Calls(""))
		require.Equal(t, -1, l.Calls("nvrtcVersions"))
		l.Reset()
		l.Clean()
	}
	require.Error(t, one.TryFail("nvrtcVersions", 1, 2))
}

// The fake's own errors show in C, with every check that the compiler has.
func TestSelf(t *testing.T) { source.Selftest(t) }
