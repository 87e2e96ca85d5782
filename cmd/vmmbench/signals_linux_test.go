package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
)

// timeOver is the signal that ends the time of --max-time in such a process.
const timeOver = syscall.SIGUSR1

// TestMainProcess is vmmbench's own process, and nothing in any other.
func TestMainProcess(t *testing.T) {
	args := os.Getenv(mainEnv)
	if args == "" {
		t.Skip("is run by other tests")
	}
	set := testSettings()
	if os.Getenv(kernelsEnv) != "" {
		set = kernelSettings()
	}
	var clock testClock
	set.now = clock.now
	over := make(chan os.Signal, 1)
	signal.Notify(over, timeOver)
	go func() {
		<-over
		clock.over.Store(true)
	}()
	os.Exit(process(set, strings.Fields(args)))
}

// mainProcess is vmmbench with these arguments, without a report on stdout.
func mainProcess(t *testing.T, args string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), self, "-test.run=^TestMainProcess$")
	cmd.Env = append(os.Environ(), mainEnv+"="+args+" --progress off")
	cmd.Stderr = t.Output()
	return cmd
}

// readReport reads a JSON report.
func readReport(t *testing.T, file string) (r report.Report) {
	t.Helper()
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(b, &r))
	return r
}

// A reader of stdout that goes early costs the files nothing.
func TestClosedPipe(t *testing.T) {
	for format, want := range map[string]int{"table": report.ExitError, "ndjson": report.ExitInterrupted} {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "a.json")
			cmd := mainProcess(t, "bw --device host --size 64K --samples 6 --mem vmm,plain --host pinned --direction d2d --format "+format+" -o "+file)
			r, w, err := os.Pipe()
			require.NoError(t, err)
			require.NoError(t, r.Close())
			cmd.Stdout = w
			var exit *exec.ExitError
			require.ErrorAs(t, cmd.Run(), &exit)
			require.NoError(t, w.Close())
			require.Equal(t, want, exit.ExitCode())
			got := readReport(t, file)
			require.NotEmpty(t, got.Cases)
			require.Equal(t, want == report.ExitInterrupted, got.Run.Interrupted)
		})
	}
}

// Signals end a run, and leave valid files; SIGKILL leaves whole lines of ndjson.
func TestSignals(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGKILL} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			whole, lines := filepath.Join(dir, "a.json"), filepath.Join(dir, "a.ndjson")
			cmd := mainProcess(t, "bw --device host --size 4K:64M:x2 --samples 1000 --max-time 1h --min-time 10ms -o "+whole+" -o "+lines)
			require.NoError(t, cmd.Start())
			var b []byte
			require.Eventually(t, func() bool {
				var err error
				b, err = os.ReadFile(lines)
				return err == nil && strings.Count(string(b), "\n") >= 3 // the run, the host, the device
			}, 30*time.Second, 10*time.Millisecond)
			require.NoError(t, cmd.Process.Signal(sig))
			var exit *exec.ExitError
			require.ErrorAs(t, cmd.Wait(), &exit)
			b, err := os.ReadFile(lines)
			require.NoError(t, err)
			for line := range strings.Lines(string(b)) {
				require.True(t, json.Valid([]byte(line)), line)
			}
			if sig == syscall.SIGKILL {
				require.NoFileExists(t, whole)
				return
			}
			require.Equal(t, report.ExitInterrupted, exit.ExitCode())
			r := readReport(t, whole)
			require.True(t, r.Run.Interrupted)
			require.NotEmpty(t, r.Cases)
		})
	}
}
