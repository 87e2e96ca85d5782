package main

import (
	"encoding/json"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/shareable/store"
	"github.com/cuvmm/cuvmm/vmm"
)

// activated runs the program as a service manager does, with a descriptor, until it serves or ends. It returns
// what it writes.
func activated(t *testing.T, fds string, f *os.File) string {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command("sh", "-c", `LISTEN_PID=$$ exec "$0" "$@"`, self, deviceFlag)
	cmd.Env = append(os.Environ(), asProgram+"=1", "LISTEN_FDS="+fds)
	cmd.ExtraFiles = []*os.File{f}
	out, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	text := make([]byte, 4096)
	n, _ := out.Read(text) // its first line
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	return string(text[:n])
}

// TestServiceManager: what it hands over is looked at: how many sockets there are, and that one listens.
func TestServiceManager(t *testing.T) {
	t.Parallel()
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unixpacket"})
	require.NoError(t, err)
	defer l.Close() //nolint:errcheck // in a test
	listens, err := l.File()
	require.NoError(t, err)
	defer listens.Close() //nolint:errcheck // in a test
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: l.Addr().String(), Net: "unixpacket"})
	require.NoError(t, err)
	defer c.Close() //nolint:errcheck // in a test
	connected, err := c.File()
	require.NoError(t, err)
	defer connected.Close() //nolint:errcheck // in a test

	require.Contains(t, activated(t, "1", listens), "msg=serving")
	require.Contains(t, activated(t, "1", connected), "does not listen")
	for _, fds := range []string{"99999999999", "-1", "2", "x"} {
		require.Contains(t, activated(t, fds, listens), "one socket at most", fds)
	}
}

// TestPutReservesWhatItNeeds: an input that ends soon costs addresses for itself. More can be appended to one
// that stays open.
func TestPutReservesWhatItNeeds(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s")
	started(t, "--socket="+path)
	c := clientAt(t, path)
	put := func(bytes int, args ...string) store.Info {
		cmd := command(nil, nil, nil)
		cmd.SetArgs(append([]string{deviceFlag, "--socket=" + path, "put"}, args...))
		cmd.SetIn(strings.NewReader(strings.Repeat("x", bytes)))
		require.NoError(t, cmd.ExecuteContext(t.Context()))
		i, err := c.Stat(t.Context(), args[0])
		require.NoError(t, err)
		require.EqualValues(t, bytes, i.Len)
		return i
	}
	const most = 8 << 20
	require.LessOrEqual(t, put(3_000_000, "small").Max, uint64(most))
	require.LessOrEqual(t, put(0, "empty").Max, uint64(most))
	require.Greater(t, put(mostSized+1, "large").Max, uint64(most))
	require.Greater(t, put(1, "open", "--open").Max, uint64(most))
}

// TestErrorsNameFlags: a limit is that of a flag, in words.
func TestErrorsNameFlags(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s")
	started(t, "--socket="+path, "--max-bytes=1MiB", "--max-bytes-per-user=512K")
	_, err := clientAt(t, path).Create(t.Context(), "x", store.CreateOptions{Size: 3 << 20})
	require.ErrorIs(t, err, vmm.ErrLimit)
	require.ErrorContains(t, err, "Options.MaxBytesPerUID")
	text := flagNames.Replace(err.Error())
	require.Contains(t, text, `the server says "0 bytes and 4 MiB (4194304 bytes) more, of at most 512 KiB (524288 bytes) of user `)
	require.Contains(t, text, "(--max-bytes-per-user)")
	require.Equal(t, "over ClientOptions.MaxBytes", flagNames.Replace("over ClientOptions.MaxBytes"))
}

// TestWatchPrintsNothingEmpty: what an event does not have is not in its line.
func TestWatchPrintsNothingEmpty(t *testing.T) {
	t.Parallel()
	b, err := json.Marshal(event{Event: "lost", Len: math.MaxUint32})
	require.NoError(t, err)
	require.JSONEq(t, `{"event":"lost","len":4294967295}`, string(b))
}
