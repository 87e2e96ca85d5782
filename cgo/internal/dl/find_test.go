//go:build cgo && linux

package dl

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

func TestThere(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("LD_LIBRARY_PATH", "/nowhere:"+dir)
	for name, text := range map[string]string{
		"ours.so": "\x7fELF\x02", "rubbish.so": "no library", "empty.so": "",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
		require.True(t, There(name), name)
		require.True(t, There(filepath.Join(dir, name)), name)
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "narrow.so"), []byte("\x7fELF\x01"), 0o600))
	require.NoError(t, os.Symlink("/nowhere/lib.so", filepath.Join(dir, "dangling.so")))
	own, err := os.ReadFile("/proc/self/exe")
	require.NoError(t, err)
	other := slices.Clone(own[:64])
	other[18] ^= 0xff // the machine
	require.NoError(t, os.WriteFile(filepath.Join(dir, "other.so"), other, 0o600))
	for _, name := range []string{"narrow.so", "other.so", "dangling.so", "none.so"} {
		require.False(t, There(name), name)
		require.False(t, There(filepath.Join(dir, name)), name)
	}
	for _, name := range []string{"narrow.so", "other.so"} { // the loader alone says that there is no such file
		_, err := Open(name, driver.ErrNoDriver)
		require.ErrorIs(t, err, driver.ErrNoDriver)
		require.ErrorContains(t, err, filepath.Join(dir, name)+" is for other processors, ELFCLASS")
	}
	_, err = Open("none.so", driver.ErrNoDriver)
	require.ErrorIs(t, err, driver.ErrNoDriver)
	require.NotContains(t, err.Error(), "processors")
	t.Setenv("LD_LIBRARY_PATH", "")
	require.False(t, There("ours.so"))
	if _, err := os.Stat("/etc/ld.so.cache"); err == nil {
		require.True(t, There("libc.so.6"), "of the cache")
	}
}

func TestCached(t *testing.T) {
	cache := filepath.Join(t.TempDir(), "cache")
	require.Empty(t, cached(cache, "libx.so.1"))
	text := "tables\x01\x00\x00libx.so.1\x00/a/libx.so.1\x00libx.so.1\x00/b/c/libx.so.1\x00/d/libx.so.10\x00/e/my-libx.so.1\x00"
	require.NoError(t, os.WriteFile(cache, []byte(text), 0o600))
	require.Equal(t, []string{"/a/libx.so.1", "/b/c/libx.so.1"}, cached(cache, "libx.so.1"))
}
