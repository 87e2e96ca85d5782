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
			p := &program{}
			p.start(t, writer, "--socket="+path, "--max-connections=4")
			require.NoError(t, writer.Close())
			first := make([]byte, 256)
			n, err := reader.Read(first)
			require.NoError(t, err)
			require.Contains(t, string(first[:n]), path)
			if gone {
				require.NoError(t, reader.Close())
			} else {
				defer reader.Close() //nolint:errcheck // of no interest
			}

			kept := clientAt(t, path)
			sealed(t, kept, "kept", nil)
			for range 3000 { // each of which is refused, and logged
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
