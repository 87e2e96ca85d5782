package processes

import (
	"errors"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
)

// patience only catches a hang.
const patience = time.Minute

// atTheLimit calls f while the process can have no more descriptors.
func atTheLimit(t *testing.T, f func()) {
	t.Helper()
	var was syscall.Rlimit
	require.NoError(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &was))
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 0, Max: was.Max}))
	defer func() { require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &was)) }()
	f()
}

// another is a process that runs until it is killed.
func another(t *testing.T) (ID, *exec.Cmd) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "cat")
	_, err := cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	me, err := Self()
	require.NoError(t, err)
	id := ID{PID: cmd.Process.Pid, Namespace: me.Namespace}
	if Shown() {
		s, err := readStat("/proc/" + strconv.Itoa(id.PID) + "/stat")
		require.NoError(t, err)
		id.Start = s.start
	}
	return id, cmd
}

// TestEnded: of this process, of another, of a number that was used again, and of what cannot be
// known.
func TestEnded(t *testing.T) {
	me, err := Self()
	require.NoError(t, err)
	require.Equal(t, os.Getpid(), me.PID)
	require.NotZero(t, me.Start)
	require.False(t, Ended(me))
	require.True(t, Ended(ID{me.PID, me.Start + 1, me.Namespace}), "its number is this one's now")
	for _, unknown := range []ID{{}, {PID: -1}, {PID: me.PID, Namespace: me.Namespace + 1}, {PID: 1 << 22, Namespace: me.Namespace + 1}} {
		require.False(t, Ended(unknown), unknown)
	}
	require.True(t, Ended(ID{PID: 1 << 22, Start: me.Start, Namespace: me.Namespace}), "no process has that number")

	id, cmd := another(t)
	require.False(t, Ended(id))
	if Shown() {
		again := id
		again.Start++
		require.True(t, Ended(again), "its number is used again")
		again.Start = 0
		require.False(t, Ended(again), "when it started is not known")
	}
	require.NoError(t, cmd.Process.Kill())
	if Shown() {
		require.Eventually(t, func() bool { return Ended(id) }, patience, time.Millisecond, "a zombie has ended")
	}
	require.Error(t, cmd.Wait())
	require.True(t, Ended(id))
}

// TestEndedWhereItCannotLook: without a descriptor a process that runs has not ended, and one that
// is gone has.
func TestEndedWhereItCannotLook(t *testing.T) {
	if !testgate.InChild(t) {
		return
	}
	id, cmd := another(t)
	atTheLimit(t, func() {
		_, err := os.ReadFile("/proc/self/stat")
		require.ErrorIs(t, err, syscall.EMFILE)
		require.False(t, Ended(id))
		if Shown() { // the control
			cannotLook = true
			require.True(t, Ended(id))
			cannotLook = false
		}
	})
	require.NoError(t, cmd.Process.Kill())
	require.Error(t, cmd.Wait())
	atTheLimit(t, func() { require.True(t, Ended(id)) })
}

// TestSelfAtTheLimit: what could not be found out is found out the next time.
func TestSelfAtTheLimit(t *testing.T) {
	if !testgate.InChild(t) {
		return
	}
	atTheLimit(t, func() {
		_, err := Self()
		require.Equal(t, syscall.EMFILE, err)
		_, err = Boot()
		require.Equal(t, syscall.EMFILE, err)
		require.False(t, Ended(ID{PID: os.Getpid(), Start: 1}))
	})
	me, err := Self()
	require.NoError(t, err)
	require.Equal(t, os.Getpid(), me.PID)
	b, err := Boot()
	require.NoError(t, err)
	require.NotEmpty(t, b)
	atTheLimit(t, func() {
		again, err := Self()
		require.NoError(t, err)
		require.Equal(t, me, again, "it is kept")
	})
}

// TestKnown: a value is asked for once, an error each time. The control keeps errors, too.
func TestKnown(t *testing.T) {
	asked := 0
	ask := func() (int, error) {
		if asked++; asked == 1 {
			return 0, errors.New("not now")
		}
		return asked, nil
	}
	var k Known[int]
	second := func(get func() (int, error)) (int, error) {
		asked = 0
		_, err := get()
		require.Error(t, err)
		return get()
	}
	get := func() (int, error) { return k.Get(ask) }
	n, err := second(get)
	require.NoError(t, err)
	require.Equal(t, 2, n)
	n, err = get()
	require.NoError(t, err)
	require.Equal(t, 2, n)
	_, err = second(sync.OnceValues(ask))
	require.Error(t, err, "the control")
}
