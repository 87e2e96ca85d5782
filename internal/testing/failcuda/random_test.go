//go:build cgo && linux

package failcuda_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cgo/cuda"
	"github.com/cuvmm/cuvmm/internal/testing/failcuda"
	"github.com/cuvmm/cuvmm/internal/testing/fakecuda"
	"github.com/cuvmm/cuvmm/internal/testing/randomops"
	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// TestRandomFailuresOnFake and TestRandomFailuresOnGPU: while driver calls fail
// at random, no bytes, lengths or addresses change, and when they work again
// everything can be freed. VMM_FAIL_SECONDS is how long each rate runs, VMM_FAIL_SEED
// the seed of the random numbers.
func TestRandomFailuresOnFake(t *testing.T) {
	for _, rate := range []uint32{0, 100, 1000} {
		t.Run(fmt.Sprintf("rate=%d", rate), func(t *testing.T) {
			real := fakecuda.Build(t)
			fake := fakecuda.Open(t, real)
			fake.Configure(3, 4<<30)
			randomFailures(t, real, rate)
			fake.Clean()
		})
	}
}

func TestRandomFailuresOnGPU(t *testing.T) {
	d, err := vmm.Open("cuda:0")
	testgate.Require(t, "cuda", err)
	require.NoError(t, d.Close())
	for _, rate := range []uint32{0, 100, 1000} {
		t.Run(fmt.Sprintf("rate=%d", rate), func(t *testing.T) { randomFailures(t, "", rate) })
	}
}

// number is an environment variable's value.
func number(t *testing.T, name string, otherwise uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 0, 64)
	require.NoError(t, err, name)
	return n
}

// length is how long each rate runs.
func length(t *testing.T) time.Duration {
	t.Helper()
	if n := number(t, "VMM_FAIL_SECONDS", 0); n > 0 {
		return time.Duration(n) * time.Second
	}
	return testgate.Effort(100*time.Millisecond, 2*time.Second, 30*time.Second)
}

// forgetful is a driver whose devices skip a copy now and then.
type forgetful struct{ driver.Driver }

func (d *forgetful) Open(n int) (driver.Device, error) {
	v, err := d.Driver.Open(n)
	if err != nil {
		return nil, err
	}
	return &forgetfulDevice{Device: v, HostAllocator: v.(driver.HostAllocator)}, nil
}

type forgetfulDevice struct {
	driver.Device
	driver.HostAllocator
	copies atomic.Uint64
}

func (v *forgetfulDevice) CopyIn(dst driver.Ptr, src []byte) error {
	if v.copies.Add(1)%100 == 0 {
		return nil
	}
	return v.Device.CopyIn(dst, src)
}

// TestWrongBytesAreFound: the owners notice a skipped copy.
func TestWrongBytesAreFound(t *testing.T) {
	real := fakecuda.Build(t)
	fake := fakecuda.Open(t, real)
	fake.Configure(3, 4<<30)
	drv, err := cuda.Load(real)
	require.NoError(t, err)
	wrong, _ := randomops.Run(t, randomops.Options{Driver: &forgetful{drv}, Devices: []int{0, 1}, Granule: granule, Seed: 1, For: 10 * time.Second}, 0)
	require.Contains(t, wrong, "others from")
	fake.Clean()
}

func randomFailures(t *testing.T, real string, rate uint32) {
	seed := number(t, "VMM_FAIL_SEED", rand.Uint64())
	t.Logf("VMM_FAIL_SEED=%d", seed)
	fail := failcuda.New(t, failcuda.Options{Real: real, Seed: seed})
	drv, err := cuda.Load(fail.Path)
	require.NoError(t, err)
	all, err := drv.Devices()
	require.NoError(t, err)
	o := randomops.Options{
		Driver: drv, Devices: []int{0}, Granule: granule, Seed: seed,
		For: length(t),
	}
	if len(all) > 1 {
		o.Devices = []int{0, 1}
		o.Guests = []int{len(all) - 1}
	}
	if rate > 0 {
		o.Injected = func(err error) bool {
			var code cuda.Result
			return errors.As(err, &code) && code == operatingSystem
		}
		o.Fail = func(on bool) { fail.SetRate(map[bool]uint32{true: rate}[on]) }
	}
	slack := uint64(0)
	if real == "" {
		slack = 64 << 20 // the card's driver keeps some for itself
	}
	wrong, n := randomops.Run(t, o, slack)
	require.Empty(t, wrong)
	calls, failed := fail.Calls()
	t.Logf("%d operations, %d of %d driver calls failed", n, failed, calls)
	require.Equal(t, rate > 0, failed > 0)
}
