package kernel_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/cuvmm/cuvmm/growable"
	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
	"github.com/cuvmm/cuvmm/vmm/kernel"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// onCUDA reports whether these tests run on the machine's GPU, as VMM_TEST_DRIVER says,
// instead of on host drivers of their own.
var onCUDA = os.Getenv("VMM_TEST_DRIVER") == "cuda"

// hostDriver is a driver of one device, whose chunks are small.
func hostDriver() *host.Driver {
	return host.New(host.Config{Devices: 1, Memory: 1 << 30, Granularity: 64 << 10})
}

// open is a device whose Close the test's end checks.
func open(t testing.TB) *vmm.Device {
	t.Helper()
	return ends(t, openToLose(t), nil)
}

// openToLose is a device that the test loses, so that nothing closes it.
func openToLose(t testing.TB) *vmm.Device {
	t.Helper()
	if !onCUDA {
		dev, err := vmm.OpenDriver(hostDriver(), 0)
		require.NoError(t, err)
		return dev
	}
	dev, err := vmm.Open("cuda:0")
	testgate.Require(t, "cuda", err)
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
