package main

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/internal/loglimit"
	"github.com/cuvmm/cuvmm/shareable/store"
)

// TestLogIsNotRead: a reader of the log that is gone, or does not read, costs the store lines of
// the log and nothing else. Nor does SIGHUP end it.
func TestLogIsNotRead(t *testing.T) {
	t.Parallel()
	for name, gone := range map[string]bool{"gone": true, "stalled": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "s")
			reader, writer, err := os.Pipe()
			require.NoError(t, err)
			most, err := unix.FcntlInt(writer.Fd(), unix.F_SETPIPE_SZ, os.Getpagesize())
			require.NoError(t, err)
			_, err = writer.Write(make([]byte, most-50)) // its first line does not fit
			require.NoError(t, err)
			p := &program{}
			p.start(t, writer, "--socket="+path, "--max-connections=4")
			require.NoError(t, writer.Close())
			require.Eventually(t, func() bool { return store.Ping(t.Context(), path, store.ClientOptions{}) == nil }, inTime, time.Millisecond)
			if gone {
				require.NoError(t, reader.Close())
			} else {
				defer reader.Close() //nolint:errcheck // of no interest
			}

			kept := clientAt(t, path)
			sealed(t, kept, "kept", nil)
			for range 30 { // each of which is refused, and some are logged
				c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
				require.NoError(t, err)
				require.NoError(t, c.SetDeadline(time.Now().Add(inTime)))
				_, err = c.Write([]byte("no hello"))
				if err == nil {
					_, err = io.Copy(io.Discard, c)
				}
				require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
				require.NoError(t, c.Close())
			}
			require.NoError(t, p.cmd.Process.Signal(syscall.SIGHUP))
			_, err = kept.Stats(t.Context())
			require.NoError(t, err)
			another, err := store.Connect(t.Context(), path, testDevice(t), store.ClientOptions{})
			require.NoError(t, err)
			require.NoError(t, another.Close())
			require.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
			require.Zero(t, p.ended(t))
		})
	}
}

// TestRefusalsAreLimitedInTheLog: whoever may connect, and has not the token, writes no log.
func TestRefusalsAreLimitedInTheLog(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path, token := filepath.Join(dir, "s"), filepath.Join(dir, "token")
	require.NoError(t, os.WriteFile(token, []byte("secret"), 0o600))
	p := started(t, "--socket="+path, "--token-file="+token)
	for range 100 {
		require.Error(t, store.Ping(t.Context(), path, store.ClientOptions{}))
	}
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
	require.Zero(t, p.ended(t))
	lines := strings.Count(p.err.String(), "connection refused")
	require.Positive(t, lines)
	require.Less(t, lines, 50, p.err.String())
}

// TestStrangersAreLimitedInTheLog: nor does another user at the socket for requests. The line says why.
func TestStrangersAreLimitedInTheLog(t *testing.T) {
	t.Parallel()
	_, program := otherUsers(t, os.Getuid())
	p := started(t, "--socket="+filepath.Join(t.TempDir(), "s"))
	const strangers = loglimit.Burst + 5
	for range strangers {
		out, err := program(asUser(overflowUser), "reload", fmt.Sprint("--pid=", p.cmd.Process.Pid)).CombinedOutput()
		require.Error(t, err)
		require.Contains(t, string(out), "does not reply")
	}
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
	require.Zero(t, p.ended(t))
	require.Equal(t, loglimit.Burst, strings.Count(p.err.String(), "request refused"), p.err.String())
	require.Contains(t, p.err.String(), fmt.Sprintf("uid=%d", overflowUser))
	require.Contains(t, p.err.String(), errStranger.Error())
	require.NotContains(t, p.err.String(), "<nil>")
}

// TestHTTPErrorsAreLimitedInTheLog: nor do those who ask for metrics, whatever differs between the lines.
func TestHTTPErrorsAreLimitedInTheLog(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"text", "json"} {
		var out bytes.Buffer
		log, err := (&options{logFormat: format}).logger(&out)
		require.NoError(t, err)
		s := newMetricsServer(nil, log, time.Second)
		for i := range 100 {
			s.ErrorLog.Printf("http: client %d", i)
		}
		require.Equal(t, loglimit.Burst, strings.Count(out.String(), "http: client"))
	}
}

// TestLogQueue: what there is room for is written, and what is dropped is counted.
func TestLogQueue(t *testing.T) {
	r, w := io.Pipe()
	q := newLogQueue(w)
	for i := range 2*logLines + 1 {
		_, err := fmt.Fprintf(q, "line %d\n", i)
		require.NoError(t, err)
	}
	var all bytes.Buffer
	read := make(chan error, 1)
	go func() { _, err := all.ReadFrom(r); read <- err }()
	q.close()
	require.NoError(t, w.Close())
	require.NoError(t, <-read)
	lines := strings.Split(strings.TrimSpace(all.String()), "\n")
	require.Equal(t, "line 0", lines[0])
	written := len(lines) - 1
	require.Contains(t, all.String(), fmt.Sprintf("vmmstored: %d lines of the log were dropped", 2*logLines+1-written))
}
