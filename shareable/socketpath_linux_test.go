package shareable

import (
	"context"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/shareable/internal/socket"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// TestListenReplacesNothing: what is at the path and is not a socket stays as it is. The
// socket of a server that is gone is replaced.
func TestListenReplacesNothing(t *testing.T) {
	t.Parallel()
	dev := vmmtest.Device(t)
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	gone, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: at("socket"), Net: "unixpacket"})
	require.NoError(t, err)
	gone.SetUnlinkOnClose(false)
	require.NoError(t, gone.Close())
	require.NoError(t, os.WriteFile(at("file"), []byte("precious"), 0o600))
	require.NoError(t, os.Mkdir(at("directory"), 0o700))
	require.NoError(t, unix.Mkfifo(at("pipe"), 0o600))
	require.NoError(t, os.Symlink("socket", at("link")))
	require.NoError(t, os.Symlink("nothing", at("broken link")))
	for _, name := range []string{"file", "directory", "pipe", "link", "broken link"} {
		before, err := os.Lstat(at(name))
		require.NoError(t, err)
		_, err = Listen(dev, at(name), Options{})
		require.ErrorIs(t, err, vmm.ErrInvalid, name)
		after, err := os.Lstat(at(name))
		require.NoError(t, err)
		require.True(t, os.SameFile(before, after), name)
	}
	s, err := Listen(dev, at("socket"), Options{})
	require.NoError(t, err)
	info, err := os.Lstat(at("socket"))
	require.NoError(t, err)
	require.Equal(t, fs.ModeSocket|0o600, info.Mode())

	// What has taken the socket's place meanwhile stays, too.
	require.NoError(t, os.Rename(at("file"), at("socket")))
	require.NoError(t, s.Close())
	content, err := os.ReadFile(at("socket"))
	require.NoError(t, err)
	require.Equal(t, "precious", string(content))
}

// TestListenDirectories: a directory in which another user could replace the socket is
// refused.
func TestListenDirectories(t *testing.T) {
	t.Parallel()
	dev := vmmtest.Device(t)
	for _, c := range []struct {
		mode fs.FileMode
		want error
	}{
		{0o700, nil}, {0o755, nil}, {0o777, vmm.ErrPermission}, {0o775, vmm.ErrPermission}, {0o757, vmm.ErrPermission},
		{0o777 | fs.ModeSticky, nil}, {0o770 | fs.ModeSticky, nil},
	} {
		dir := filepath.Join(t.TempDir(), "d")
		require.NoError(t, os.Mkdir(dir, 0o700))
		require.NoError(t, os.Chmod(dir, c.mode))
		s, err := Listen(dev, filepath.Join(dir, "s"), Options{})
		require.ErrorIs(t, err, c.want, "%v", c.mode)
		require.NoError(t, s.Close())
		if c.want != nil {
			left, err := os.ReadDir(dir)
			require.NoError(t, err)
			require.Empty(t, left)
		}
	}
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "real"), 0o700))
	require.NoError(t, os.Symlink("real", filepath.Join(dir, "link")))
	_, err := Listen(dev, filepath.Join(dir, "link", "s"), Options{})
	require.ErrorIs(t, err, vmm.ErrPermission)
	if os.Getuid() == 0 {
		require.NoError(t, os.Chown(filepath.Join(dir, "real"), 65534, 65534))
		_, err := Listen(dev, filepath.Join(dir, "real", "s"), Options{})
		require.ErrorIs(t, err, vmm.ErrPermission)
	}
}

// TestSocketMode: at no time is there a socket that another user may connect to, under
// any name, whatever the umask, which is the process's: the test is not parallel.
func TestSocketMode(t *testing.T) {
	dir := t.TempDir()
	defer unix.Umask(unix.Umask(0))
	stop, wide := make(chan struct{}), make(chan string, 1)
	watched := make(chan int)
	go func() {
		seen := 0
		for ; !isClosed(stop); seen++ {
			d, err := os.Open(dir)
			if err != nil {
				break
			}
			names, _ := d.Readdirnames(-1)
			_ = d.Close()
			for _, name := range names {
				info, err := os.Lstat(filepath.Join(dir, name))
				if err == nil && info.Mode().Type() == fs.ModeSocket && info.Mode().Perm()&0o077 != 0 {
					select {
					case wide <- name + " " + info.Mode().String():
					default:
					}
				}
			}
		}
		watched <- seen
	}()
	for i := range testgate.Effort(300, 2000, 2000) {
		l, err := socket.Listen(filepath.Join(dir, "s"+strconv.Itoa(i%3)), socket.Options{})
		require.NoError(t, err)
		require.NoError(t, l.Close())
		l.Release()
	}
	close(stop)
	require.Positive(t, <-watched)
	select {
	case name := <-wide:
		t.Error(name)
	default:
	}
}

// TestLockFileRemoved: someone removes the lock file, and a second server takes the path.
// The end of the first one leaves the second's socket alone.
func TestLockFileRemoved(t *testing.T) {
	t.Parallel()
	dev := vmmtest.Device(t)
	path := filepath.Join(t.TempDir(), "s")
	first, err := Listen(dev, path, Options{})
	require.NoError(t, err)
	_, err = Listen(dev, path, Options{})
	require.ErrorIs(t, err, vmm.ErrBusy)
	require.NoError(t, os.Remove(path+".lock"))
	second, err := Listen(dev, path, Options{})
	require.NoError(t, err)
	require.NoError(t, first.Close())
	rawConn(t, path).hello()
	require.NoError(t, second.Close())
	_, err = os.Lstat(path)
	require.ErrorIs(t, err, os.ErrNotExist)
	left, err := os.ReadDir(filepath.Dir(path))
	require.NoError(t, err)
	for _, e := range left {
		require.True(t, strings.HasSuffix(e.Name(), ".lock"), e.Name())
	}
}

// TestAbstractNameAgain: after Close the name is free.
func TestAbstractNameAgain(t *testing.T) { // not parallel: a child of another test has the socket until it execs
	dev := vmmtest.Device(t)
	name := "@cuvmm-test-" + strconv.Itoa(os.Getpid())
	for range 20 {
		s, err := Listen(dev, name, Options{})
		require.NoError(t, err)
		e := rawConn(t, name)
		require.NoError(t, s.Close())
		e.close()
	}
}

// TestConnectWaits: as many connections wait for the server as the system lets wait. To
// connect waits for room, and no longer than it may.
func TestConnectWaits(t *testing.T) {
	t.Parallel()
	dev := vmmtest.Device(t)
	path := filepath.Join(t.TempDir(), "s")
	l, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(l) //nolint:errcheck // in a test
	require.NoError(t, unix.Bind(l, &unix.SockaddrUnix{Name: path}))
	require.NoError(t, unix.Listen(l, 0))
	rawConn(t, path) // takes the only place

	_, err = Attach(t.Context(), path, "x", dev, AttachOptions{Timeout: 50 * time.Millisecond})
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = Attach(ctx, path, "x", dev, AttachOptions{})
	require.ErrorIs(t, err, context.DeadlineExceeded)

	attached := make(chan error, 1)
	go func() {
		_, err := Attach(t.Context(), path, "x", dev, AttachOptions{Timeout: patience})
		attached <- err
	}()
	require.Never(t, func() bool { return len(attached) > 0 }, 50*time.Millisecond, 10*time.Millisecond)
	for range 1 + firstTries {
		c, _, err := unix.Accept4(l, unix.SOCK_CLOEXEC)
		require.NoError(t, err)
		require.NoError(t, unix.Close(c))
	}
	require.ErrorIs(t, <-attached, ErrOwnerGone) // it was connected as often as it tries, and the server said nothing
}
