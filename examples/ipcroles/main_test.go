package main

import (
	"bufio"
	"bytes"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/shareable/ipc"
)

// childEnv has this program run instead of the tests.
const childEnv = "CUVMM_EXAMPLE_IPCROLES"

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// start makes a process that plays a role.
func start(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("needs the host driver, which is for Linux")
	}
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), self, args...)
	cmd.Env = append(os.Environ(), childEnv+"=1")
	cmd.WaitDelay = time.Second
	return cmd
}

// plays runs a role to its end.
func plays(t *testing.T, args ...string) (string, error) {
	t.Helper()
	out, err := start(t, args...).CombinedOutput()
	return string(out), err
}

// begin starts main, and returns its lines from the second on.
func begin(t *testing.T, dir string) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	cmd := start(t, "main", "-dir", dir, "-device", "host", "-count", "100000")
	return cmd, beginAs(t, cmd)
}

// beginAs is begin for a main of any kind.
func beginAs(t *testing.T, cmd *exec.Cmd) *bufio.Scanner {
	t.Helper()
	cmd.Stderr = t.Output()
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	lines := bufio.NewScanner(out)
	says(t, lines, "after main all 100000 numbers are 1")
	return lines
}

func says(t *testing.T, lines *bufio.Scanner, line string) {
	t.Helper()
	require.True(t, lines.Scan(), "the end instead of %q", line)
	require.Equal(t, line, lines.Text())
}

func TestRoles(t *testing.T) {
	dir := t.TempDir()
	cmd, lines := begin(t, dir)
	for _, c := range []struct{ role, line string }{
		{"memory", "after memory all 100000 numbers are 8"},
		{"rtc", "after rtc all 100000 numbers are 11"},
		{"rtc", "after rtc all 100000 numbers are 14"},
	} {
		out, err := plays(t, c.role, "-dir", dir, "-device", "host")
		require.NoError(t, err, out)
		require.Equal(t, c.role+" has changed 100000 numbers on host:0\n", out)
		says(t, lines, c.line)
	}

	out, err := plays(t, "main", "-dir", dir, "-device", "host")
	require.Error(t, err)
	require.Contains(t, out, "another main is there")

	// Several at once take their turns, with a handle as other programs write it.
	path := filepath.Join(dir, memoryFile)
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	first, _, _ := bytes.Cut(text, []byte("\n"))
	require.NoError(t, os.WriteFile(path, first, 0o600))
	const several = 4
	cmds := make([]*exec.Cmd, several)
	for i := range cmds {
		cmds[i] = start(t, "rtc", "-dir", dir, "-device", "host", "-count", "100000")
		cmds[i].Stderr = t.Output()
		require.NoError(t, cmds[i].Start())
	}
	for _, line := range []string{"17", "20", "23", "26"} {
		says(t, lines, "after rtc all 100000 numbers are "+line)
	}
	for _, c := range cmds {
		require.NoError(t, c.Wait())
	}

	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	require.False(t, lines.Scan(), "%q", lines.Text())
	require.NoError(t, cmd.Wait())
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)
	withoutMain(t, dir)
}

// withoutMain: no role makes memory of its own in main's stead.
func withoutMain(t *testing.T, dir string) {
	t.Helper()
	for _, role := range []string{"memory", "rtc"} {
		out, err := plays(t, role, "-dir", dir, "-device", "host")
		require.Error(t, err)
		require.Contains(t, out, "main is gone")
	}
}

func TestMainIsKilled(t *testing.T) {
	dir := t.TempDir()
	cmd, _ := begin(t, dir)
	require.NoError(t, cmd.Process.Kill())
	require.Error(t, cmd.Wait())
	h, err := ipc.ReadFile(filepath.Join(dir, memoryFile))
	require.NoError(t, err, "it is there still")
	require.Equal(t, cmd.Process.Pid, h.PID)
	withoutMain(t, dir)

	cmd, _ = begin(t, dir) // in the place of the old one
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	require.NoError(t, cmd.Wait())
}

// A process that is killed while it has its turn costs the others nothing.
func TestOtherIsKilled(t *testing.T) {
	dir := t.TempDir()
	cmd, lines := begin(t, dir)
	for range 20 {
		c := start(t, "memory", "-dir", dir, "-device", "host")
		require.NoError(t, c.Start())
		require.NoError(t, c.Process.Kill()) // wherever it is
		require.Error(t, c.Wait())
	}
	out, err := plays(t, "memory", "-dir", dir, "-device", "host")
	require.NoError(t, err, out)
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	last := ""
	for lines.Scan() {
		last = lines.Text()
	}
	require.Equal(t, "after memory all 100000 numbers are 8", last)
	require.NoError(t, cmd.Wait())
}

func TestDevices(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("needs the host driver, which is for Linux")
	}
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), &out, options{}))
	require.Contains(t, out.String(), "host:0: host memory, unified addressing true\n")
	require.NotContains(t, out.String(), "host:1")
	for _, o := range []options{{role: "none", count: 1}, {role: "main"}} {
		require.Error(t, run(t.Context(), &out, o))
	}
}

func TestDirectory(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	for range 2 {
		dir, err := directory("")
		require.NoError(t, err)
		require.True(t, strings.HasPrefix(dir, os.TempDir()))
	}
	dir, err := directory("")
	require.NoError(t, err)
	require.NoError(t, os.Chmod(dir, 0o777)) //nolint:gosec // that it is refused is the point
	_, err = directory("")
	require.ErrorContains(t, err, "use -dir")
}

// TestProcessThatDoesNothingInItsTurn: main ends at the first signal all the same.
func TestProcessThatDoesNothingInItsTurn(t *testing.T) {
	for _, sent := range []string{"", "memory has que", "memory has queued its work\n"} {
		dir := t.TempDir()
		cmd, lines := begin(t, dir)
		c, err := net.Dial("unix", filepath.Join(dir, socketFile))
		require.NoError(t, err)
		said := bufio.NewScanner(c)
		require.True(t, said.Scan())
		require.Equal(t, yourTurn, said.Text())
		_, err = c.Write([]byte(sent))
		require.NoError(t, err)
		if strings.HasSuffix(sent, "\n") {
			says(t, lines, "after memory all 100000 numbers are 1")
		}
		require.NoError(t, cmd.Process.Signal(os.Interrupt))
		for lines.Scan() {
		}
		require.NoError(t, cmd.Wait())
		require.NoError(t, c.Close())
		left, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.Empty(t, left)
	}
}

// TestTwoMains: of several that start at the same time one has the directory.
func TestTwoMains(t *testing.T) {
	for range 5 {
		dir := t.TempDir()
		r, w, err := os.Pipe() // all print to it
		require.NoError(t, err)
		var errs [4]bytes.Buffer
		var cmds [4]*exec.Cmd
		for i := range cmds {
			cmds[i] = start(t, "main", "-dir", dir, "-device", "host", "-count", "1000")
			cmds[i].Stdout, cmds[i].Stderr = w, &errs[i]
			require.NoError(t, cmds[i].Start())
		}
		require.NoError(t, w.Close())
		ends := make(chan int, len(cmds))
		for i := range cmds {
			go func() { _ = cmds[i].Wait(); ends <- i }()
		}
		lines := bufio.NewScanner(r)
		says(t, lines, "after main all 1000 numbers are 1")
		for range len(cmds) - 1 {
			require.Contains(t, errs[<-ends].String(), "another main is there")
		}
		out, err := plays(t, "memory", "-dir", dir, "-device", "host")
		require.NoError(t, err, out)
		says(t, lines, "after memory all 1000 numbers are 8")
		for _, c := range cmds {
			_ = c.Process.Signal(os.Interrupt) // it reaches the one that is left
		}
		require.Empty(t, errs[<-ends].String())
		require.False(t, lines.Scan(), "%q", lines.Text())
		require.NoError(t, r.Close())
	}
	// What is no socket is not main's to remove.
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, socketFile), []byte("x"), 0o600))
	out, err := plays(t, "main", "-dir", dir, "-device", "host")
	require.Error(t, err)
	require.Contains(t, out, "is not a socket")
}

// TestWrongSizeIsRefused: that of the flag, for a handle without one, and that of the handle.
func TestWrongSizeIsRefused(t *testing.T) {
	dir := t.TempDir()
	cmd, _ := begin(t, dir)
	path := filepath.Join(dir, memoryFile)
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	first, _, _ := bytes.Cut(b, []byte("\n"))
	for _, size := range []string{"", "size 1099511627776", "size 18446744073709551612", "size 1"} {
		text := string(first) + "\n"
		if size != "" {
			text += "kind memory\n" + size + "\nend\n"
		}
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		for _, role := range []string{"memory", "rtc"} {
			out, err := plays(t, role, "-dir", dir, "-device", "host", "-count", "2305843009213693951")
			require.Error(t, err, out)
			require.NotContains(t, out, "panic")
			require.NotContains(t, out, "fatal")
		}
	}
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	require.NoError(t, cmd.Wait())
}
