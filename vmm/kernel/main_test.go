package kernel_test

import (
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/cuvmm/cuvmm/growable"
	"github.com/cuvmm/cuvmm/internal/testgate"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
	"github.com/cuvmm/cuvmm/vmm/kernel"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// onCUDA says whether these tests run on the machine's GPU, as VMM_TEST_DRIVER says,
// instead of on host drivers of their own.
var onCUDA = os.Getenv("VMM_TEST_DRIVER") == "cuda"

// open is a device whose Close the test's end checks.
func open(t testing.TB) *vmm.Device {
	t.Helper()
	var dev *vmm.Device
	var err error
	if onCUDA {
		dev, err = vmm.Open("cuda:0")
		testgate.Require(t, "cuda", err)
	} else {
		dev, err = vmm.OpenDriver(host.New(host.Config{Devices: 1, Memory: 1 << 30, Granularity: 64 << 10}), 0)
	}
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, dev.Close()) })
	return dev
}

// ends closes x at the end of the test.
func ends[T interface{ Close() error }](t testing.TB, x T, err error) T {
	t.Helper()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, x.Close()) })
	return x
}

func stream(t testing.TB, dev *vmm.Device) *vmm.Stream {
	t.Helper()
	s, err := dev.NewStream()
	return ends(t, s, err)
}

// vector is a vector with those elements.
func vector[T any](t testing.TB, dev *vmm.Device, elements ...T) *growable.Vector[T] {
	t.Helper()
	v, err := growable.New[T](dev, growable.Options{MaxLen: 1 << 26}) // many of them fit into the addresses
	ends(t, v, err)
	require.NoError(t, v.Append(elements...))
	return v
}

// load loads Go functions; on a GPU it skips the test.
func load(t testing.TB, dev *vmm.Device, h kernel.Host) *kernel.Module {
	t.Helper()
	if onCUDA {
		t.Skip("Go functions are for host memory")
	}
	m, err := kernel.Load(dev, kernel.Code{Host: h})
	return ends(t, m, err)
}

func function(t testing.TB, m *kernel.Module, name string) *kernel.Func {
	t.Helper()
	f, err := m.Func(name)
	require.NoError(t, err)
	return f
}

// contents is what the vector has.
func contents[T any](t testing.TB, v *growable.Vector[T]) []T {
	t.Helper()
	got := make([]T, v.Len())
	n, err := v.ReadAt(got, 0)
	require.NoError(t, err)
	require.Len(t, got, n)
	return got
}

// argOf is memory as an argument of a kernel.
func argOf(m kernel.Memory) (a vmm.MemoryArg) {
	m.MemoryArg(&a)
	return a
}

// childEnv names the test that a child process runs.
const childEnv = "CUVMM_TEST_CHILD"

// inChild says whether the test, which loses its device, was run in a process of its own: on
// a GPU, which does not come back.
func inChild(t *testing.T) bool {
	t.Helper()
	if !onCUDA || os.Getenv(childEnv) == t.Name() {
		return false
	}
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), self, "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=2m")
	cmd.Env = append(os.Environ(), childEnv+"="+t.Name())
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "--- PASS: "+t.Name())
	t.Logf("in a process of its own: %s", out)
	return true
}
