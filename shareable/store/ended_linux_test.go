package store

import (
	"encoding/json"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/internal/processes"
	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/vmm"
)

// roomForOne is a limit that leaves no room for the copy of an object that has some bytes.
func roomForOne(t *testing.T) Options {
	t.Helper()
	n, err := granularity(testDevice(t))
	require.NoError(t, err)
	return Options{MaxBytes: n}
}

// continues has another Writer append to "k", which is the object of that ID still.
func continues(t *testing.T, c *Client, id ID) {
	t.Helper()
	w, err := c.Append(within(t), "k", AppendOptions{})
	require.NoError(t, err)
	require.Equal(t, id, w.ID())
	require.NoError(t, w.Append(waveAt(w.Len(), 1000)))
	require.NoError(t, w.Close())
	require.NoError(t, checkWave(got(t, c, "k", GetOptions{Unsafe: true}), 2000))
}

// TestNoCopyAfterTheEnd: a writer whose lease was taken away may write to the object as long as its
// process lives. Then the next one needs a copy, and is told so if there is no room. Once the process
// has ended it goes on without.
func TestNoCopyAfterTheEnd(t *testing.T) {
	t.Parallel()
	s := listeningOn(t, testDevice(t), roomForOne(t))
	c := clientOn(t, testDevice(t), s)
	first := spawn(t, "holder", s.Path(), "late", "k")
	first.expect("ready")
	info, err := c.Stat(t.Context(), "k")
	require.NoError(t, err)
	require.NoError(t, c.Revoke(t.Context(), "k"))
	for range 100 { // one that fails leaves no lease to the next
		_, err = c.Append(within(t), "k", AppendOptions{})
		require.ErrorIs(t, err, vmm.ErrLimit)
		require.ErrorContains(t, err, "copy")
		require.ErrorContains(t, err, "end that process")
	}
	first.kill()
	continues(t, c, info.ID)
}

// TestNoCopyAfterARestart: the next server knows which process may write.
func TestNoCopyAfterARestart(t *testing.T) {
	o, err := json.Marshal(roomForOne(t))
	require.NoError(t, err)
	t.Setenv(optionsVar, string(o))
	k, path, c := kept(t)
	first := spawn(t, "holder", path, "late", "k")
	first.expect("ready")
	info, err := c.Stat(t.Context(), "k")
	require.NoError(t, err)
	require.NoError(t, c.Revoke(t.Context(), "k"))
	k.ask("kill")
	_, err = c.Append(within(t), "k", AppendOptions{})
	require.ErrorContains(t, err, "copy")
	first.kill()
	continues(t, c, info.ID)
	k.ask("close")
}

// TestEndThatIsNotKnown: a process counts as alive while nothing shows that it has ended.
func TestEndThatIsNotKnown(t *testing.T) {
	t.Parallel()
	own := int32(os.Getpid())
	began := processes.StartOf(int(own))
	require.NotZero(t, began)
	for _, p := range []process{{}, {pid: -1}, {own, 0}, {own, began}} {
		require.False(t, hasExited(p.pidfd), "%v", p)
	}
	require.True(t, hasExited((&process{own, began + 1}).pidfd), "another process has the number now")
}

// TestEndWithoutDescriptors: neither does one that cannot be looked at.
func TestEndWithoutDescriptors(t *testing.T) {
	t.Parallel()
	if !testgate.InChild(t) {
		return
	}
	p := process{int32(os.Getpid()), processes.StartOf(os.Getpid())}
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 64, Max: 64}))
	var all []int
	for {
		fd, err := unix.Dup(1)
		if err != nil {
			break
		}
		all = append(all, fd)
	}
	for range 2 { // with none left, and with one
		require.False(t, hasExited(p.pidfd))
		closeFD(all[0])
	}
}
