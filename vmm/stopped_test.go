package vmm_test

import (
	"errors"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/growable"
	"github.com/cuvmm/cuvmm/internal/inside"
	"github.com/cuvmm/cuvmm/vmm"
)

// TestStoppedWork: whatever waits for a stream whose work was stopped returns why, until the stop ends.
func TestStoppedWork(t *testing.T) {
	w := newWorld(t, 2)
	d := w.devs[0]
	s, other := stream(t, d), stream(t, d)
	v, err := growable.New[int32](d, growable.Options{MaxLen: 1 << 20})
	require.NoError(t, err)
	rows, err := growable.NewRows[int32](d, 3, growable.RowsOptions{MaxRows: 1000, Pitch: 64})
	require.NoError(t, err)
	apart, elsewhere := ranged(t, w, page), newRange(t, w.devs[1], vmm.RangeOptions{Max: page})
	require.NoError(t, apart.UsedBy(other))
	require.NoError(t, errors.Join(v.Append(make([]int32, 100)...), rows.Append(make([]int32, 30)...), elsewhere.Append([]byte{1})))

	stops := errors.New("a member is gone")
	iterated := func(next func(yield func(error) bool)) error {
		for err := range next {
			if err != nil {
				return err
			}
		}
		return nil
	}
	waits := map[string]func() error{
		"Sync":   s.Sync,
		"Done":   func() error { _, err := s.Done(); return err },
		"At":     func() error { _, err := v.At(50); return err },
		"ReadAt": func() error { _, err := v.ReadAt(make([]int32, 100), 0); return err },
		"All": func() error {
			return iterated(func(y func(error) bool) { v.All()(func(_ int32, err error) bool { return y(err) }) })
		},
		"CopyOut":      func() error { return s.CopyOut(make([]byte, 4), v.Ptr()) },
		"WriteTo":      func() error { _, err := v.Range().WriteTo(io.Discard); return err },
		"ReadRowsAt":   func() error { _, err := rows.Range().ReadRowsAt(make([]byte, 120), 0, 12, 64); return err },
		"rows, ReadAt": func() error { _, err := rows.ReadAt(make([]int32, 30), 0); return err },
		"NewMirror": func() error {
			m, err := d.NewMirror(v.Ptr(), 400, vmm.MirrorOptions{Init: true})
			if err == nil {
				err = m.Close()
			}
			return err
		},
	}
	end := inside.VMM.StopWork(s, stops)
	second := inside.VMM.StopWork(s, errors.New("so is another"))
	for name, wait := range waits {
		require.ErrorIs(t, wait(), stops, name)
	}
	require.NoError(t, other.Sync(), "it had nothing stopped")
	_, err = apart.ReadAt(make([]byte, 0), 0)
	require.NoError(t, err, "it waits for another stream")
	_, err = elsewhere.ReadAt(make([]byte, 1), 0)
	require.NoError(t, err, "it waits for another device")
	require.NoError(t, v.Append(1), "it reads nothing")
	require.NoError(t, v.SetLen(100))
	end()
	end()
	require.ErrorContains(t, s.Sync(), "so is another")
	second()
	for name, wait := range waits {
		require.NoError(t, wait(), name)
	}
	inside.VMM.StopWork(nil, stops)()
	inside.VMM.StopWork(s, nil)()
	require.NoError(t, errors.Join(s.Close(), other.Close(), v.Close(), rows.Close(), apart.Close(), elsewhere.Close()))
	w.end()
}

// TestStopThatEndsDuringAWait: a wait that began before it returns its error all the same, and the next
// does not.
func TestStopThatEndsDuringAWait(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	s, g := stream(t, d), ranged(t, w, page)
	require.NoError(t, g.SetLen(1))
	stops := errors.New("a member is gone")
	for name, wait := range map[string]func() error{
		"Sync":   s.Sync,
		"ReadAt": func() error { _, err := g.ReadAt(make([]byte, 1), 0); return err },
	} {
		for range 100 { // of the many that have ended some are forgotten
			inside.VMM.StopWork(s, errors.New("long ago"))()
		}
		for begins, before := range map[string]bool{"before the stop": false, "in it": true} {
			open := gate(t, d, s.Raw())
			end := func() {}
			if before {
				end = inside.VMM.StopWork(s, stops)
			}
			waited := parked(wait)
			if !before {
				end = inside.VMM.StopWork(s, stops)
			}
			end()
			open()
			require.ErrorIs(t, waited(), stops, "%s %s", name, begins)
			require.NoError(t, wait(), name)
		}
	}
	require.NoError(t, errors.Join(s.Close(), g.Close()))
	w.end()
}
