//go:build cgo && linux

package nvrtc_test

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cgo/nvrtc"
	"github.com/cuvmm/cuvmm/internal/testing/fakenvrtc"
)

// stranger is a user who is neither root nor, most likely, who runs the tests.
const stranger = 65534

// To root no folder is closed. So a test of what a user may not do runs in a child
// process of another user if root runs it.
func TestCacheReadOnly(t *testing.T) {
	if path := os.Getenv(childEnv); path != "" {
		readOnly(t, path)
		return
	}
	path := fakenvrtc.Build(t)
	if os.Geteuid() != 0 {
		readOnly(t, path)
		return
	}
	dir, err := os.MkdirTemp("", "nvrtc") //nolint:usetesting // that of the test is closed to others
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	require.NoError(t, os.Chmod(dir, 0o755))
	self, err := os.Executable()
	require.NoError(t, err)
	for _, file := range []string{self, path} {
		b, err := os.ReadFile(file)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, filepath.Base(file)), b, 0o755))
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(dir, filepath.Base(self)))
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: stranger, Gid: stranger}}
	inChild(t, cmd, filepath.Join(dir, filepath.Base(path)))
}

// readOnly checks what a cache is that cannot be written to: one that has what it has.
func readOnly(t *testing.T, path string) {
	fake := fakenvrtc.Open(t, path)
	c, err := nvrtc.Open(path)
	require.NoError(t, err)
	o, dir := keptIn(t)
	compiled(t, c, fake, source, o)
	require.NoError(t, os.Chmod(dir, 0o500))
	t.Cleanup(func() { require.NoError(t, os.Chmod(dir, 0o700)) })
	_, asked := compiled(t, c, fake, source, o)
	require.False(t, asked)
	r, asked := compiled(t, c, fake, source+" ", o)
	require.True(t, asked)
	require.ErrorIs(t, r.CacheErr, fs.ErrPermission)
	require.Len(t, filesIn(t, dir), 1)

	o.Cache = &nvrtc.Cache{Dir: filepath.Join(dir, "new")}
	r, _ = compiled(t, c, fake, source, o)
	require.ErrorIs(t, r.CacheErr, fs.ErrPermission)
	o.Cache = &nvrtc.Cache{Dir: "/"} // root's
	r, _ = compiled(t, c, fake, source, o)
	require.ErrorContains(t, r.CacheErr, "belongs to user 0")
	fake.Clean()
}
