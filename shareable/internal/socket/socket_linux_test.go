package socket_test

import (
	"context"
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/shareable/internal/socket"
	"github.com/cuvmm/cuvmm/vmm"
)

// TestPathRefuses: what would be a hidden or an odd file is no name.
func TestPathRefuses(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"@", ".", "..", "...", " ", "a b", "a\n", "\t"} {
		_, err := socket.Path(name)
		require.ErrorIs(t, err, vmm.ErrInvalid, "%q", name)
	}
	for _, name := range []string{"", "@x", "@a/b", "a.b", "a:0", "/a b/c"} {
		_, err := socket.Path(name)
		require.NoError(t, err, "%q", name)
	}
}

// TestRefusedPathLeavesNothing: not a lock file either.
func TestRefusedPathLeavesNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "d"), 0o700))
	long := filepath.Join(dir, strings.Repeat("x", 102-len(dir)-1)) // its own name fits, and the lock file's
	for _, path := range []string{filepath.Join(dir, "d"), long} {
		_, err := socket.Keep(path, socket.Options{})
		require.ErrorIs(t, err, vmm.ErrInvalid)
	}
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, left, 1)
}

// TestOwnDirectory: one of another user, who could replace what is in it, is refused as it is for a path. The
// environment is the process's: the test is not parallel.
func TestOwnDirectory(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("XDG_RUNTIME_DIR", dir)
	for _, refuse := range []func() error{
		func() error { return os.Chmod(dir, 0o777) },
		func() error { return errors.Join(os.Chmod(dir, 0o700), os.Chown(dir, 65534, 65534)) }, // only root can
	} {
		if err := refuse(); errors.Is(err, fs.ErrPermission) {
			t.Skip("this user cannot give a directory away")
		}
		_, err := socket.Keep("s", socket.Options{})
		require.ErrorIs(t, err, vmm.ErrPermission)
		require.NoDirExists(t, filepath.Join(dir, "cuvmm"))
	}
	require.NoError(t, os.Chown(dir, os.Getuid(), os.Getgid()))
	t.Setenv("XDG_RUNTIME_DIR", filepath.Join(dir, "new")) // it is made
	k, err := socket.Keep("s", socket.Options{})
	require.NoError(t, err)
	require.NoError(t, k.Close())
}

// TestKeepListener: a socket that does not listen is refused, and closed.
func TestKeepListener(t *testing.T) {
	t.Parallel()
	packets := func() int {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		require.NoError(t, err)
		return fd
	}
	bound := packets()
	require.NoError(t, unix.Bind(bound, &unix.SockaddrUnix{Name: filepath.Join(t.TempDir(), "s")}))
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = unix.Close(pair[1]) })
	null, err := unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	for _, fd := range []int{bound, packets(), pair[0], null} {
		f := os.NewFile(uintptr(fd), "")
		_, err := socket.KeepListener(f)
		require.ErrorIs(t, err, vmm.ErrInvalid)
		require.ErrorIs(t, f.Close(), os.ErrClosed)
	}
	listens := packets()
	require.NoError(t, unix.Bind(listens, &unix.SockaddrUnix{Name: filepath.Join(t.TempDir(), "s")}))
	require.NoError(t, unix.Listen(listens, 1))
	k, err := socket.KeepListener(os.NewFile(uintptr(listens), ""))
	require.NoError(t, err)
	require.NoError(t, k.Close())
}

// TestKeepRefuses: a mode or a group that no file can have is refused, and not changed to another
// one.
func TestKeepRefuses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	for _, mode := range []fs.FileMode{0o1000, 1 << 20, fs.ModeSetgid | 0o660, fs.ModeDir | 0o700} {
		_, err := socket.Keep(path, socket.Options{Mode: mode})
		require.ErrorIs(t, err, vmm.ErrInvalid, "%v", mode)
	}
	for _, group := range []int{-7, -1, math.MaxUint32, 1 << 32, 1<<32 + 7} {
		_, err := socket.Keep(path, socket.Options{Group: &group})
		require.ErrorIs(t, err, vmm.ErrInvalid, "%d", group)
	}
	require.NoFileExists(t, path)
	k, err := socket.Keep(path, socket.Options{Mode: 0o640})
	require.NoError(t, err)
	require.NoError(t, k.Close())
	require.NoFileExists(t, path)
}

// TestConnectSaysWhatEnded: the error is the context's own.
func TestConnectSaysWhatEnded(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := socket.Connect(ctx, filepath.Join(t.TempDir(), "s"), time.Hour)
	require.Equal(t, ctx.Err(), err)
}
