package main

import (
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
)

// A pipe without a reader is an error at once, and one that is read gets all.
func TestOutputToANamedPipe(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe.json")
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	code, out, stderr := bench(t, "info", "--device", "host", "--format", "json", "-o", pipe)
	require.Equal(t, report.ExitError, code)
	require.Contains(t, stderr, "has no reader")
	require.Empty(t, out)

	r, err := os.OpenFile(pipe, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	require.NoError(t, err)
	code, out, stderr = bench(t, "info", "--device", "host", "--format", "json", "-o", pipe)
	require.Equal(t, report.ExitPassed, code, stderr)
	got, err := io.ReadAll(r)
	require.NoError(t, err)
	require.NoError(t, r.Close())
	require.Equal(t, out, string(got))
}
