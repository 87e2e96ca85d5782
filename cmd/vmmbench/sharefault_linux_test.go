package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
)

// twoGroups share with two readers each. A sample of theirs is always under way.
const twoGroups = "share --device host --size 4M --chunk 2M,4M --readers 2 --samples 1000000 --max-time 1s --verify off"

// signalReader sends a signal to one of the two readers of a process, once it has both.
func signalReader(t *testing.T, parent int, sig syscall.Signal) {
	t.Helper()
	var readers []int
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
				if env, _ := os.ReadFile("/proc/" + pid + "/environ"); strings.Contains(string(env), mainEnv+"="+readerCommand) {
					readers = append(readers, n)
				}
			}
		}
		return len(readers) == 2
	}, 30*time.Second, time.Millisecond)
	require.NoError(t, syscall.Kill(readers[0], sig))
}

// tempFolder has temporary files made in an empty folder, and returns it.
func tempFolder(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	return dir
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
	file, dir := filepath.Join(t.TempDir(), "a.json"), tempFolder(t)
	cmd := process(t, twoGroups+" -o "+file)
	require.NoError(t, cmd.Start())
	signalReader(t, cmd.Process.Pid, syscall.SIGKILL)
	// This is what a write to that reader may cause. It is not about stdout.
	require.NoError(t, cmd.Process.Signal(syscall.SIGPIPE))
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

// A reader that is stopped does not hold up the run.
func TestShareReaderIsStopped(t *testing.T) {
	readersAreTests(t)
	dir := tempFolder(t)
	was := replyTimeout
	t.Cleanup(func() { replyTimeout = was })
	replyTimeout = 10 * time.Second // also for a reader that starts while the machine is busy
	var code int
	var out, stderr string
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		code, out, stderr = bench(t, append(strings.Fields(twoGroups), "--format", "json", "--progress", "off")...)
	}()
	signalReader(t, os.Getpid(), syscall.SIGSTOP)
	<-ended
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

// One signal ends a run whose reader is stopped.
func TestInterruptWhileAReaderIsStopped(t *testing.T) {
	file, dir := filepath.Join(t.TempDir(), "a.json"), tempFolder(t)
	cmd := process(t, twoGroups+" -o "+file)
	require.NoError(t, cmd.Start())
	signalReader(t, cmd.Process.Pid, syscall.SIGSTOP)
	require.NoError(t, cmd.Process.Signal(syscall.SIGINT))
	var exit *exec.ExitError
	require.ErrorAs(t, cmd.Wait(), &exit)
	require.Equal(t, report.ExitInterrupted, exit.ExitCode())
	for _, c := range readReport(t, file).Cases {
		require.Equal(t, report.Interrupted, c.Status, "%s: %s", c.ID, c.Reason)
	}
	requireEmpty(t, dir)
}
