package main

import (
	"context"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
)

// childEnv has this program run instead of the tests.
const childEnv = "CUVMM_EXAMPLE_IMPORT"

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		main()
		return
	}
	self = func(ctx context.Context, args ...string) (*exec.Cmd, error) {
		name, err := os.Executable()
		cmd := exec.CommandContext(ctx, name, args...)
		cmd.Env = append(os.Environ(), childEnv+"=1")
		return cmd, err
	}
	os.Exit(m.Run())
}

func TestRun(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("needs the host driver, which is for Linux")
	}
	var out strings.Builder
	require.NoError(t, run(&out))
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	require.True(t, strings.HasPrefix(lines[0], "memory of "), out.String())
	wantPeer := "on a peer: there is no second device"
	if strings.HasPrefix(lines[5], "on a peer: ") && !strings.HasSuffix(lines[5], "device") {
		require.Regexp(t, `^on a peer: \w+:1 wrote memory of \w+:0, whose sum is 7168$`, lines[5])
		wantPeer = lines[5]
	}
	require.Equal(t, []string{
		lines[0],
		"in stream order: the same memory again: true",
		"across streams: freed by the third",
		"at once: freed after a synchronisation",
		"plain memory: given up in stream order",
		wantPeer,
		"in a graph: a replayed Fill leaves a sum of 7168",
		"in a graph: a replayed Fill leaves a sum of 7168",
		"in a graph: Alloc during the capture is refused: true",
		"phases: created once: true; trimmed: true; left: 0 bytes",
		"phases: with a threshold of 0 a synchronisation leaves 0 bytes",
		"reuse by follow events: the same memory: true, waits inserted: 0",
		"reuse by opportunistic: the same memory: true, waits inserted: 0",
		"reuse by internal dependencies: the same memory: true, waits inserted: 1",
		"reuse by none, after a synchronisation: the same memory: true, waits inserted: 0",
		"two processes: the other one reads a sum of 523776",
	}, lines)
}

// The importer says why it cannot use what it gets.
func TestImportOfSomethingElse(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("needs the host driver, which is for Linux")
	}
	f, err := os.Open(os.DevNull)
	require.NoError(t, err)
	err = importBlock("host", f, strings.NewReader("{}"), io.Discard)
	require.ErrorIs(t, err, vmm.ErrInvalid)
}
