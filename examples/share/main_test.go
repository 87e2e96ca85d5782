package main

import (
	"bufio"
	"context"
	"io"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// start runs the program, and gives its lines and its error, once.
func start(ctx context.Context, o options) (*bufio.Scanner, <-chan error) {
	r, w := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := run(ctx, w, o)
		_ = w.Close()
		ended <- err
	}()
	return bufio.NewScanner(r), ended
}

// checksums are the lines that both sides should print alike.
func checksums(lines *bufio.Scanner) (all []string) {
	for lines.Scan() && !strings.HasPrefix(lines.Text(), "sealed") {
		if parts := strings.Split(lines.Text(), ", "); len(parts) == 3 {
			all = append(all, parts[0]+", "+parts[1])
		}
	}
	return all
}

func TestRun(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("sharing needs Linux")
	}
	o := options{
		path: filepath.Join(t.TempDir(), "s"), name: "rows", device: "host",
		width: 256, rows: 1000, every: 30 * time.Millisecond, count: 8,
	}
	owner, reader := o, o
	owner.grow, reader.follow = true, true

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	grown, ended := start(ctx, owner)
	require.True(t, grown.Scan())
	require.Contains(t, grown.Text(), `rows of 256 float32 as "rows" at `+o.path)
	seen, left := start(t.Context(), reader)
	require.True(t, seen.Scan())
	require.Contains(t, seen.Text(), `"rows" is rows of 256 float32 at 0x`)

	wrote := make(chan []string, 1)
	go func() { wrote <- checksums(grown) }()
	saw := checksums(seen)
	require.NoError(t, <-left)
	all := <-wrote
	require.Len(t, all, 8)
	require.NotEmpty(t, saw)
	require.Equal(t, all[7], saw[len(saw)-1])
	stop()
	require.NoError(t, <-ended)
}

func TestRunNeedsOneMode(t *testing.T) {
	require.Error(t, run(t.Context(), io.Discard, options{width: 1, rows: 1, every: 1}))
}
