//go:build cgo && linux

package nccl_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cgo/nccl"
	"github.com/cuvmm/cuvmm/internal/testing/fakenccl"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

func TestOpenNothing(t *testing.T) {
	rubbish := filepath.Join(t.TempDir(), "libnccl.so.2")
	require.NoError(t, os.WriteFile(rubbish, []byte("no library"), 0o600))
	for _, path := range []string{"libnccl-not-here.so.2", filepath.Join(t.TempDir(), "libnccl.so.2"), rubbish} {
		_, err := nccl.Open(path)
		isOnly(t, err, driver.ErrNotSupported)
		require.ErrorContains(t, err, path, "what was looked for")
	}
}

func TestOpenTooOld(t *testing.T) {
	_, err := nccl.Open(fakenccl.Build(t, fakenccl.Version(21702)...))
	isOnly(t, err, driver.ErrNotSupported)
	require.ErrorContains(t, err, "NCCL 2.17.2 is too old: 2.18 is needed")
	_, err = nccl.Open(fakenccl.Build(t, append(fakenccl.Version(2708), fakenccl.Missing("ncclCommInitRankConfig"))...))
	isOnly(t, err, driver.ErrNotSupported)
	require.ErrorContains(t, err, "NCCL 2.7.8 is too old: 2.18 is needed")
	_, err = nccl.Open(fakenccl.Build(t, fakenccl.Missing("ncclCommInitRankConfig")))
	isOnly(t, err, driver.ErrNotSupported)
	require.ErrorContains(t, err, "NCCL 2.28.9 has no ncclCommInitRankConfig")
	_, err = nccl.Open(fakenccl.Build(t, fakenccl.Missing("ncclGetVersion")))
	isOnly(t, err, driver.ErrNotSupported)
	require.ErrorContains(t, err, "it has no ncclGetVersion")
}

func TestOpenFault(t *testing.T) {
	path := fakenccl.Build(t)
	fake := fakenccl.Open(t, path)
	fake.Fail("ncclGetVersion", 1, 2)
	_, err := nccl.Open(path)
	isOnly(t, err, nccl.ErrFailed)
	l, err := nccl.Open(path)
	require.NoError(t, err)
	require.Equal(t, 22809, l.Version())
	require.Equal(t, "2.28.9", l.String())
}

// pip's folder in a virtual environment is found.
func TestOpenVirtualEnv(t *testing.T) {
	library, err := os.ReadFile(fakenccl.Build(t))
	require.NoError(t, err)
	venv := t.TempDir()
	dir := filepath.Join(venv, "lib/python3.12/site-packages/nvidia/nccl/lib")
	require.NoError(t, os.MkdirAll(dir, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "libnccl.so.2"), library, 0o600))
	if _, err := nccl.Open("libnccl.so.2"); err == nil {
		t.Skip("the system has an NCCL, which is first")
	}
	t.Setenv("VIRTUAL_ENV", "")
	t.Setenv("HOME", t.TempDir())
	if _, err := nccl.Open(""); err != nil {
		isOnly(t, err, driver.ErrNotSupported)
		require.ErrorContains(t, err, "looked for libnccl.so.2, libnccl.so, ")
		require.ErrorContains(t, err, "/usr/local/lib/python3*/dist-packages/nvidia/nccl/lib/libnccl.so.2")
	}
	t.Setenv("VIRTUAL_ENV", venv)
	l, err := nccl.Open("")
	require.NoError(t, err)
	require.Equal(t, 22809, l.Version())
}
