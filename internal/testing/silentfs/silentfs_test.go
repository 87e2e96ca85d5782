//go:build linux

package silentfs

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestFileIsSilent: what asks for the file's attributes waits until end, and what asks
// only the kernel does not.
func TestFileIsSilent(t *testing.T) {
	fd, end := File(t, false)
	_, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	require.ErrorIs(t, err, unix.EINVAL)

	asked := make(chan error, 1)
	go func() {
		var st unix.Stat_t
		asked <- unix.Fstat(fd, &st)
	}()
	select {
	case err := <-asked:
		t.Fatalf("the daemon has replied: %v", err)
	case <-time.After(10 * time.Millisecond): // a daemon that replies may be slower: then this test sees nothing
	}
	end()
	require.ErrorIs(t, <-asked, unix.ECONNABORTED)
}
