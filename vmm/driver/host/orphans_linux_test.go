package host

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// orphan is a shared page that was released while its descriptor is open.
func orphan(t *testing.T, d *Driver) (fd int) {
	t.Helper()
	h, err := d.Create(d.granularity, shared)
	require.NoError(t, err)
	fd, err = d.Export(h)
	require.NoError(t, err)
	require.NoError(t, d.Release(h))
	return fd
}

// used is what device 0 has in use. Unlike MemInfo it does not look at the orphans.
func used(d *Driver) uint64 {
	d.memMu.Lock()
	defer d.memMu.Unlock()
	return d.states[0].used
}

// TestOrphansGoBack: memory that was released while another process had it
// is freed once none has, although there is memory enough.
func TestOrphansGoBack(t *testing.T) {
	d := New(Config{Granularity: 4096})
	kept := orphan(t, d)
	for range 100 {
		require.NoError(t, unix.Close(orphan(t, d)))
	}
	require.LessOrEqual(t, used(d), 3*d.granularity)
	require.NoError(t, unix.Close(kept))
	require.Eventually(t, func() bool { return used(d) == 0 }, time.Minute, time.Millisecond)
}

// TestOrphansOfAKilledProcess: an owner that makes no call any more gets its memory and
// its descriptors back when another process that had the memory is killed.
func TestOrphansOfAKilledProcess(t *testing.T) {
	before := holds(t)
	d := New(Config{Granularity: 4096})
	fds := make([]*os.File, 3)
	for i := range fds {
		fds[i] = os.NewFile(uintptr(orphan(t, d)), "exported")
	}
	reader := exec.CommandContext(t.Context(), "cat") // waits for its input
	reader.ExtraFiles = fds
	_, err := reader.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, reader.Start())
	for _, f := range fds {
		require.NoError(t, f.Close())
	}
	require.Equal(t, 3*d.granularity, used(d))

	require.NoError(t, reader.Process.Kill())
	require.Error(t, reader.Wait())
	require.Eventually(t, func() bool { return used(d) == 0 }, time.Minute, time.Millisecond)
	require.Eventually(t, func() bool { return memoryFiles(holds(t)) <= memoryFiles(before) }, time.Minute, time.Millisecond)
}

// memoryFiles is how many of the descriptors are of memory.
func memoryFiles(all held) int {
	n := 0
	for what, count := range all {
		if strings.HasPrefix(what, "fd /memfd:"+memfdName) {
			n += count
		}
	}
	return n
}

// TestOrphansAreLookedAtSeldom: the pause between two looks grows to its maximum, and
// there is no look once there is no orphan.
func TestOrphansAreLookedAtSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pause := func(d *Driver) time.Duration {
			synctest.Wait()
			d.memMu.Lock()
			defer d.memMu.Unlock()
			return d.orphanPause
		}
		d := New(Config{Granularity: 4096})
		first := orphan(t, d)
		require.Equal(t, firstOrphanPause, pause(d))
		<-time.After(firstOrphanPause)
		require.Equal(t, 2*firstOrphanPause, pause(d), "it is open")
		<-time.After(time.Minute)
		require.Equal(t, lastOrphanPause, pause(d))

		// A new one may be found sooner.
		second := orphan(t, d)
		require.Equal(t, firstOrphanPause, pause(d))
		<-time.After(time.Minute)
		require.Equal(t, lastOrphanPause, pause(d))

		require.NoError(t, unix.Close(first))
		for start := time.Now(); used(d) == 2*d.granularity; {
			require.LessOrEqual(t, time.Since(start), lastOrphanPause)
			<-time.After(time.Millisecond)
		}
		require.Equal(t, firstOrphanPause, pause(d), "one is free, so others may be")
		<-time.After(time.Minute)
		require.Equal(t, d.granularity, used(d))
		require.NoError(t, unix.Close(second))
		<-time.After(lastOrphanPause)
		require.Zero(t, pause(d))
		require.Zero(t, used(d))

		// And from the start.
		require.NoError(t, unix.Close(orphan(t, d)))
		<-time.After(firstOrphanPause)
		require.Zero(t, pause(d))
		require.Zero(t, used(d))
	})
}

// TestOrphansAreLookedAtInTurn: one look asks for a part of many, those first that were
// asked for longest ago.
func TestOrphansAreLookedAtInTurn(t *testing.T) {
	d := New(Config{Granularity: 4096})
	const n = orphansPerLook + 10
	var fds []int
	d.memMu.Lock()
	d.orphanPause = lastOrphanPause // no look but those below
	d.memMu.Unlock()
	for range n {
		fds = append(fds, orphan(t, d))
	}
	d.memMu.Lock()
	last, next := d.orphans[0], d.orphans[orphansPerLook]
	d.memMu.Unlock()
	d.lookAtOrphans()
	d.memMu.Lock()
	require.Same(t, next, d.orphans[0])
	require.Same(t, last, d.orphans[10])
	d.memMu.Unlock()
	for _, fd := range fds {
		require.NoError(t, unix.Close(fd))
	}
	require.Eventually(t, func() bool { return used(d) == 0 }, time.Minute, time.Millisecond)
}

// TestOrphansHoldDescriptors: where no descriptor is left, Create looks at all orphans.
func TestOrphansHoldDescriptors(t *testing.T) {
	if !testgate.InChild(t) {
		return
	}
	d := New(Config{Granularity: 4096})
	d.orphanPause = lastOrphanPause // as if a look were due, so there is none
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	for range 8 {
		fd := orphan(t, d)
		require.NoError(t, unix.Sendmsg(pair[0], []byte{0}, unix.UnixRights(fd), nil, 0))
		require.NoError(t, unix.Close(fd))
	}
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 64, Max: 64}))
	for err == nil {
		_, err = unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	}
	require.ErrorIs(t, err, unix.EMFILE)
	_, err = d.Create(d.granularity, shared)
	require.ErrorIs(t, err, driver.ErrLimit, "the orphans are open")
	for range 8 { // without room for the descriptors, which are closed
		_, err := unix.Read(pair[1], make([]byte, 1))
		require.NoError(t, err)
	}
	h, err := d.Create(d.granularity, shared)
	require.NoError(t, err)
	require.Empty(t, d.orphans)
	require.NoError(t, d.Release(h))
}
