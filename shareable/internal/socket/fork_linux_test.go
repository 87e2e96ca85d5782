package socket

import (
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/vmm"
)

// TestLockThatAChildHas: a child has the descriptors of its parent until its program runs. A path that
// was closed meanwhile is free. As a negative control the lock is closed alone.
func TestLockThatAChildHas(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s")
	for _, unlocked := range []bool{true, false} {
		l, err := Listen(path, Options{})
		require.NoError(t, err)
		child, err := unix.Dup(l.lock) // as a fork does it
		require.NoError(t, err)
		if !unlocked {
			require.NoError(t, unix.Close(l.lock))
			l.lock = -1
		}
		require.NoError(t, l.Close())
		l.Release()
		next, err := Listen(path, Options{})
		if !unlocked {
			require.ErrorIs(t, err, vmm.ErrBusy)
			require.NoError(t, unix.Close(child))
			continue
		}
		require.NoError(t, err)
		require.NoError(t, unix.Close(child))
		_, err = Listen(path, Options{})
		require.ErrorIs(t, err, vmm.ErrBusy, "the child's close takes no lock away")
		require.NoError(t, next.Close())
		next.Release()
	}
}

// TestListenBesidePrograms: a path is free once it is closed, while programs start.
func TestListenBesidePrograms(t *testing.T) {
	t.Parallel()
	program, err := exec.LookPath("true")
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "s")
	var over atomic.Bool
	starts := make(chan int)
	go func() {
		n := 0
		for ; !over.Load(); n++ {
			_ = exec.Command(program).Run()
		}
		starts <- n
	}()
	defer func() { over.Store(true); t.Log(<-starts, "programs") }()
	for range 1000 {
		l, err := Listen(path, Options{})
		require.NoError(t, err)
		require.NoError(t, l.Close())
		l.Release()
	}
}

// TestAbstractNameInUse: it is an error of the kind that a path has.
func TestAbstractNameInUse(t *testing.T) {
	t.Parallel()
	name := "@" + t.TempDir()
	l, err := Listen(name, Options{})
	require.NoError(t, err)
	_, err = Listen(name, Options{})
	require.ErrorIs(t, err, vmm.ErrBusy)
	require.NoError(t, l.Close())
	l.Release()
}
