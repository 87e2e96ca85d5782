package kernel_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/growable"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
	"github.com/cuvmm/cuvmm/vmm/kernel"
)

// TestCursorOutsideAppend: a kernel that is launched with a cursor while no Append runs finds
// no capacity. Nothing would keep the memory that the last Append told it of.
func TestCursorOutsideAppend(t *testing.T) {
	dev := open(t)
	m, s := repeaters(t, dev), stream(t, dev)
	v := vector[uint32](t, dev)
	require.NoError(t, v.Grow(1_000_000))
	c := cursor(t, v)
	var passes []uint64
	f := function(t, m, "repeat")
	_, err := c.Append(s, 1, launches(s, f, c, 1, 1, &passes))
	require.NoError(t, err)
	require.NoError(t, v.SetLen(0))
	require.NoError(t, v.Clip())
	require.NoError(t, f.Launch(s, kernel.Over(1, 1), c, uint64(1), uint64(1)))
	require.NoError(t, s.Sync())
	got, err := c.Append(s, 1, launches(s, f, c, 1, 1, &passes))
	require.NoError(t, err)
	require.EqualValues(t, 1, got)
}

// TestAppendThatFails leaves no kernel behind that writes what comes to lie there later.
func TestAppendThatFails(t *testing.T) {
	dev := open(t)
	leave := make(chan struct{})
	m := load(t, dev, kernel.Host{"late": func(c *kernel.DeviceCursor) {
		<-leave
		kernel.AppendTo(c, make([]uint32, 10)...)
	}})
	s, v := stream(t, dev), vector[uint32](t, dev)
	require.NoError(t, v.Grow(100))
	c := cursor(t, v)
	refused := errors.New("the second kernel was refused")
	got, err := c.Append(s, 1, func(uint64) error {
		require.NoError(t, function(t, m, "late").Launch(s, kernel.Over(1, 1), c))
		go close(leave)
		return refused
	})
	require.ErrorIs(t, err, refused)
	require.Zero(t, got)
	require.NoError(t, v.Append(1, 2, 3))
	require.NoError(t, s.Sync())
	require.Equal(t, []uint32{1, 2, 3}, contents(t, v))

	require.NoError(t, vmm.Sleep(vmm.SleepKeep, v.Range()))
	got, err = c.Append(s, 1, func(uint64) error { return nil })
	require.ErrorIs(t, err, vmm.ErrAsleep)
	require.Zero(t, got)
	require.NoError(t, vmm.Wake(v.Range()))
}

// TestLyingCursors: what a kernel leaves in the words is not believed.
func TestLyingCursors(t *testing.T) {
	dev := open(t)
	v := vector[uint64](t, dev, 1)
	c, err := kernel.NewCursor(v)
	ends(t, c, err)
	s := stream(t, dev)
	for name, lie := range kernel.Lies {
		f := function(t, load(t, dev, kernel.Host{"f": lie}), "f")
		got, err := c.Append(s, 1, func(uint64) error { return f.Launch(s, kernel.Over(1, 1), c) })
		require.Error(t, err, name)
		require.Zero(t, got, name)
		require.Equal(t, []uint64{1}, contents(t, v), name)
	}
}

func TestMisuse(t *testing.T) {
	dev := open(t)
	s := stream(t, dev)
	m := load(t, dev, kernel.Host{"f": func(x []uint64) { x[len(x)-1] = 7 }})
	wide, narrow := vector[uint64](t, dev, 1), vector[byte](t, dev, 1, 2, 3)
	b, err := function(t, m, "f").Bind(kernel.Over(1, 1), wide)
	require.NoError(t, err)
	require.ErrorIs(t, b.Set(0, narrow), vmm.ErrInvalid, "elements of another size")
	_, err = kernel.Load(dev, kernel.Code{Host: kernel.Host{"f": func(uint32, kernel.Threads) {}}})
	require.ErrorIs(t, err, vmm.ErrInvalid, "Threads come first")

	var none *kernel.Cursor
	_, err = none.Append(s, 1, func(uint64) error { return nil })
	require.ErrorIs(t, err, vmm.ErrInvalid)
	_, err = none.Resume(s, func(uint64) error { return nil })
	require.ErrorIs(t, err, vmm.ErrInvalid)
	require.Zero(t, none.Unfinished())
	require.Zero(t, argOf(none))

	ops := builtins(t, dev)
	gone, err := growable.New[uint32](dev, growable.Options{MaxLen: 100})
	require.NoError(t, err)
	require.NoError(t, gone.Close())
	_, err = kernel.SumUint[uint32](ops, s, gone)
	require.ErrorIs(t, err, vmm.ErrClosed)
	require.ErrorIs(t, ops.FillPattern(s, gone, kernel.Pattern{}), vmm.ErrClosed)
}

// TestScratchLost: if all scratch memory may be in use for ever, calls fail and do not wait.
func TestScratchLost(t *testing.T) {
	if onCUDA {
		t.Skip("of the host driver")
	}
	failing := false
	drv := drivertest.Inject(host.New(host.Config{Devices: 1, Memory: 1 << 30, Granularity: 64 << 10}), func(c drivertest.Call) error {
		if failing && c.Name != "Launch" && c.Name != "Capturing" && c.Name != "Params" {
			return driver.ErrOutOfMemory
		}
		return nil
	})
	dev, err := vmm.OpenDriver(drv, 0)
	ends(t, dev, err)
	b, s, v := builtins(t, dev), stream(t, dev), vector[uint32](t, dev, 1)
	_, err = kernel.SumUint[uint32](b, s, v)
	require.NoError(t, err)
	failing = true
	for range 16 {
		_, err = kernel.SumUint[uint32](b, s, v)
		require.ErrorIs(t, err, vmm.ErrOutOfMemory)
	}
	failing = false
	_, err = kernel.SumUint[uint32](b, s, v)
	require.ErrorIs(t, err, vmm.ErrBusy)
}
