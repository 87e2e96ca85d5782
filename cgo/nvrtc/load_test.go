//go:build cgo && linux

package nvrtc_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cgo/nvrtc"
	"github.com/cuvmm/cuvmm/internal/testing/fakenvrtc"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

func TestOpenNothing(t *testing.T) {
	for _, path := range []string{"libnvrtc-not-here.so.13", filepath.Join(t.TempDir(), "libnvrtc.so.13")} {
		_, err := nvrtc.Open(path)
		isOnly(t, err, driver.ErrNotSupported)
		require.ErrorContains(t, err, path, "what was looked for")
	}
}

func TestOpenRubbish(t *testing.T) {
	path := filepath.Join(t.TempDir(), "libnvrtc.so.13")
	require.NoError(t, os.WriteFile(path, []byte("no library"), 0o600))
	_, err := nvrtc.Open(path)
	isOnly(t, err, driver.ErrNotSupported)
	require.ErrorContains(t, err, path)
}

func TestOpenTooOld(t *testing.T) {
	for _, symbol := range []string{"nvrtcGetCUBIN", "nvrtcGetCUBINSize", "nvrtcGetNumSupportedArchs", "nvrtcVersion"} {
		_, err := nvrtc.Open(fakenvrtc.Build(t, fakenvrtc.Missing(symbol)))
		isOnly(t, err, driver.ErrNotSupported)
		require.ErrorContains(t, err, "too old: it has no "+symbol)
	}
}

func TestOpenFaults(t *testing.T) {
	path := fakenvrtc.Build(t)
	fake := fakenvrtc.Open(t, path)
	for _, symbol := range []string{"nvrtcVersion", "nvrtcGetNumSupportedArchs", "nvrtcGetSupportedArchs"} {
		fake.Fail(symbol, 1, 11)
		_, err := nvrtc.Open(path)
		isOnly(t, err, nil)
		require.ErrorContains(t, err, symbol)
		var status nvrtc.Status
		require.ErrorAs(t, err, &status)
		require.Equal(t, nvrtc.Status(11), status)
		_, err = nvrtc.Open(path)
		require.NoError(t, err, "the next call tries again")
	}
}

func TestVersion(t *testing.T) {
	c, _ := onFake(t, fakenvrtc.Version(13, 1)...)
	major, minor := c.Version()
	require.Equal(t, [2]int{13, 1}, [2]int{major, minor})
}

func TestArchFor(t *testing.T) {
	c, _ := onFake(t) // knows 75, 80 and 90
	for device, want := range map[string]string{
		"sm_90": "sm_90", "sm_80": "sm_80", "sm_75": "sm_75", "sm_90a": "sm_90a", "compute_80": "compute_80",
		"sm_86": "compute_80", "sm_100": "compute_90", "sm_121": "compute_90", "sm_100a": "compute_90", "sm_89": "compute_80",
		"sm_70": "sm_70", "sm_": "sm_", "": "", "gfx90a": "gfx90a",
	} {
		require.Equal(t, want, c.ArchFor(device), device)
	}
	r, err := c.Compile(source, nvrtc.Options{Arch: c.ArchFor("sm_120"), NoCache: true})
	require.NoError(t, err)
	require.Equal(t, nvrtc.KindPTX, r.Kind)
}

// childEnv makes a child process do a test's work.
const childEnv = "CUVMM_NVRTC_CHILD"

// inChild runs this test in a process whose loader finds the library at path. The
// loader reads its path when a process starts.
func inChild(t *testing.T, cmd *exec.Cmd, path string) {
	t.Helper()
	cmd.Args = append(cmd.Args, "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=1m")
	cmd.Env = append(os.Environ(), childEnv+"="+path, "LD_LIBRARY_PATH="+filepath.Dir(path))
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "in a child process:\n%s", out)
	require.Contains(t, string(out), "--- PASS: "+t.Name())
}

// The library is found by NVIDIA's name for it.
func TestExample(t *testing.T) {
	if os.Getenv(childEnv) != "" {
		t.Setenv("XDG_CACHE_HOME", t.TempDir())
		out := filepath.Join(t.TempDir(), "out")
		f, err := os.Create(out)
		require.NoError(t, err)
		stdout := os.Stdout
		os.Stdout = f
		Example()
		os.Stdout = stdout
		require.NoError(t, f.Close())
		text, err := os.ReadFile(out)
		require.NoError(t, err)
		require.Equal(t, "cubin _Z12scale_float_\n", string(text))
		return
	}
	self, err := os.Executable()
	require.NoError(t, err)
	inChild(t, exec.CommandContext(t.Context(), self), fakenvrtc.Build(t))
}
