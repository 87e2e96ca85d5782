//go:build cgo && linux

package cuda_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cgo/cuda"
	"github.com/cuvmm/cuvmm/internal/testing/fakecuda"
	"github.com/cuvmm/cuvmm/internal/testing/fakelib"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// sentinels are the kinds of error of package driver.
var sentinels = []error{
	driver.ErrOutOfMemory, driver.ErrAddressSpace, driver.ErrNotSupported, driver.ErrInvalid, driver.ErrPermission,
	driver.ErrClosed, driver.ErrNoDriver, driver.ErrNoDevice, driver.ErrDeviceLost, driver.ErrContextReset, driver.ErrCapturing, driver.ErrLimit, driver.ErrUnavailable,
}

// isOnly checks that err is of that kind and of no other; nil stands for no kind.
func isOnly(t *testing.T, err, kind error, what ...any) {
	t.Helper()
	require.Error(t, err, what...)
	for _, s := range sentinels {
		require.Equal(t, errors.Is(kind, s), errors.Is(err, s), "%v: is it %q? %v", err, s, what)
	}
	var call *driver.CallError
	require.ErrorAs(t, err, &call, what...)
}

func TestLoadNothing(t *testing.T) {
	for _, path := range []string{"libcuda-not-here.so.1", filepath.Join(t.TempDir(), "libcuda.so.1")} {
		_, err := cuda.Loaded(path)
		isOnly(t, err, driver.ErrNoDriver)
		require.ErrorContains(t, err, path, "what was looked for")
	}
}

// What is missing is not recognised by the loader's text, which may be in any language
// and may contain the path.
func TestLoadWithoutWords(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "No such file")
	require.NoError(t, os.Mkdir(dir, 0o700))
	path := filepath.Join(dir, "libcuda.so.1")
	_, err := cuda.Loaded(path)
	isOnly(t, err, driver.ErrNoDriver)
	require.NoError(t, os.WriteFile(path, []byte("no library"), 0o600))
	for _, locale := range []string{"", "C", "de_DE.UTF-8"} {
		t.Setenv("LC_ALL", locale)
		_, err = cuda.Loaded(path)
		isOnly(t, err, driver.ErrNotSupported, locale)
	}
}

// defaultEnv makes a child process run TestDefaultAgain.
const defaultEnv = "CUVMM_DEFAULT_CHILD"

// After an error the next call may work: the fabric manager may still be starting. The
// loader reads its path when a process starts, so the test runs in a child process.
func TestDefaultAgain(t *testing.T) {
	if path := os.Getenv(defaultEnv); path != "" {
		fake := fakecuda.Open(t, path)
		for _, c := range []struct {
			code int
			kind error
		}{{802, driver.ErrUnavailable}, {46, driver.ErrUnavailable}, {999, nil}, {100, driver.ErrNoDevice}} {
			fake.Fail("cuInit", 1, c.code)
			_, err := cuda.Default()
			isOnly(t, err, c.kind)
		}
		all := make(chan driver.Driver)
		for range 4 {
			go func() {
				d, err := cuda.Default()
				assert.NoError(t, err)
				all <- d
			}()
		}
		d := <-all
		require.NotNil(t, d)
		for range 3 {
			require.Same(t, d, <-all)
		}
		return
	}
	path := fakecuda.Build(t)
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), self, "-test.run=^TestDefaultAgain$", "-test.v", "-test.timeout=1m")
	cmd.Env = append(os.Environ(), defaultEnv+"="+path, "LD_LIBRARY_PATH="+filepath.Dir(path))
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "in a child process:\n%s", out)
	require.Contains(t, string(out), "--- PASS: TestDefaultAgain")
}

// A file that is no library is another error than no driver.
func TestLoadRubbish(t *testing.T) {
	path := filepath.Join(t.TempDir(), "libcuda.so.1")
	require.NoError(t, os.WriteFile(path, []byte("no library"), 0o600))
	_, err := cuda.Loaded(path)
	isOnly(t, err, driver.ErrNotSupported)
	require.ErrorContains(t, err, path)
}

func TestLoadFails(t *testing.T) {
	for name, c := range map[string]struct {
		change fakelib.Change
		kind   error
		result cuda.Result
	}{
		"a stub library":            {fakecuda.Init(34), driver.ErrNoDriver, 34},
		"a driver that fails":       {fakecuda.Init(999), nil, 999},
		"no devices":                {fakecuda.Init(100), driver.ErrNoDevice, 100},
		"a fabric that starts":      {fakecuda.Init(802), driver.ErrUnavailable, 802},
		"an exclusive device":       {fakecuda.Init(46), driver.ErrUnavailable, 46},
		"a process that ends":       {fakecuda.Init(4), driver.ErrClosed, 4},
		"a driver and card at odds": {fakecuda.Init(803), nil, 803},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := cuda.Loaded(fakecuda.Build(t, c.change))
			isOnly(t, err, c.kind)
			var r cuda.Result
			require.ErrorAs(t, err, &r)
			require.Equal(t, c.result, r)
			require.ErrorContains(t, err, "cuInit")
		})
	}
}

func TestLoadTooOld(t *testing.T) {
	for _, symbol := range []string{"cuMemMap", "cuCtxPushCurrent_v2", "cuInit"} {
		_, err := cuda.Loaded(fakecuda.Build(t, fakecuda.Missing(symbol)))
		isOnly(t, err, driver.ErrNotSupported)
		require.ErrorContains(t, err, symbol)
		require.ErrorContains(t, err, "too old")
	}
}

// Without an optional symbol only the call that needs it fails.
func TestLoadOld(t *testing.T) {
	d, fake := onFake(t, fakecuda.Missing("cuDeviceGetUuid_v2", "cuMemAllocAsync", "cuMemFreeAsync",
		"cuMemPoolSetAttribute", "cuStreamWaitValue32_v2", "cuStreamWriteValue64_v2", "cuDeviceGetP2PAttribute"))
	all, err := d.Devices()
	require.NoError(t, err)
	require.Equal(t, "fake-cuda-uuid-\x01", string(all[1].UUID[:]))
	require.Equal(t, "cuDeviceGetUuid dev=1", fake.Last("cuDeviceGetUuid"))
	require.True(t, all[1].Unified)
	require.Equal(t, uint64(50<<20), all[1].Cache)

	fake.Link(1, 0, fakecuda.NoPath)
	for pair, want := range map[[2]int]driver.Peering{
		{0, 1}: {Access: true, Rank: -1},
		{1, 0}: {Link: "none", Rank: -1},
		{1, 1}: {Access: true, Link: "self", Atomics: true},
	} {
		got, err := d.Peering(pair[0], pair[1])
		require.NoError(t, err)
		require.Equal(t, want, got, "%v", pair)
	}

	open, err := d.Open(0)
	require.NoError(t, err)
	v := open.(*cuda.Device)
	_, err = v.AllocAsync(1, v.CopyStream())
	isOnly(t, err, driver.ErrNotSupported)
	isOnly(t, v.FreeAsync(1, v.CopyStream()), driver.ErrNotSupported)
	isOnly(t, v.WaitValue(v.CopyStream(), 8, 1, 4), driver.ErrNotSupported)
	isOnly(t, v.WriteValue(v.CopyStream(), 8, 1, 8), driver.ErrNotSupported)
	isOnly(t, d.Supports(0, driver.FeatureStreamMemOps), driver.ErrNotSupported)
	require.NoError(t, v.Close())
}

// A failure to count the devices is CUDA's error too.
func TestLoadCount(t *testing.T) {
	path := fakecuda.Build(t)
	fake := fakecuda.Open(t, path)
	fake.Fail("cuDeviceGetCount", 1, 999)
	_, err := cuda.Loaded(path)
	isOnly(t, err, nil)
	require.ErrorContains(t, err, "cuDeviceGetCount")
}

func TestNoSuchDevice(t *testing.T) {
	d, fake := onFake(t)
	before := fake.Calls("")
	for _, n := range []int{-1, 2, 7} {
		_, err := d.Open(n)
		isOnly(t, err, driver.ErrNoDevice)
		isOnly(t, d.Supports(n, driver.FeatureVMM), driver.ErrNoDevice)
		isOnly(t, d.SyncIfActive(n), driver.ErrNoDevice)
		_, err = d.CanAccessPeer(0, n)
		isOnly(t, err, driver.ErrNoDevice)
		_, err = d.Peering(0, n)
		isOnly(t, err, driver.ErrNoDevice)
		_, err = d.Peering(n, 0)
		isOnly(t, err, driver.ErrNoDevice)
		_, err = d.Create(granule, driver.Prop{Location: onDevice(n)})
		isOnly(t, err, driver.ErrNoDevice)
		isOnly(t, d.SetAccess(1<<21, granule, []driver.Grant{{To: onDevice(n), Access: driver.AccessRead}}), driver.ErrNoDevice)
		_, err = d.Access(1<<21, onDevice(n))
		isOnly(t, err, driver.ErrNoDevice)
	}
	_, err := d.Open(7)
	require.ErrorContains(t, err, "cuda:7; there are 2")
	require.Equal(t, before, fake.Calls(""), "libcuda was asked")
}
