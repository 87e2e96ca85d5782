//go:build linux

package host

import (
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/cuvmm/cuvmm/internal/testing/silentfs"
	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// export returns a descriptor that the test's end closes. Then no timer frees the
// memory during another test.
func export(t *testing.T, d *Driver, h driver.Handle) int {
	t.Helper()
	fd, err := d.Export(h)
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = unix.Close(fd)
		d.memMu.Lock()
		defer d.unlockAndClose()
		d.collectOrphans()
	})
	return fd
}

func free(t *testing.T, v *device) uint64 {
	t.Helper()
	n, _, err := v.MemInfo()
	require.NoError(t, err)
	return n
}

func seals(t *testing.T, fd int) int {
	t.Helper()
	n, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	require.NoError(t, err)
	return n
}

func TestExportIsSealed(t *testing.T) {
	d := New(Config{Memory: 64 * mib})
	h := create(t, d, 2*mib, shared)
	fd := export(t, d, h)
	require.NoError(t, d.Release(h))

	require.Equal(t, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL, seals(t, fd)&0xf)
	require.Error(t, unix.Ftruncate(fd, 0))
	require.Error(t, unix.Ftruncate(fd, 4*mib))
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	require.NoError(t, err)
	require.NotZero(t, flags&unix.FD_CLOEXEC)
}

func TestReadOnlyExport(t *testing.T) {
	d := New(Config{Memory: 64 * mib})
	v := open(t, d, 0)
	h := create(t, d, 2*mib, frozen)
	p := reserved(t, d, 4*mib)

	_, err := d.Export(h)
	require.ErrorIs(t, err, driver.ErrInvalid, "no process could ever write it")

	require.NoError(t, d.Map(p, 2*mib, h))
	require.NoError(t, d.SetAccess(p, 2*mib, grant(0, driver.AccessReadWrite)))
	fd := export(t, d, h)
	require.NotZero(t, seals(t, fd)&unix.F_SEAL_FUTURE_WRITE)

	// The owner still writes, small and large, and the reader sees it.
	want := pattern(2 * mib)
	require.NoError(t, v.CopyIn(p, want))
	require.NoError(t, v.CopyIn(p, []byte("owner")))
	got := make([]byte, 2*mib)
	_, err = unix.Pread(fd, got, 0)
	require.NoError(t, err)
	require.Equal(t, append([]byte("owner"), want[5:]...), got)
	require.NoError(t, d.SetAccess(p, 2*mib, grant(0, driver.AccessRead)))
	require.NoError(t, d.SetAccess(p, 2*mib, grant(0, driver.AccessReadWrite)))

	// The reader cannot make it writable in any way.
	_, err = unix.Pwrite(fd, []byte{1}, 0)
	require.Error(t, err)
	again, err := reopen(fd, unix.O_RDWR)
	if err == nil {
		_, err = unix.Pwrite(again, []byte{1}, 0)
		require.ErrorIs(t, err, unix.EPERM)
		_, err = mmap(0, 2*mib, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED, again, 0)
		require.ErrorIs(t, err, unix.EPERM)
		require.NoError(t, unix.Close(again))
	}

	// Nor can the owner, at another address or after an unmap.
	require.NoError(t, d.Map(p+2*mib, 2*mib, h))
	require.ErrorIs(t, d.SetAccess(p+2*mib, 2*mib, grant(0, driver.AccessReadWrite)), driver.ErrPermission)
	require.ErrorIs(t, d.SetAccess(p, 4*mib, grant(0, driver.AccessReadWrite)), driver.ErrPermission)
	require.NoError(t, d.SetAccess(p+2*mib, 2*mib, grant(0, driver.AccessRead)))
	require.NoError(t, d.Unmap(p, 4*mib))
	require.NoError(t, d.Map(p, 2*mib, h))
	require.ErrorIs(t, d.SetAccess(p, 2*mib, grant(0, driver.AccessReadWrite)), driver.ErrPermission)
	export(t, d, h)

	require.NoError(t, d.Unmap(p, 2*mib))
	require.NoError(t, d.Release(h))
	require.NoError(t, d.Free(p, 4*mib))
}

// TestImportWithoutTheRightToWrite imports into a second driver, which knows
// no more about the memory than another process would.
func TestImportWithoutTheRightToWrite(t *testing.T) {
	a, b := New(Config{Memory: 64 * mib}), New(Config{Memory: 64 * mib})
	va, vb := open(t, a, 0), open(t, b, 0)
	h := create(t, a, 2*mib, frozen)
	p := reserved(t, a, 2*mib)
	require.NoError(t, a.Map(p, 2*mib, h))
	require.NoError(t, a.SetAccess(p, 2*mib, grant(0, driver.AccessReadWrite)))
	require.NoError(t, va.CopyIn(p, []byte("hello")))
	fd := export(t, a, h)

	i, err := b.Import(fd, 2*mib, frozen)
	require.NoError(t, err)
	require.Equal(t, uint64(64*mib), free(t, vb), "counted where it was created")
	q := reserved(t, b, 2*mib)
	require.NoError(t, b.Map(q, 2*mib, i))
	require.ErrorIs(t, b.SetAccess(q, 2*mib, grant(0, driver.AccessReadWrite)), driver.ErrPermission)
	require.NoError(t, b.SetAccess(q, 2*mib, grant(0, driver.AccessRead)))
	got := make([]byte, 5)
	require.NoError(t, vb.CopyOut(got, q))
	require.Equal(t, "hello", string(got))
	require.NoError(t, va.CopyIn(p, []byte("again")))
	require.NoError(t, vb.CopyOut(got, q))
	require.Equal(t, "again", string(got))

	_, err = b.Export(i)
	require.ErrorIs(t, err, driver.ErrInvalid, "what was imported is not exported again, as on the card")

	require.NoError(t, b.Unmap(q, 2*mib))
	require.NoError(t, b.Release(i))
	require.NoError(t, b.Free(q, 2*mib))
	require.NoError(t, a.Unmap(p, 2*mib))
	require.NoError(t, a.Release(h))
	require.NoError(t, a.Free(p, 2*mib))
}

func TestImportRefusesOtherFiles(t *testing.T) {
	d := New(Config{Memory: 64 * mib})
	file := func(name string, mode int) int {
		fd, err := unix.Open(name, mode|unix.O_CLOEXEC, 0o600)
		require.NoError(t, err)
		t.Cleanup(func() { _ = unix.Close(fd) })
		return fd
	}
	var pipe [2]int
	require.NoError(t, unix.Pipe2(pipe[:], unix.O_CLOEXEC))
	t.Cleanup(func() { _, _ = unix.Close(pipe[0]), unix.Close(pipe[1]) })
	plain := filepath.Join(t.TempDir(), "plain")
	require.NoError(t, os.WriteFile(plain, make([]byte, 2*mib), 0o600))
	memfd := func(with int) int {
		fd, _, err := d.memfd(2*mib, with, private)
		require.NoError(t, err)
		t.Cleanup(func() { _ = unix.Close(fd) })
		return fd
	}
	h := create(t, d, 2*mib, shared)
	good := export(t, d, h)
	require.NoError(t, d.Release(h))
	huge, err := unix.MemfdCreate("huge", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_HUGETLB)
	if err != nil {
		huge = -1 // a kernel without huge pages has nothing to refuse
	} else {
		t.Cleanup(func() { _ = unix.Close(huge) })
		require.NoError(t, unix.Ftruncate(huge, 2*mib))
		_, err = unix.FcntlInt(uintptr(huge), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW)
		require.NoError(t, err)
	}
	for name, fd := range map[string]int{
		"huge pages": huge,
		"none":       -1,
		"closed":     1 << 20,
		"pipe":       pipe[0],
		"null":       file("/dev/null", unix.O_RDWR),
		"zero":       file("/dev/zero", unix.O_RDWR),
		"directory":  file(t.TempDir(), unix.O_RDONLY|unix.O_DIRECTORY),
		"plain file": file(plain, unix.O_RDWR),
		"unsealed":   memfd(0),
		"can shrink": memfd(unix.F_SEAL_GROW),
		"can grow":   memfd(unix.F_SEAL_SHRINK),
		"write only": file("/proc/self/fd/"+strconv.Itoa(good), unix.O_WRONLY),
		"path only":  file("/proc/self/fd/"+strconv.Itoa(good), unix.O_PATH),
	} {
		before := holds(t)
		_, err := d.Import(fd, 2*mib, shared)
		require.ErrorIs(t, err, driver.ErrInvalid, name)
		require.Equal(t, before, holds(t), name)
	}
}

func TestImportOfOwnMemoryIsCountedOnce(t *testing.T) {
	d := New(Config{Memory: 4 * mib})
	v := open(t, d, 0)
	h := create(t, d, 4*mib, shared)
	fd := export(t, d, h)
	require.Zero(t, free(t, v))
	i, err := d.Import(fd, 4*mib, shared)
	require.NoError(t, err)
	require.Zero(t, free(t, v))
	require.NoError(t, unix.Close(fd))
	require.NoError(t, d.Release(h))
	require.Zero(t, free(t, v), "the import keeps it")
	require.NoError(t, d.Release(i))
	require.Equal(t, uint64(4*mib), free(t, v))
}

// TestDescriptorKeepsMemory: released memory counts as used as long as a descriptor or
// another process's mapping of it exists.
func TestDescriptorKeepsMemory(t *testing.T) {
	d := New(Config{Memory: 4 * mib})
	v := open(t, d, 0)
	for _, p := range []driver.Prop{shared, frozen} {
		before := holds(t)
		h := create(t, d, 4*mib, p)
		at := reserved(t, d, 4*mib)
		require.NoError(t, d.Map(at, 4*mib, h))
		require.NoError(t, d.SetAccess(at, 4*mib, grant(0, driver.AccessReadWrite)))
		require.NoError(t, v.CopyIn(at, []byte("kept")))
		fd := export(t, d, h)
		require.NoError(t, d.Release(h))
		require.NoError(t, d.Unmap(at, 4*mib))
		require.NoError(t, d.Free(at, 4*mib))
		require.Zero(t, free(t, v))

		// It can be imported again from a descriptor, for example from a socket.
		i, err := d.Import(fd, 4*mib, p)
		require.NoError(t, err)
		require.NoError(t, d.Release(i))
		require.Zero(t, free(t, v))

		// A mapping without a descriptor counts as well.
		raw, err := mmap(0, 4*mib, unix.PROT_READ, unix.MAP_SHARED, fd, 0)
		require.NoError(t, err)
		require.NoError(t, unix.Close(fd))
		require.Zero(t, free(t, v))
		require.Equal(t, "kept", string(bytesAt(raw, 4)))
		_, err = d.Create(2*mib, home)
		require.ErrorIs(t, err, driver.ErrOutOfMemory)
		require.NoError(t, munmap(raw, 4*mib))

		h = create(t, d, 4*mib, home) // Create itself finds out that it is free
		require.NoError(t, d.Release(h))
		require.Equal(t, uint64(4*mib), free(t, v))
		require.Equal(t, before, holds(t))
	}
}

// TestExportAfterFchmod: a process of the same user that has a descriptor can take the
// rights to the file away from all of them. Root has no need of such rights, so the
// test becomes another user.
func TestExportAfterFchmod(t *testing.T) {
	if !testgate.InChild(t) {
		return
	}
	if os.Geteuid() == 0 {
		require.NoError(t, syscall.Setresuid(65534, 65534, 65534)) // all threads
	}
	d := New(Config{Memory: 64 * mib})
	for _, p := range []driver.Prop{shared, frozen} {
		h := create(t, d, 2*mib, p)
		at := reserved(t, d, 2*mib)
		require.NoError(t, d.Map(at, 2*mib, h))
		first := export(t, d, h)
		require.NoError(t, unix.Fchmod(first, 0))
		_, err := reopen(first, unix.O_RDONLY)
		require.ErrorIs(t, err, unix.EACCES, "the system grants it all the same: this test tests nothing")

		second := export(t, d, h)
		flags, err := unix.FcntlInt(uintptr(second), unix.F_GETFL, 0)
		require.NoError(t, err)
		want := unix.O_RDWR
		if p == frozen {
			want = unix.O_RDONLY
		}
		require.Equal(t, want, flags&unix.O_ACCMODE)

		// While it takes the rights away again and again.
		stop := make(chan struct{})
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for {
				select {
				case <-stop:
					return
				default:
					_ = unix.Fchmod(first, 0)
				}
			}
		}()
		for range 200 {
			fd, err := d.Export(h)
			require.NoError(t, err)
			require.NoError(t, unix.Close(fd))
		}
		close(stop)
		<-ended
		require.NoError(t, d.Unmap(at, 2*mib))
		require.NoError(t, d.Release(h))
		require.NoError(t, d.Free(at, 2*mib))
	}
}

// TestWithoutLeaseMemoryCountsAsUsed: if the kernel no longer tells whether memory is
// open elsewhere, it counts as used.
func TestWithoutLeaseMemoryCountsAsUsed(t *testing.T) {
	if !testgate.InChild(t) {
		return
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root, to become another user")
	}
	d := New(Config{Memory: 4 * mib})
	v := open(t, d, 0)
	h := create(t, d, 4*mib, shared)
	fd := export(t, d, h)
	require.NoError(t, syscall.Seteuid(65534)) // changes all threads; unix.Seteuid changes one
	require.NoError(t, d.Release(h))
	require.Zero(t, free(t, v), "a descriptor is open")
	require.NoError(t, unix.Close(fd))
	require.Zero(t, free(t, v), "the kernel cannot tell")
	require.NoError(t, syscall.Seteuid(0))
	require.Equal(t, uint64(4*mib), free(t, v))
}

// TestSharingNeedsLeases: memory to share is refused at Create where there are no
// leases. A pipe stands for a file without leases.
func TestSharingNeedsLeases(t *testing.T) {
	var pipe [2]int
	require.NoError(t, unix.Pipe2(pipe[:], unix.O_CLOEXEC))
	before := holds(t)
	d := New(Config{Memory: 64 * mib})
	_, err := d.countable(pipe[1])
	require.ErrorIs(t, err, driver.ErrNotSupported)
	require.ErrorIs(t, err, unix.EINVAL)
	require.Equal(t, before, holds(t))
	require.True(t, (&memory{fd: pipe[0]}).shared())
	_, _ = unix.Close(pipe[0]), unix.Close(pipe[1])
}

// TestLeaseSignal: a process that does not handle SIGIO is not ended by it.
func TestLeaseSignal(t *testing.T) {
	sent := make(chan os.Signal, 1)
	signal.Notify(sent, syscall.SIGIO, syscall.SIGPWR)
	t.Cleanup(func() { signal.Stop(sent) })
	d := New(Config{Memory: 64 * mib})
	h := create(t, d, 2*mib, shared)
	fd := d.handles[h].memory.fd
	require.NoError(t, takeLease(fd))
	_, err := reopen(fd, unix.O_RDONLY|unix.O_NONBLOCK)
	require.ErrorIs(t, err, unix.EWOULDBLOCK, "it waits for the end of the lease")
	require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGPWR))
	require.Equal(t, syscall.SIGPWR, <-sent, "SIGIO would have come first, if not always")
	_, err = unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_UNLCK)
	require.NoError(t, err)
	require.NoError(t, d.Release(h))
}

// TestImportAsksNoDaemon: to refuse a file of a FUSE mount, nothing is asked of its
// daemon, which may have stopped replying.
func TestImportAsksNoDaemon(t *testing.T) {
	d := New(Config{Memory: 64 * mib})
	fd, end := silentfs.File(t, false)
	imported := make(chan error, 1)
	go func() {
		_, err := d.Import(fd, 2*mib, shared)
		imported <- err
	}()
	select {
	case err := <-imported:
		require.ErrorIs(t, err, driver.ErrInvalid)
		require.ErrorContains(t, err, "F_GET_SEALS")
	case <-time.After(10 * time.Second):
		end()
		t.Fatalf("Import waits for the daemon; without it: %v", <-imported)
	}
}
