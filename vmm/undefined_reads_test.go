package vmm_test

import (
	"errors"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/growable"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// TestUndefinedByAnyWay: whatever way bytes are read that are undefined, it says so.
func TestUndefinedByAnyWay(t *testing.T) {
	dev := vmmtest.Device(t)
	s := newStream(t, dev)
	stopped := errors.New("a member is gone")
	v, err := growable.New[int32](dev, growable.Options{MaxLen: 1 << 20})
	require.NoError(t, err)
	rows, err := growable.NewRows[int32](dev, 3, growable.RowsOptions{MaxRows: 1000, Pitch: 64})
	require.NoError(t, err)
	to, err := dev.NewRange(vmm.RangeOptions{Max: 1 << 20})
	require.NoError(t, err)
	require.NoError(t, errors.Join(v.Append(make([]int32, 100)...), rows.Append(make([]int32, 30)...), to.Append(make([]byte, 4096))))
	s.MarkUndefined(stopped, 0, vmm.Span{Addr: v.Ptr() + 4*50, Size: 4}, vmm.Span{Addr: rows.Ptr() + 64*5 + 8, Size: 4})

	iterated := func(next func(yield func(error) bool)) error {
		for err := range next {
			if err != nil {
				return err
			}
		}
		return nil
	}
	for name, read := range map[string]func() error{
		"At":     func() error { _, err := v.At(50); return err },
		"ReadAt": func() error { _, err := v.ReadAt(make([]int32, 100), 0); return err },
		"All": func() error {
			return iterated(func(y func(error) bool) { v.All()(func(_ int32, err error) bool { return y(err) }) })
		},
		"Blocks": func() error {
			return iterated(func(y func(error) bool) {
				v.Blocks(make([]int32, 7))(func(_ []int32, err error) bool { return y(err) })
			})
		},
		"Host":         func() error { _, err := v.Host(); return err },
		"WriteTo":      func() error { _, err := v.Range().WriteTo(io.Discard); return err },
		"ReadRowsAt":   func() error { _, err := rows.Range().ReadRowsAt(make([]byte, 120), 0, 12, 64); return err },
		"rows, ReadAt": func() error { _, err := rows.ReadAt(make([]int32, 30), 0); return err },
		"rows, All": func() error {
			return iterated(func(y func(error) bool) { rows.All()(func(_ []int32, err error) bool { return y(err) }) })
		},
		"Device.CopyOut": func() error { return dev.CopyOut(make([]byte, 400), v.Ptr()) },
		"Stream.CopyOut": func() error { return s.CopyOut(make([]byte, 400), v.Ptr()) },
		"Copy":           func() error { return s.Copy(to.Ptr(), v.Ptr(), 400) },
		"Copy2D": func() error {
			return s.Copy2D(vmm.PitchedPtr{Ptr: to.Ptr(), Pitch: 12}, vmm.PitchedPtr{Ptr: rows.Ptr(), Pitch: 64}, 12, 10)
		},
		"CopyPeer": func() error { return s.CopyPeer(to.Ptr(), dev, v.Ptr(), dev, 400) },
		"NewMirror": func() error {
			m, err := dev.NewMirror(v.Ptr(), 400, vmm.MirrorOptions{Init: true})
			if err == nil {
				err = m.Close()
			}
			return err
		},
		"after Sleep": func() error {
			require.NoError(t, vmm.Sleep(vmm.SleepKeep, v.Range()))
			require.NoError(t, vmm.Wake(v.Range()))
			_, err := v.ReadAt(make([]int32, 100), 0)
			return err
		},
	} {
		require.ErrorIs(t, read(), stopped, name)
	}
	_, err = v.ReadAt(make([]int32, 50), 0)
	require.NoError(t, err)
	_, err = rows.ReadAt(make([]int32, 15), 0)
	require.NoError(t, err)
	_, err = rows.ReadAt(make([]int32, 12), 6)
	require.NoError(t, err)
	require.NoError(t, errors.Join(v.Close(), rows.Close(), to.Close(), s.Close()))
}
