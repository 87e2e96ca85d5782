package socket_test

import (
	"io/fs"
	"math"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/shareable/internal/socket"
	"github.com/cuvmm/cuvmm/vmm"
)

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
