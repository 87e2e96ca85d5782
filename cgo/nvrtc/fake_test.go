//go:build cgo && linux

package nvrtc_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cgo/nvrtc"
	"github.com/cuvmm/cuvmm/internal/testing/fakelib"
	"github.com/cuvmm/cuvmm/internal/testing/fakenvrtc"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

const source = "template <typename T> __global__ void scale(T *p) {}\n"

// onFake is the binding on a fake compiler of its own. The test must violate no rule of
// it and destroy every program.
func onFake(tb testing.TB, changes ...fakelib.Change) (*nvrtc.Compiler, *fakenvrtc.Library) {
	tb.Helper()
	path := fakenvrtc.Build(tb, changes...)
	fake := fakenvrtc.Open(tb, path)
	c, err := nvrtc.Open(path)
	require.NoError(tb, err)
	tb.Cleanup(fake.Clean)
	return c, fake
}

// keptIn are options that compile for sm_90 and keep the result in a new folder.
func keptIn(tb testing.TB) (nvrtc.Options, string) {
	tb.Helper()
	dir := filepath.Join(tb.TempDir(), "kept")
	return nvrtc.Options{Arch: "sm_90", Cache: &nvrtc.Cache{Dir: dir}}, dir
}

// isOnly checks that err is of that kind and of no other; nil stands for no kind.
func isOnly(t *testing.T, err, kind error, what ...any) {
	t.Helper()
	require.Error(t, err, what...)
	for _, s := range []error{
		driver.ErrOutOfMemory, driver.ErrNotSupported, driver.ErrInvalid, driver.ErrPermission, driver.ErrNoDriver, driver.ErrUnavailable,
	} {
		require.Equal(t, errors.Is(kind, s), errors.Is(err, s), "%v: is it %q? %v", err, s, what)
	}
}

// filesIn are the names in a folder, none if there is no such folder.
func filesIn(tb testing.TB, dir string) (names []string) {
	tb.Helper()
	entries, err := os.ReadDir(dir)
	if !errors.Is(err, os.ErrNotExist) {
		require.NoError(tb, err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}
