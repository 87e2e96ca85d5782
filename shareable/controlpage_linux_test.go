package shareable

import (
	"errors"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// TestControlPageSaysWhy: out of memory is only what lacks memory.
func TestControlPageSaysWhy(t *testing.T) {
	t.Parallel()
	for errno, kind := range map[unix.Errno]error{
		unix.EMFILE: driver.ErrLimit, unix.ENFILE: driver.ErrLimit, unix.EFBIG: driver.ErrLimit,
		unix.ENOMEM: driver.ErrOutOfMemory, unix.ENOSPC: driver.ErrOutOfMemory, unix.ENOBUFS: driver.ErrOutOfMemory,
		unix.EPERM: driver.ErrPermission, unix.EACCES: driver.ErrPermission,
		unix.ENOSYS: driver.ErrNotSupported, unix.ENOENT: driver.ErrNotSupported,
		unix.EINVAL: driver.ErrInvalid, unix.EBADF: driver.ErrInvalid,
	} {
		err := systemError("control page: open", errno)
		require.ErrorIs(t, err, kind)
		require.ErrorIs(t, err, errno)
		for _, other := range []error{driver.ErrLimit, driver.ErrOutOfMemory, driver.ErrPermission, driver.ErrNotSupported, driver.ErrInvalid} {
			if !errors.Is(other, kind) {
				require.NotErrorIs(t, err, other)
			}
		}
	}
	require.ErrorContains(t, systemError("control page: open", unix.ENOENT), "/proc is not mounted")
}

// TestPublishAtALimit: a control page that a limit forbids is ErrLimit, and once the limit is
// lifted the page can be made.
func TestPublishAtALimit(t *testing.T) {
	if !testgate.InChild(t) {
		return
	}
	dev := vmmtest.Device(t)
	g, err := dev.NewRange(vmm.RangeOptions{Max: 1 << 20, Share: vmm.ShareFD})
	require.NoError(t, err)
	s, err := Listen(dev, filepath.Join(t.TempDir(), "s"), Options{})
	require.NoError(t, err)
	for resource, errno := range map[int]unix.Errno{unix.RLIMIT_FSIZE: unix.EFBIG, unix.RLIMIT_NOFILE: unix.EMFILE} {
		var was unix.Rlimit
		require.NoError(t, unix.Getrlimit(resource, &was))
		require.NoError(t, unix.Setrlimit(resource, &unix.Rlimit{Cur: 0, Max: was.Max}))
		_, err = s.Publish("a", g, PublishOptions{})
		require.ErrorIs(t, err, vmm.ErrLimit)
		require.ErrorIs(t, err, errno)
		require.NoError(t, unix.Setrlimit(resource, &was))
	}
	p, err := s.Publish("a", g, PublishOptions{})
	require.NoError(t, err)
	require.NoError(t, p.Close())
	require.NoError(t, s.Close())
	require.NoError(t, g.Close())
}
