//go:build cgo && linux

package nvrtc_test

import (
	"errors"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cgo/nvrtc"
	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// NVIDIA's compiler does as the fake one. It needs no GPU.
func TestRealCompiler(t *testing.T) {
	c, err := nvrtc.Open("")
	if err != nil && !errors.Is(err, driver.ErrNotSupported) {
		require.NoError(t, err)
	}
	testgate.Require(t, "nvrtc", err)
	major, minor := c.Version()
	t.Logf("NVRTC %d.%d", major, minor)
	const text = `#include "scale.cuh"
template <typename T> __global__ void scale(T *p) { p[threadIdx.x] *= BY; }
__global__ void twice(float *p) { p[threadIdx.x] *= BY; }
`
	o, _ := keptIn(t)
	o.Headers = map[string]string{"scale.cuh": "#define BY 2\n"}
	o.Expressions = []string{"scale<float>", "twice"}
	device := c.ArchFor("sm_90")

	// The headers that were given come before files of the same name.
	t.Chdir(t.TempDir())
	require.NoError(t, os.WriteFile("scale.cuh", []byte("#error the file\n"), 0o600))
	for arch, kind := range map[string]nvrtc.Kind{device: nvrtc.KindCubin, c.ArchFor("compute_90"): nvrtc.KindPTX} {
		o.Arch = arch
		for _, cached := range []bool{false, true} {
			r, err := c.Compile(text, o)
			require.NoError(t, err)
			require.NoError(t, r.CacheErr)
			require.Equal(t, cached, r.Cached)
			require.Equal(t, kind, r.Kind)
			require.Equal(t, map[string]string{"scale<float>": "_Z5scaleIfEvPT_", "twice": "_Z5twicePf"}, r.Names)
			require.Contains(t, string(r.Image), "_Z5scaleIfEvPT_")
			if kind == nvrtc.KindPTX {
				require.Contains(t, string(r.Image), ".version ")
				require.NotContains(t, string(r.Image), "\x00")
			} else {
				require.Equal(t, "\x7fELF", string(r.Image[:4]))
			}
		}
	}

	for text, want := range map[string]string{
		"__global__ void f() {\n\n  oops;\n}\n": `compile kernel.cu: kernel.cu(3): error: identifier "oops" is undefined`,
		"#include \"none.cuh\"\n":               "compile kernel.cu: kernel.cu(1): catastrophic error:",
	} {
		_, err := c.Compile(text, nvrtc.Options{Arch: device, NoCache: true})
		isOnly(t, err, driver.ErrInvalid)
		require.ErrorContains(t, err, want)
	}
	const plain = "__global__ void f() {}\n"
	for name, o := range map[string]nvrtc.Options{
		"an unknown flag":       {Flags: []string{"--no-such-flag"}},
		"an unknown expression": {Expressions: []string{"skale<int>"}},
		"two architectures":     {Flags: []string{"--gpu-architecture=sm_20"}},
	} {
		o.Arch, o.NoCache = device, true
		_, err := c.Compile(plain, o)
		isOnly(t, err, driver.ErrInvalid, name)
		t.Log(name, "is", err)
	}
	_, err = c.Compile(plain, nvrtc.Options{Arch: "sm_20"})
	isOnly(t, err, driver.ErrNotSupported)
}
