//go:build cgo && linux

package failcuda_test

import (
	"debug/elf"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cgo/cuda"
	"github.com/cuvmm/cuvmm/internal/testing/failcuda"
	"github.com/cuvmm/cuvmm/internal/testing/fakecuda"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

const (
	granule = 2 << 20 // of the fake driver

	operatingSystem cuda.Result = 304 // what a failing call returns
	outOfMemory     cuda.Result = 2   // or that, where it takes memory
)

func onDevice(n int) driver.Prop {
	return driver.Prop{Location: driver.Location{Kind: driver.LocationDevice, ID: n}}
}

func TestFailsWhatItIsTold(t *testing.T) {
	real := fakecuda.Build(t)
	fake := fakecuda.Open(t, real)
	fail := failcuda.New(t, failcuda.Options{Real: real, Kinds: []string{"cuMemCreate", "cuMemAddressReserve"}})
	d, err := cuda.Load(fail.Path)
	require.NoError(t, err)
	use := func() (reserve, create error) {
		p, reserve := d.Reserve(granule, 0)
		if reserve == nil {
			require.NoError(t, d.Free(p, granule))
		}
		h, create := d.Create(granule, onDevice(0))
		if create == nil {
			require.NoError(t, d.Release(h))
		}
		return reserve, create
	}
	reserve, create := use()
	require.NoError(t, reserve)
	require.NoError(t, create)
	all, failed := fail.Calls()
	require.EqualValues(t, 2, all)
	require.Zero(t, failed)

	fail.SetRate(10_000)
	made := fake.Calls("cuMemCreate")
	scarce, other := 0, 0
	for range 100 {
		reserve, create := use()
		require.Error(t, reserve)
		require.Error(t, create)
		var r cuda.Result
		require.True(t, errors.As(create, &r))
		switch r {
		case outOfMemory:
			require.ErrorIs(t, create, driver.ErrOutOfMemory)
			scarce++
		case operatingSystem:
			other++
		default:
			t.Fatal(create)
		}
	}
	require.NotZero(t, scarce)
	require.NotZero(t, other)
	require.Equal(t, made, fake.Calls("cuMemCreate"), "what fails is not made")
	_, failed = fail.Calls()
	require.EqualValues(t, 200, failed)

	fail.SetRate(1000)
	before := failed
	for range 300 {
		_, _ = use()
	}
	_, failed = fail.Calls()
	require.InDelta(t, 60, float64(failed-before), 30)

	fail.SetRate(0)
	reserve, create = use()
	require.NoError(t, reserve)
	require.NoError(t, create)
	fake.Clean()
}

// TestHasEverySymbol: without one the binding would take the driver for too old.
func TestHasEverySymbol(t *testing.T) {
	fail := failcuda.New(t, failcuda.Options{})
	file, err := elf.Open(fail.Path)
	require.NoError(t, err)
	defer file.Close()
	symbols, err := file.DynamicSymbols()
	require.NoError(t, err)
	here := map[string]bool{}
	for _, s := range symbols {
		here[s.Name] = s.Section != elf.SHN_UNDEF
	}
	text, err := os.ReadFile("../../../cgo/cuda/symbols.h")
	require.NoError(t, err)
	listed := regexp.MustCompile(`(?m)^\t(?:REQUIRED|OPTIONAL)\(\w+, "(\w+)"`).FindAllStringSubmatch(string(text), -1)
	require.NotEmpty(t, listed)
	for _, m := range listed {
		require.True(t, here[m[1]], m[1])
	}
	require.True(t, here["cuGetProcAddress_v2"])
}

// TestWithoutARealOne: the program is told on stderr, and cuInit returns an error.
func TestWithoutARealOne(t *testing.T) {
	fail := failcuda.New(t, failcuda.Options{Real: "/nowhere/libcuda.so.1"})
	_, err := cuda.Load(fail.Path)
	require.Error(t, err)
	require.ErrorContains(t, err, "cuInit")
}

// compile compiles source with the C compiler and args.
func compile(t *testing.T, source string, args ...string) (path string) {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skipf("needs a C compiler: %v", err)
	}
	file := filepath.Join(t.TempDir(), "source.c")
	require.NoError(t, os.WriteFile(file, []byte(source), 0o600))
	path = filepath.Join(t.TempDir(), "compiled")
	text, err := exec.CommandContext(t.Context(), cc, append([]string{"-o", path, file}, args...)...).CombinedOutput()
	require.NoError(t, err, string(text))
	return path
}

// run runs a program that is linked with the library.
func run(t *testing.T, program string, fail *failcuda.Library, env ...string) {
	t.Helper()
	c := exec.CommandContext(t.Context(), program)
	c.Env = append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Dir(fail.Path), "FAILCUDA_CONTROL=")
	c.Env = append(c.Env, env...)
	text, err := c.CombinedOutput()
	require.NoError(t, err, string(text))
}

// TestByTheEnvironment: a program that does not know of it sees the failures.
func TestByTheEnvironment(t *testing.T) {
	fail := failcuda.New(t, failcuda.Options{Real: fakecuda.Build(t), Seed: 1})
	run(t, compile(t, `
int cuInit(unsigned int);
int cuDeviceCanAccessPeer(int *can, int from, int to);
int main(void) {
	int can, failed = cuInit(0) != 0 ? 1000 : 0;
	for (int i = 0; i < 100; i++)
		failed += cuDeviceCanAccessPeer(&can, 0, 1) != 0;
	return failed > 30 && failed < 70 ? 0 : 1;
}
`, fail.Path), fail, "FAILCUDA_RATE=5000")
}

// TestPassesProcAddressOn: a program that takes its functions from the driver
// gets the driver's, whatever fails.
func TestPassesProcAddressOn(t *testing.T) {
	real := compile(t, `
int cuInit(unsigned int flags) { return (int)flags; }
int cuGetProcAddress_v2(const char *name, void **p, int version, unsigned long long flags, int *status) {
	*p = (void *)cuInit;
	*status = version + (int)flags + name[0];
	return 0;
}
`, "-shared", "-fPIC")
	fail := failcuda.New(t, failcuda.Options{Real: real})
	run(t, compile(t, `
int cuInit(unsigned int);
int cuGetProcAddress_v2(const char *, void **, int, unsigned long long, int *);
int main(void) {
	int (*init)(unsigned int), status;
	if (cuGetProcAddress_v2("cuInit", (void **)&init, 12000, 2, &status) != 0)
		return 1;
	return init == cuInit || init(77) != 77 || status != 12002 + 'c';
}
`, fail.Path), fail, "FAILCUDA_RATE=10000", "FAILCUDA_KINDS=cuInit")
}
