package vmm_test

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/exp/stats"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/vmm"
)

const sleeperEnv = "VMM_TEST_SLEEPER"

// TestSleeper is a process of its own, and nothing in any other: a range sleeps and wakes for each line
// that it reads. It may lock 1 MiB.
func TestSleeper(t *testing.T) {
	var size uint64
	if _, err := fmt.Sscan(os.Getenv(sleeperEnv), &size); err != nil {
		t.Skip("is run by another test")
	}
	limits, err := os.ReadFile("/proc/self/limits")
	require.NoError(t, err)
	_, after, _ := strings.Cut(string(limits), "Max locked memory")
	var locked int
	_, err = fmt.Sscan(after, &locked)
	require.NoError(t, err)
	require.LessOrEqual(t, locked, 1<<20)
	w := newWorld(t, 1)
	g, err := w.devs[0].NewRange(vmm.RangeOptions{Max: size})
	require.NoError(t, err)
	require.NoError(t, g.Grow(size))
	require.NoError(t, g.SetLen(size))
	s := stream(t, w.devs[0])
	require.NoError(t, s.Fill(g.Ptr(), 0x5a, 1, size))
	require.NoError(t, s.Sync())
	fmt.Fprintln(os.Stdout, "> ready")
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		fmt.Fprintln(os.Stdout, "> sleeps")
		require.NoError(t, vmm.Sleep(vmm.SleepKeep, g))
		require.NoError(t, vmm.Wake(g))
		b := make([]byte, page)
		for range 16 {
			_, err := g.ReadAt(b, int64(rand.Uint64N(size/page)*page))
			require.NoError(t, err)
			require.Equal(t, strings.Repeat("\x5a", page), string(b))
		}
		fmt.Fprintln(os.Stdout, "> awake")
	}
	require.NoError(t, s.Close())
	require.NoError(t, g.Close())
}

// sleeper is such a process.
type sleeper struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

func startSleeper(t *testing.T, size uint64) *sleeper {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	s := &sleeper{t: t, cmd: exec.CommandContext(t.Context(), "sh", "-c", `ulimit -l 1024; exec "$0" "$@"`, self, "-test.run=^TestSleeper$", "-test.timeout=5m")}
	s.cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", sleeperEnv, size))
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	s.cmd.Stderr = os.Stderr
	s.in, err = s.cmd.StdinPipe()
	require.NoError(t, err)
	out, err := s.cmd.StdoutPipe()
	require.NoError(t, err)
	s.out = bufio.NewScanner(out)
	require.NoError(t, s.cmd.Start())
	s.expect("ready")
	return s
}

// sleep has it sleep and wake; it says "sleeps", and when it has done so "awake".
func (s *sleeper) sleep() {
	s.t.Helper()
	_, err := fmt.Fprintln(s.in, "sleep")
	require.NoError(s.t, err)
	s.expect("sleeps")
}

func (s *sleeper) expect(what string) {
	s.t.Helper()
	for s.out.Scan() {
		if said, ok := strings.CutPrefix(s.out.Text(), "> "); ok {
			require.Equal(s.t, what, said)
			return
		}
		s.t.Log(s.out.Text())
	}
	s.t.Fatal("the process has ended")
}

// TestSleepInAnotherProcess: with 1 MiB that it may lock a process sleeps and wakes all the same. It
// reports what that costs the calls of this one.
func TestSleepInAnotherProcess(t *testing.T) {
	size, rounds := uint64(32<<20), testgate.Effort(2, 5, 20)
	if onCUDA {
		size = 16 << 30
	}
	w := newWorld(t, 1)
	d := w.devs[0]
	ask := func(until func() bool) (us []float64) {
		for !until() {
			begin := time.Now()
			_, _, err := d.MemInfo()
			require.NoError(t, err)
			us = append(us, float64(time.Since(begin))/1e3)
		}
		return us
	}
	n := 0
	alone := ask(func() bool { n++; return n > 1000 })
	s := startSleeper(t, size)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range rounds {
			s.sleep()
			s.expect("awake")
		}
	}()
	beside := ask(func() bool {
		select {
		case <-done:
			return true
		default:
			return false
		}
	})
	require.NoError(t, s.in.Close())
	require.NoError(t, s.cmd.Wait())
	a, b := stats.Quantiles(alone, 0.5, 0.99), stats.Quantiles(beside, 0.5, 0.99)
	t.Logf("MemInfo beside a process whose %d MiB sleep and wake %d times: p50 %.1f us, p99 %.1f, %d calls; alone %.1f, %.1f", size>>20, rounds, b[0], b[1], len(beside), a[0], a[1])
	w.end()
}

// TestKilledInItsSleep: of a process that is killed while its range falls asleep or wakes nothing is
// left.
func TestKilledInItsSleep(t *testing.T) {
	size, rounds, most := uint64(32<<20), testgate.Effort(3, 10, 50), 2*time.Millisecond
	if onCUDA {
		size, rounds, most = 8<<30, testgate.Effort(2, 5, 20), 800*time.Millisecond
	}
	w := newWorld(t, 1)
	free, _, err := w.devs[0].MemInfo()
	require.NoError(t, err)
	for range rounds {
		s := startSleeper(t, size)
		s.sleep()
		time.Sleep(rand.N(most)) //nolint:forbidigo // somewhere on its way
		require.NoError(t, s.cmd.Process.Kill())
		require.Error(t, s.cmd.Wait())
	}
	// The driver clears what a process has left, in the background.
	require.Eventually(t, func() bool {
		now, _, err := w.devs[0].MemInfo()
		require.NoError(t, err)
		return now >= free
	}, 30*time.Second, time.Millisecond)
	w.end()
}
