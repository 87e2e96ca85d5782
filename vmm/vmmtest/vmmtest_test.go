package vmmtest_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// recorder is a test that notes its errors, and ends when it is told to.
type recorder struct {
	testing.TB
	errs []string
	last []func()
}

func (r *recorder) Errorf(format string, args ...any) {
	for _, arg := range args {
		if err, ok := arg.(error); ok {
			r.errs = append(r.errs, err.Error())
		}
	}
}

func (r *recorder) Cleanup(f func()) { r.last = append(r.last, f) }

// end runs the cleanups and returns the errors in one line.
func (r *recorder) end() string {
	for _, f := range slices.Backward(r.last) {
		f()
	}
	return strings.Join(r.errs, "; ")
}

func TestDevicePassesWhoGivesBack(t *testing.T) {
	r := &recorder{TB: t}
	dev := vmmtest.Device(r)
	x, err := dev.NewRange(vmm.RangeOptions{Max: 64 << 20})
	require.NoError(t, err)
	require.NoError(t, x.Append([]byte("hello")))
	require.NoError(t, x.Close())
	require.Empty(t, r.end())
}

func TestDeviceFailsWhoLeavesARangeOpen(t *testing.T) {
	r := &recorder{TB: t}
	dev := vmmtest.Device(r)
	x, err := dev.NewRange(vmm.RangeOptions{Max: 64 << 20})
	require.NoError(t, err)
	report := r.end()
	require.Contains(t, report, vmm.ErrBusy.Error())
	require.Contains(t, report, "vmmtest_test.go", "it says where the range was made")
	require.NoError(t, x.Close())
	require.NoError(t, dev.Close())
}

func TestDeviceFailsWhoTakesFromTheDriver(t *testing.T) {
	r := &recorder{TB: t}
	drv := vmmtest.Device(r).Driver()
	p, err := drv.Reserve(2<<20, 0)
	require.NoError(t, err)
	require.Contains(t, r.end(), "Reserve 2097152 bytes, Free 0")
	require.NoError(t, drv.Free(p, 2<<20))
}

func TestDeviceAsksEveryHook(t *testing.T) {
	second := errors.New("the second hook's")
	var seen []string
	dev := vmmtest.Device(t,
		drivertest.FailNth("Create", 2, vmm.ErrOutOfMemory),
		func(c drivertest.Call) error {
			seen = append(seen, c.Name)
			if c.Name == "Create" {
				return second
			}
			return nil
		})
	_, err := dev.Create(2<<20, vmm.Prop{})
	require.ErrorIs(t, err, second)
	_, err = dev.Create(2<<20, vmm.Prop{})
	require.ErrorIs(t, err, vmm.ErrOutOfMemory, "the first hook counted the first call and comes first")
	require.NotErrorIs(t, err, second)
	require.Equal(t, 2, strings.Count(strings.Join(seen, " "), "Create"))
}

func TestDevicesReachEachOther(t *testing.T) {
	devs := vmmtest.Devices(t, 3)
	x, err := devs[0].NewRange(vmm.RangeOptions{Max: 64 << 20})
	require.NoError(t, err)
	defer func() { require.NoError(t, x.Close()) }()
	require.NoError(t, x.Grant(vmm.AccessReadWrite, devs[2]))
	require.NoError(t, x.Append([]byte("hello")))
	got := make([]byte, 5)
	require.NoError(t, devs[2].CopyOut(got, x.Ptr()))
	require.Equal(t, "hello", string(got))
	require.ErrorIs(t, devs[1].CopyOut(got, x.Ptr()), vmm.ErrPermission)
}

func TestDrivers(t *testing.T) {
	for _, d := range vmmtest.Drivers() {
		t.Run(d.Name, func(t *testing.T) {
			dev := d.Device(t)
			require.True(t, strings.HasPrefix(dev.String(), d.Name+":"), dev.String())
			require.NoError(t, dev.Sync())
		})
	}
}
