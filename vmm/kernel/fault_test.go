package kernel_test

import (
	"errors"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/growable"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
	"github.com/cuvmm/cuvmm/vmm/kernel"
)

var errInjected = errors.New("injected")

// scenario is what a program does with this package. It returns the first error, and gives
// back everything that it has made, after any error.
func scenario(dev *vmm.Device) (appended, sum uint64, err error) {
	var made []interface{ Close() error }
	add := func(x interface{ Close() error }, failed error) bool {
		if failed == nil {
			made = append(made, x)
		}
		if err == nil {
			err = failed
		}
		return err == nil
	}
	defer func() {
		for i := len(made) - 1; i >= 0; i-- {
			if made[i].Close() == nil {
				continue
			}
			if again := made[i].Close(); again != nil && err == nil { // a refused Close can be called again
				err = again
			}
		}
	}()
	m, failed := kernel.Load(dev, kernel.Code{Host: kernel.Host{"repeat": repeat}})
	if !add(m, failed) {
		return 0, 0, err
	}
	v, failed := growable.New[uint32](dev, growable.Options{MaxLen: 1 << 20})
	if !add(v, failed) {
		return 0, 0, err
	}
	s, failed := dev.NewStream()
	if !add(s, failed) {
		return 0, 0, err
	}
	c, failed := kernel.NewCursor(v)
	if !add(c, failed) {
		return 0, 0, err
	}
	b, failed := kernel.LoadBuiltins(dev)
	if !add(b, failed) {
		return 0, 0, err
	}
	f, err := m.Func("repeat")
	if err != nil {
		return 0, 0, err
	}
	const n, by = 20_000, 3
	launch := func(items uint64) error { return f.Launch(s, kernel.Over(items, 256), c, uint64(n), uint64(by)) }
	if appended, err = c.Append(s, n, launch); err != nil {
		return appended, 0, err
	}
	sum, err = kernel.SumUint[uint32](b, s, v)
	return appended, sum, err
}

// TestFaults fails each driver call that a program's use of this package makes.
func TestFaults(t *testing.T) {
	if onCUDA {
		t.Skip("of the host driver")
	}
	for n := 1; ; n++ {
		var calls atomic.Int64
		var armed atomic.Bool
		failed := ""
		drv := drivertest.Inject(hostDriver(), func(c drivertest.Call) error {
			if armed.Load() && calls.Add(1) == int64(n) {
				failed = c.Name
				return errInjected
			}
			return nil
		})
		dev, err := vmm.OpenDriver(drv, 0)
		require.NoError(t, err)
		armed.Store(true)
		appended, sum, err := scenario(dev)
		armed.Store(false)
		if err == nil { // not reached, or the call's failure does not matter
			require.EqualValues(t, 60_000, appended, "call %d, %s", n, failed)
			require.EqualValues(t, 3*19_999*20_000/2, sum, "call %d, %s", n, failed)
		} else {
			require.ErrorIs(t, err, errInjected, "call %d, %s", n, failed)
		}
		require.NoError(t, dev.Close(), "call %d, %s", n, failed)
		require.NoError(t, drv.Balanced(), "call %d, %s", n, failed)
		if failed == "" {
			t.Logf("%d calls", n-1)
			break
		}
	}
}
