package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/kernel"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// roleVar has this binary be the program, for a process of its own.
const roleVar = "STORE_EXAMPLE"

func TestMain(m *testing.M) {
	if os.Getenv(roleVar) != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// device is what the test runs on: a GPU with VMM_TEST_DRIVER=cuda, else host memory.
func device(t *testing.T) string {
	t.Helper()
	if os.Getenv("VMM_TEST_DRIVER") != "cuda" {
		return vmmtest.Device(t).Info().Open
	}
	dev := vmmtest.Drivers()[1].Device(t)
	m, err := kernel.Load(dev, code)
	if errors.Is(err, vmm.ErrNotSupported) {
		testgate.Require(t, "nvrtc", err)
	}
	require.NoError(t, err)
	require.NoError(t, m.Close())
	return dev.Info().Open
}

// program runs the program in a process of its own, until it ends.
func program(t *testing.T, args ...string) string {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), self, args...)
	cmd.Env = append(os.Environ(), roleVar+"=1")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return string(out)
}

// firstLine is a writer that tells of the first line.
type firstLine struct {
	bytes.Buffer
	there chan struct{}
}

func (w *firstLine) Write(p []byte) (int, error) {
	n, err := w.Buffer.Write(p)
	close(w.there)
	return n, err
}

func TestRun(t *testing.T) {
	dev := device(t)
	path := filepath.Join(t.TempDir(), "s")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	line := &firstLine{there: make(chan struct{})}
	go func() { ended <- run(ctx, line, options{serve: true, path: path, device: dev}) }()
	select {
	case <-line.there:
	case err := <-ended:
		t.Fatal(err)
	}
	require.Equal(t, "serving at "+path+"\n", line.String())

	wrote := program(t, "-device", dev, "-path", path, "-write")
	rest, id, ok := strings.Cut(strings.TrimSpace(wrote), "id ")
	require.True(t, ok, wrote)
	require.Equal(t, "get before the seal: true\nsealed 8388608 bytes\n", rest)
	var sum uint64
	for i := range 8 << 20 {
		sum += uint64(pattern(i))
	}
	require.Equal(t, fmt.Sprintf(`8388608 bytes, on a device: true, writable: false
the sum by a kernel is %d
a mirror that is not initialised is refused: true
a mirror that writes back is refused: true
0 bytes are wrong
get after the delete: true
`, sum), program(t, "-device", dev, "-path", path, "-read", id))

	stop()
	require.NoError(t, <-ended)
}

func TestUsage(t *testing.T) {
	require.Error(t, run(t.Context(), &bytes.Buffer{}, options{device: "host", path: filepath.Join(t.TempDir(), "s")}))
}
