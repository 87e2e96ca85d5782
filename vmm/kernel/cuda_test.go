package kernel_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cgo/nvrtc"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/kernel"
)

// gpu is a device of CUDA; without one the test is skipped.
func gpu(t *testing.T) *vmm.Device {
	t.Helper()
	if !onCUDA {
		t.Skip("VMM_TEST_DRIVER=cuda runs this on a GPU")
	}
	return open(t)
}

// ptx is a module of one kernel that does nothing.
func ptx(version, target string) []byte {
	return []byte(".version " + version + "\n.target " + target + "\n.address_size 64\n.visible .entry f()\n{\n\tret;\n}\n")
}

// TestImages: what cannot run here says why.
func TestImages(t *testing.T) {
	dev := gpu(t)
	for _, c := range []struct {
		name  string
		image []byte
		want  error
	}{
		{"fine", ptx("6.3", "sm_75"), nil},
		{"a newer architecture", ptx("9.0", "sm_121"), vmm.ErrNotSupported},
		{"a newer PTX", ptx("99.0", "sm_75"), vmm.ErrNotSupported},
		{"no PTX", []byte("hello"), vmm.ErrInvalid},
		{"a mistake", []byte(strings.Replace(string(ptx("6.3", "sm_75")), "ret", "rot", 1)), vmm.ErrInvalid},
		{"empty", nil, vmm.ErrInvalid},
	} {
		m, err := kernel.Load(dev, kernel.Code{Image: c.image})
		require.ErrorIs(t, err, c.want, c.name)
		if err != nil {
			t.Logf("%s: %v", c.name, err)
			continue
		}
		_, err = m.Func("g")
		require.ErrorIs(t, err, vmm.ErrInvalid)
		t.Log(err)
		require.NoError(t, m.Close())
	}
	_, err := kernel.Load(dev, kernel.Code{CUDA: "extern \"C\" __global__ void f() {\n\tnothing;\n}"})
	require.ErrorIs(t, err, vmm.ErrInvalid)
	require.ErrorContains(t, err, "kernel.cu(2): error")
}

const launchedCUDA = `
template <class T> __global__ void scale(T *x, unsigned long long n, T by)
{
	unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
	if (i < n)
		x[i] *= by;
}
struct span { float *p; unsigned long long n; };
struct pair { char kind; double weight; };
extern "C" __global__ void both(span s, pair w, float *q, unsigned long long m, short k)
{
	extern __shared__ float part[];
	part[threadIdx.x] = 0;
	unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
	if (i < s.n && i < m)
		s.p[i] = q[i] * w.weight + w.kind + k + part[threadIdx.x];
}
`

// TestLaunchOnCUDA: arguments of each kind, templates, shared memory, attributes.
func TestLaunchOnCUDA(t *testing.T) {
	dev := gpu(t)
	s := stream(t, dev)
	m, err := kernel.Load(dev, kernel.Code{CUDA: launchedCUDA, Compile: nvrtc.Options{Expressions: []string{"scale<double>", "scale<int>"}}})
	ends(t, m, err)
	x, y := vector[float32](t, dev, 0, 0, 0), vector[float32](t, dev, 1, 2, 3)
	both := function(t, m, "both")
	type pair struct {
		Kind   int8
		Weight float64
	}
	c := kernel.Over(3, 64)
	c.Shared = 64 * 4
	require.NoError(t, both.Launch(s, c, x, pair{10, 2}, kernel.Read(y), int16(100)))
	require.NoError(t, s.Sync())
	require.Equal(t, []float32{112, 114, 116}, contents(t, x))
	require.ErrorIs(t, both.Launch(s, c, x, float64(2), y, int16(100)), vmm.ErrInvalid)
	c.Shared = 100 << 10
	require.ErrorIs(t, both.Launch(s, c, x, pair{10, 2}, y, int16(100)), vmm.ErrInvalid)
	require.NoError(t, both.SetMaxDynamicShared(100<<10))
	require.NoError(t, both.Launch(s, c, x, pair{20, 2}, y, int16(100)))
	require.NoError(t, s.Sync())
	require.Equal(t, []float32{122, 124, 126}, contents(t, x))

	d := vector[float64](t, dev, 1.5, 2)
	scale := function(t, m, "scale<double>")
	for _, c := range []kernel.Config{
		{Grid: vmm.Dim{X: 2}, Block: vmm.Dim{X: 32}, Cluster: vmm.Dim{X: 2}},
		{Grid: vmm.Dim{X: 2}, Block: vmm.Dim{X: 32}, Cooperative: true},
		{Grid: vmm.Dim{X: 2}, Block: vmm.Dim{X: 32}, Priority: -1},
	} {
		require.NoError(t, scale.Launch(s, c, d, float64(2)), "%+v", c)
	}
	require.ErrorIs(t, scale.Launch(s, kernel.Config{Grid: vmm.Dim{X: 1 << 20}, Block: vmm.Dim{X: 32}, Cooperative: true}, d, float64(2)), vmm.ErrInvalid)
	require.ErrorIs(t, scale.Launch(s, kernel.Config{Grid: vmm.Dim{X: 3}, Block: vmm.Dim{X: 32}, Cluster: vmm.Dim{X: 2}}, d, float64(2)), vmm.ErrInvalid)
	require.NoError(t, s.Sync())
	require.Equal(t, []float64{12, 16}, contents(t, d))
	_, err = m.Func("scale<float>")
	require.ErrorIs(t, err, vmm.ErrInvalid, "it was not asked for")

	// Compiled once, kept on disk.
	start := time.Now()
	again, err := kernel.Load(dev, kernel.Code{CUDA: launchedCUDA, Compile: nvrtc.Options{Expressions: []string{"scale<double>", "scale<int>"}}})
	ends(t, again, err)
	t.Logf("a second load took %v", time.Since(start))
	start = time.Now()
	builtins(t, dev)
	t.Logf("loading the built-in kernels took %v", time.Since(start))
}
