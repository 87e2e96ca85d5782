package ipc_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/shareable/ipc"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// TestHandleInAPipe: a pipe that no one writes to is no handle, and is not waited for.
func TestHandleInAPipe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	require.NoError(t, unix.Mkfifo(path, 0o600))
	_, err := ipc.ReadFile(path)
	require.ErrorIs(t, err, ipc.ErrHandle)
}

// TestHandleAtTheDescriptorLimit: a handle that is made where the process cannot find out which one
// it is names none, and the next one does. What cannot be looked at is not gone.
func TestHandleAtTheDescriptorLimit(t *testing.T) {
	if !testgate.InChild(t) {
		return
	}
	dev := vmmtest.Device(t)
	m := alloc(t, dev, 100)
	_, theirs, _ := remote(t, "host")
	var was unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &was))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: was.Max}))
	_, err := m.Handle()
	require.ErrorIs(t, err, vmm.ErrLimit)
	_, err = ipc.Open(dev, theirs)
	require.ErrorIs(t, err, vmm.ErrLimit)
	require.NotErrorIs(t, err, ipc.ErrExporterGone)
	raw := [64]byte{1}
	require.Equal(t, ipc.Handle{Raw: raw, Kind: ipc.KindMemory, UUID: dev.Info().UUID}, ipc.NewHandle(dev, ipc.KindMemory, raw))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &was))
	h, err := m.Handle()
	require.NoError(t, err)
	require.Equal(t, os.Getpid(), h.PID)
	require.NotZero(t, h.Start)
	require.NotEmpty(t, h.Boot)
	require.NotZero(t, h.PIDNamespace)
	open(t, dev, theirs)
}
