package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/shareable/store"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// roleVar has this binary be the program, for a process of its own.
const roleVar = "SURVIVES_EXAMPLE"

func TestMain(m *testing.M) {
	if os.Getenv(roleVar) != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// process is a run of the program.
type process struct {
	cmd   *exec.Cmd
	lines *bufio.Scanner
}

func start(t *testing.T, args ...string) *process {
	t.Helper()
	p := &process{cmd: exec.CommandContext(t.Context(), os.Args[0], args...)}
	p.cmd.Env = append(os.Environ(), roleVar+"=1")
	p.cmd.Stderr = t.Output()
	out, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, p.cmd.Start())
	p.lines = bufio.NewScanner(out)
	return p
}

// says reads up to a line that has the words, and returns it.
func (p *process) says(t *testing.T, words string) string {
	t.Helper()
	for p.lines.Scan() {
		if strings.Contains(p.lines.Text(), words) {
			return p.lines.Text()
		}
	}
	require.Fail(t, "the end instead of "+words)
	return ""
}

// ends reads to the end, and returns the last line.
func (p *process) ends(t *testing.T) (last string) {
	t.Helper()
	for p.lines.Scan() {
		last = p.lines.Text()
	}
	require.NoError(t, p.lines.Err())
	return last
}

// A writer is killed, the reader keeps what it has, the next writer appends, and the address stays.
func TestSurvives(t *testing.T) {
	dev := vmmtest.Device(t)
	path := filepath.Join(t.TempDir(), "s")
	s, err := store.Listen(dev, path, store.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	common := []string{"-path", path, "-device", dev.Info().Open, "-every", "1ms"}

	reader := start(t, append(common, "-read")...)
	first := start(t, append(common, "-write")...)
	first.says(t, "appended 20")
	_, at, _ := strings.Cut(reader.says(t, "numbers at"), " at ")
	require.NoError(t, first.cmd.Process.Kill())
	first.ends(t)
	require.Error(t, first.cmd.Wait())

	second := start(t, append(common, "-write", "-count", "60")...)
	require.NotContains(t, second.says(t, "numbers are there"), ": 0 numbers")
	var number int
	_, err = fmt.Sscanf(second.ends(t), "writer %d: appended %d", new(int), &number)
	require.NoError(t, err)
	require.NoError(t, second.cmd.Wait())
	require.Greater(t, number, 59)
	reader.says(t, fmt.Sprintf("%d numbers at %s", number+1, at))
	require.NoError(t, reader.cmd.Process.Signal(os.Interrupt))
	reader.ends(t)
	require.NoError(t, reader.cmd.Wait())
}
