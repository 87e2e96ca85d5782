package ipc_test

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/shareable/ipc"
)

// TestHandleInAPipe: a pipe that no one writes to is no handle, and is not waited for.
func TestHandleInAPipe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	require.NoError(t, unix.Mkfifo(path, 0o600))
	_, err := ipc.ReadFile(path)
	require.ErrorIs(t, err, ipc.ErrHandle)
}
