package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
)

// twoGroups share with two readers each. A sample of theirs is under way until its time is
// over.
const twoGroups = "share --device host --size 4M --chunk 2M,4M --readers 2 --samples 1000000 --verify off"

// readersOf waits until a process has two readers other than these, and returns them.
func readersOf(t *testing.T, parent int, others ...int) (readers []int) {
	t.Helper()
	require.Eventually(t, func() bool {
		readers = nil
		tasks, err := filepath.Glob("/proc/" + strconv.Itoa(parent) + "/task/*/children")
		require.NoError(t, err)
		for _, file := range tasks {
			text, _ := os.ReadFile(file) // a thread may end meanwhile
			for pid := range strings.FieldsSeq(string(text)) {
				n, err := strconv.Atoi(pid)
				require.NoError(t, err)
				// Before it runs its program, it still holds up the process that starts it.
				env, _ := os.ReadFile("/proc/" + pid + "/environ")
				if !slices.Contains(others, n) && strings.Contains(string(env), mainEnv+"="+readerCommand) {
					readers = append(readers, n)
				}
			}
		}
		return len(readers) == 2
	}, time.Minute, time.Millisecond)
	return readers
}

func requireEmpty(t *testing.T, dir string) {
	t.Helper()
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left, "nothing temporary is left")
}

// A reader that is killed ends the cases of its group, with a reason that says so. The
// next group has its own readers.
func TestShareReaderIsKilled(t *testing.T) {
	t.Parallel()
	file, dir := filepath.Join(t.TempDir(), "a.json"), t.TempDir()
	cmd := mainProcess(t, twoGroups+" -o "+file)
	cmd.Env = append(cmd.Env, "TMPDIR="+dir)
	require.NoError(t, cmd.Start())
	readers := readersOf(t, cmd.Process.Pid)
	require.NoError(t, syscall.Kill(readers[0], syscall.SIGKILL))
	// This is what a write to that reader may cause. It is not about stdout.
	require.NoError(t, cmd.Process.Signal(syscall.SIGPIPE))
	readersOf(t, cmd.Process.Pid, readers...)
	require.NoError(t, cmd.Process.Signal(timeOver))
	var exit *exec.ExitError
	require.ErrorAs(t, cmd.Wait(), &exit)
	require.Equal(t, report.ExitError, exit.ExitCode())
	cases := readReport(t, file).Cases
	require.Len(t, cases, 8)
	for i, c := range cases {
		if i >= 4 {
			require.Equal(t, report.Passed, c.Status, "%s: %s", c.ID, c.Reason)
			continue
		}
		require.Equal(t, report.Error, c.Status, c.ID)
		require.Contains(t, c.Reason, "a process that reads has ended: signal: killed", c.ID)
	}
	requireEmpty(t, dir)
}

// A reader that is stopped, and so does not reply in time, does not hold up the run.
func TestShareReaderIsStopped(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir) // so it is not parallel
	var clock testClock
	set := testSettings()
	set.now = clock.now
	var first *readerProcess
	requests := 0 // to the first reader
	set.afterReplyTimeout = func(p *readerProcess, late func()) (stop func() bool) {
		if first == nil {
			first = p
		}
		if p == first {
			requests++
		}
		if p == first && requests == 100 { // samples are under way
			pid := p.cmd.Process.Pid
			require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP))
			require.NoError(t, unix.Waitid(unix.P_PID, pid, nil, unix.WSTOPPED|unix.WNOWAIT, nil))
			go late()
			clock.over.Store(true) // for the second group
		}
		return func() bool { return true }
	}
	code, out, stderr := benchWith(t, set, append(strings.Fields(twoGroups), "--format", "json", "--progress", "off")...)
	require.Equal(t, report.ExitError, code, stderr)
	for i, c := range parse(t, out).Cases {
		if i >= 4 {
			require.Equal(t, report.Passed, c.Status, "%s: %s", c.ID, c.Reason)
			continue
		}
		require.Equal(t, report.Error, c.Status, c.ID)
		require.Contains(t, c.Reason, "a process that reads does not reply", c.ID)
	}
	requireEmpty(t, dir)
}

// A user's run gives up on a reader after replyTimeout, and on none that has replied.
func TestReplyTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var silent, replied atomic.Bool
		after := userSettings().afterReplyTimeout
		after(nil, func() { silent.Store(true) })
		stop := after(nil, func() { replied.Store(true) })
		time.Sleep(replyTimeout - 1)
		synctest.Wait()
		require.False(t, silent.Load())
		require.True(t, stop())
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		require.True(t, silent.Load())
		require.False(t, replied.Load())
	})
}

// One signal ends a run whose reader is stopped.
func TestInterruptWhileAReaderIsStopped(t *testing.T) {
	t.Parallel()
	file, dir := filepath.Join(t.TempDir(), "a.json"), t.TempDir()
	cmd := mainProcess(t, twoGroups+" -o "+file)
	cmd.Env = append(cmd.Env, "TMPDIR="+dir)
	require.NoError(t, cmd.Start())
	require.NoError(t, syscall.Kill(readersOf(t, cmd.Process.Pid)[0], syscall.SIGSTOP))
	require.NoError(t, cmd.Process.Signal(syscall.SIGINT))
	var exit *exec.ExitError
	require.ErrorAs(t, cmd.Wait(), &exit)
	require.Equal(t, report.ExitInterrupted, exit.ExitCode())
	for _, c := range readReport(t, file).Cases {
		require.Equal(t, report.Interrupted, c.Status, "%s: %s", c.ID, c.Reason)
	}
	requireEmpty(t, dir)
}
