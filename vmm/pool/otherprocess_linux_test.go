package pool_test

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/pool"
)

const (
	hoarderEnv = "POOL_TEST_HOARDER" // makes a process one that TestHoarder is in
	gib        = 1 << 30
)

// TestHoarder is the process of TestTrimmedMemoryGoesToAnotherProcess, and nothing in any other.
// A pool takes nearly all memory, and gives it back as the process is told.
func TestHoarder(t *testing.T) {
	if os.Getenv(hoarderEnv) == "" {
		t.Skip("is run by another test")
	}
	w := oneDevice(t, 256*mib)
	p, s := w.pool(pool.Options{ReleaseThreshold: math.MaxUint64}), w.stream(0)
	left := uint64(64 * mib)
	if onCUDA {
		left = 2 * gib
	}
	b := alloc(t, p, s, (w.free(0)-left)&^(2*mib-1))
	require.NoError(t, s.Fill(b.Ptr(), 1, 1, b.Size()))
	require.NoError(t, s.Sync())
	say := func(n uint64) { fmt.Println(">", n) }
	say(b.Size())
	told := bufio.NewScanner(os.Stdin)
	told.Scan()
	require.NoError(t, p.Free(s, b))
	require.NoError(t, s.Sync())
	say(statsOf(t, p).Reserved)
	told.Scan()
	freed, err := p.TrimTo(0)
	require.NoError(t, err)
	say(freed)
	told.Scan()
	closeAll(t, p, s)
	w.end()
}

// hoarder is another process.
type hoarder struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.Writer
	out *bufio.Scanner
}

func startHoarder(t *testing.T) *hoarder {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	h := &hoarder{t: t, cmd: exec.CommandContext(t.Context(), self, "-test.run=^TestHoarder$", "-test.timeout=2m")}
	h.cmd.Env = append(os.Environ(), hoarderEnv+"=1")
	h.cmd.Stderr = os.Stderr
	h.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	h.in, err = h.cmd.StdinPipe()
	require.NoError(t, err)
	out, err := h.cmd.StdoutPipe()
	require.NoError(t, err)
	h.out = bufio.NewScanner(out)
	require.NoError(t, h.cmd.Start())
	return h
}

// says is the next number that the process says.
func (h *hoarder) says() (n uint64) {
	h.t.Helper()
	for h.out.Scan() {
		text, ok := strings.CutPrefix(h.out.Text(), "> ")
		if !ok {
			fmt.Fprintln(h.t.Output(), h.out.Text())
			continue
		}
		_, err := fmt.Sscan(text, &n)
		require.NoError(h.t, err)
		return n
	}
	h.t.Fatalf("the other process has ended: %v", h.cmd.Wait())
	return 0
}

// goes on to the process's next step.
func (h *hoarder) next() uint64 {
	h.t.Helper()
	_, err := fmt.Fprintln(h.in)
	require.NoError(h.t, err)
	return h.says()
}

// holds is how many bytes of memory files the process keeps, mapped or open: what a device of
// host memory has taken from the system.
func (h *hoarder) holds() (bytes uint64) {
	h.t.Helper()
	proc := fmt.Sprintf("/proc/%d/", h.cmd.Process.Pid)
	status, err := os.ReadFile(proc + "status")
	require.NoError(h.t, err)
	_, shared, found := strings.Cut(string(status), "RssShmem:")
	require.True(h.t, found)
	var mapped uint64
	_, err = fmt.Sscan(shared, &mapped)
	require.NoError(h.t, err)
	open, err := filepath.Glob(proc + "fd/*")
	require.NoError(h.t, err)
	for _, fd := range open {
		to, err := os.Readlink(fd)
		if err != nil || !strings.HasPrefix(to, "/memfd:") {
			continue
		}
		st, err := os.Stat(fd)
		require.NoError(h.t, err)
		bytes += uint64(st.Sys().(*syscall.Stat_t).Blocks) * 512
	}
	return max(bytes, mapped*kib)
}

// TestTrimmedMemoryGoesToAnotherProcess: what one process's pool has freed is its own until a
// trim, and then another process's. Devices of host memory of two processes do not count
// together, so there the test sees what the system has given the other one.
func TestTrimmedMemoryGoesToAnotherProcess(t *testing.T) {
	w := oneDevice(t, 256*mib)
	p, s := w.pool(pool.Options{}), w.stream(0)
	var h *hoarder
	// fits returns nil if this process can have the memory.
	fits := func() error {
		if !onCUDA {
			if n := h.holds(); n > 16*mib {
				return fmt.Errorf("%w: the other process has %d bytes", vmm.ErrOutOfMemory, n)
			}
			return nil
		}
		b, err := p.Alloc(s, 4*gib)
		if err != nil {
			return err
		}
		require.NoError(t, s.Fill(b.Ptr(), 1, 1, b.Size()))
		require.NoError(t, p.Free(s, b))
		return s.Sync()
	}
	w.free(0) // the context takes memory, too
	h = startHoarder(t)
	held := h.says()
	require.Positive(t, held)
	require.ErrorIs(t, fits(), vmm.ErrOutOfMemory)
	require.GreaterOrEqual(t, h.next(), held, "reserved by the pool though it is free")
	require.ErrorIs(t, fits(), vmm.ErrOutOfMemory)
	require.GreaterOrEqual(t, h.next(), held, "freed by the trim")
	require.NoError(t, fits())
	_, err := fmt.Fprintln(h.in)
	require.NoError(t, err)
	for h.out.Scan() { // until it says nothing more, as Wait needs
	}
	require.NoError(t, h.cmd.Wait())
	closeAll(t, p, s)
	w.end()
}
