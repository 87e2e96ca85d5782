//go:build linux

package host

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/internal/processes"
	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

func thisProcess(t testing.TB) processes.ID {
	t.Helper()
	id, err := processes.Self()
	require.NoError(t, err)
	return id
}

// otherProcess is the word of a process that runs.
func otherProcess(t testing.TB, pid int) uint64 {
	t.Helper()
	id := processes.ID{PID: pid}
	if processes.Shown() {
		b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		require.NoError(t, err)
		f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
		id.Start, err = strconv.ParseUint(string(f[19]), 10, 64)
		require.NoError(t, err)
	}
	return wordOf(id)
}

// limitDescriptors lets the process have no more descriptors until the limit is lifted.
func limitDescriptors(t *testing.T) (lift func()) {
	t.Helper()
	var was unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &was))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: was.Max}))
	return func() { require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &was)) }
}

// TestSharedEventAtTheDescriptorLimit: a process that has no descriptor to look at another one
// does not take that for dead.
func TestSharedEventAtTheDescriptorLimit(t *testing.T) {
	if !testgate.InChild(t) {
		return
	}
	v, w := open(t, New(Config{}), 0), open(t, New(Config{}), 0)
	e, theirs := sharedEvents(t, v, w)
	s := v.context.d.events[e].shared
	other := exec.CommandContext(t.Context(), "cat")
	_, err := other.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, other.Start())
	for i := uint64(3); i <= eventMembers; i++ {
		store(s.word(i), otherProcess(t, other.Process.Pid), 8)
	}
	store(s.word(0), 1<<8|5, 8) // the other one has recorded it

	looks := make(chan bool)
	hasEnded = func(id processes.ID) bool {
		looks <- true
		return processes.Ended(id)
	}
	lift := limitDescriptors(t)
	synced := make(chan error, 1)
	go func() { synced <- w.SyncEvent(theirs) }()
	for range 3 {
		<-looks
	}
	require.Empty(t, synced)
	stop := make(chan bool)
	stopped := make(chan bool)
	go func() {
		defer close(stopped)
		for {
			select {
			case <-looks:
			case <-stop:
				return
			}
		}
	}()
	require.False(t, eventDone(t, w, theirs))
	require.False(t, s.join(), "no word is free")
	require.Zero(t, load(s.end(1), 8), "no other process is told that the record has ended")
	lift()
	require.False(t, eventDone(t, w, theirs))

	require.NoError(t, other.Process.Kill())
	require.Error(t, other.Wait())
	require.NoError(t, <-synced)
	close(stop)
	<-stopped

	// The control: whoever cannot be looked at has ended.
	hasEnded = func(id processes.ID) bool {
		_, err := os.ReadFile("/proc/" + strconv.Itoa(id.PID) + "/stat")
		return err != nil
	}
	store(s.word(5), otherProcess(t, os.Getppid()), 8)
	store(s.word(0), 2<<8|5, 8)
	lift = limitDescriptors(t)
	defer lift()
	require.True(t, eventDone(t, w, theirs))
}

// TestNewEventAtTheDescriptorLimit: the limit is what is said, and once there are descriptors
// again, so are events.
func TestNewEventAtTheDescriptorLimit(t *testing.T) {
	if !testgate.InChild(t) {
		return
	}
	d := New(Config{})
	v, w := open(t, d, 0), open(t, New(Config{}), 0)
	p := plain(t, v, 1, 1)
	limit, id, count := process.limit, machine(), maxMapCount()
	knownMapCount, knownMachine = processes.Known[int]{}, processes.Known[[]byte]{}
	lift := limitDescriptors(t)
	process.mu.Lock()
	process.recount()
	process.mu.Unlock()
	require.Equal(t, limit, process.limit, "what the rest of the process has mapped is not forgotten")
	maxMapCount()
	machine()
	_, err := v.NewEvent(driver.EventInterprocess)
	for _, err := range []error{err, func() error { _, err := v.MemHandle(p); return err }(), d.Supports(0, driver.FeatureLegacyIPC)} {
		require.ErrorIs(t, err, driver.ErrLimit)
		require.ErrorIs(t, err, unix.EMFILE)
	}
	lift()
	require.Equal(t, id, machine())
	require.Equal(t, count, maxMapCount())
	e, theirs := sharedEvents(t, v, w)
	require.Equal(t, wordOf(thisProcess(t)), load(v.context.d.events[e].shared.word(1), 8))
	require.NoError(t, w.FreeEvent(theirs))
	h, err := v.MemHandle(p)
	require.NoError(t, err)
	_, err = w.OpenMem(h)
	require.NoError(t, err)
}

// TestOtherPIDNamespace: a process in another pid namespace, with a /proc of its own or with ours,
// has events and memory of its own to share there. What is of the other namespace neither opens:
// it could not see whether the other process lives.
func TestOtherPIDNamespace(t *testing.T) {
	const handles, mode = "CUVMM_TEST_HANDLES", "CUVMM_TEST_PROC"
	v := open(t, New(Config{}), 0)
	e, err := v.NewEvent(driver.EventInterprocess)
	require.NoError(t, err)
	event, err := v.EventHandle(e)
	require.NoError(t, err)
	mem, err := v.MemHandle(plain(t, v, 1, 1))
	require.NoError(t, err)
	refused := func(t *testing.T, w *device, text string) {
		t.Helper()
		all, err := hex.DecodeString(text)
		require.NoError(t, err)
		_, err = w.OpenEvent(driver.IPCHandle(all[:64]))
		require.ErrorIs(t, err, driver.ErrInvalid)
		require.ErrorContains(t, err, "of another pid namespace")
		_, err = w.OpenMem(driver.IPCHandle(all[64:]))
		require.ErrorIs(t, err, driver.ErrInvalid)
		require.ErrorContains(t, err, "of another pid namespace")
	}
	text := hex.EncodeToString(append(event[:], mem[:]...))

	if theirs := os.Getenv(handles); theirs != "" {
		if os.Getenv(mode) == "own" {
			require.NoError(t, unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
			require.NoError(t, unix.Mount("proc", "/proc", "proc", 0, ""))
		}
		require.Equal(t, os.Getenv(mode) == "own", processes.Shown())
		w := open(t, New(Config{}), 0)
		refused(t, w, theirs)
		if processes.Shown() { // the control: a handle that does not say where its pid counts
			all, err := hex.DecodeString(theirs[:128])
			require.NoError(t, err)
			binary.LittleEndian.PutUint64(all[40:], thisProcess(t).Namespace)
			dead, err := w.OpenEvent(driver.IPCHandle(all))
			require.NoError(t, err)
			require.True(t, eventDone(t, w, dead))
		}
		in, err := w.OpenEvent(event)
		require.NoError(t, err)
		reach := gate(t, v, v.CopyStream())
		require.NoError(t, v.Record(e, v.CopyStream()))
		require.False(t, eventDone(t, w, in))
		reach()
		require.NoError(t, w.SyncEvent(in))
		deadProcess(t)
		_, err = os.Stdout.WriteString("handles " + text + "\n")
		require.NoError(t, err)
		return
	}
	for _, proc := range []string{"own", "ours"} {
		t.Run(proc, func(t *testing.T) {
			self, err := os.Executable()
			require.NoError(t, err)
			cmd := exec.CommandContext(t.Context(), self, "-test.run=^TestOtherPIDNamespace$", "-test.timeout=5m")
			cmd.Env = append(os.Environ(), handles+"="+text, mode+"="+proc)
			cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS}
			out, err := cmd.CombinedOutput()
			if errors.Is(err, unix.EPERM) {
				t.Skip("making a pid namespace needs root")
			}
			require.NoError(t, err, "%s", out)
			_, theirs, found := strings.Cut(string(out), "handles ")
			require.True(t, found, "%s", out)
			theirs, _, _ = strings.Cut(theirs, "\n")
			refused(t, v, theirs)
		})
	}
}
