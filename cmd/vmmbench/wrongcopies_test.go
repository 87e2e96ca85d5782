package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cmd/internal/size"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// wrongDevice copies, and then does harm to the target.
type wrongDevice struct {
	driver.Device
	harm func(d driver.Device, dst driver.Ptr, n uint64) error // nil: it copies nothing at all
}

func (w wrongDevice) Copy(dst, src driver.Ptr, n uint64, s driver.Stream) error {
	if w.harm == nil {
		return nil
	}
	if err := w.Device.Copy(dst, src, n, s); err != nil {
		return err
	}
	if err := w.SyncStream(s); err != nil {
		return err
	}
	return w.harm(w.Device, dst, n)
}

// exchange swaps n bytes at two offsets.
func exchange(a, b, n uint64) func(driver.Device, driver.Ptr, uint64) error {
	return func(d driver.Device, dst driver.Ptr, size uint64) error {
		if size < max(a, b)+n {
			return nil
		}
		x, y := make([]byte, n), make([]byte, n)
		for _, err := range []error{
			d.CopyOut(x, dst+driver.Ptr(a)), d.CopyOut(y, dst+driver.Ptr(b)),
			d.CopyIn(dst+driver.Ptr(a), y), d.CopyIn(dst+driver.Ptr(b), x),
		} {
			if err != nil {
				return err
			}
		}
		return nil
	}
}

// Whatever goes wrong with a copy is found, at its exact place.
func TestWrongCopiesAreFound(t *testing.T) { byHostAndDevice(t, wrongCopiesAreFound) }

func wrongCopiesAreFound(t *testing.T, set *settings) {
	t.Parallel()
	const mib = 1 << 20
	for _, c := range []struct {
		what  string
		harm  func(driver.Device, driver.Ptr, uint64) error
		at    uint64
		holds uint64 // the offset whose word stands there
	}{
		{"nothing is copied", nil, 0, 0},
		{"two blocks of 4 KiB are swapped", exchange(5<<10, 3*mib+4<<10, 4<<10), 5 << 10, 3*mib + 4<<10},
		{"two chunks are swapped", exchange(2*mib, 6*mib, 2*mib), 2 * mib, 6 * mib},
		{"the last byte is wrong", func(d driver.Device, dst driver.Ptr, n uint64) error {
			return d.CopyIn(dst+driver.Ptr(n-1), []byte{0x5a})
		}, 8*mib - 1, 0},
	} {
		dev := hookedDevice(t, nil)
		dev.settings, dev.raw = set, &wrongDevice{dev.raw, c.harm}
		copies := newBWPlan()
		copies.directions.values, copies.mems.values = []string{d2d}, []string{memVMM}
		copies.sizes, copies.chunks = size.List{8 * mib}, size.List{2 * mib}
		s := newRunner()
		s.run(t.Context(), t, dev, copies)
		require.Equal(t, report.ExitMismatch, s.report.Exit(), c.what)
		bad := s.report.Cases[0].Verify.FirstBad
		require.Equal(t, c.at, bad.Offset, c.what)
		require.Equal(t, int(c.at/(2*mib)), bad.Chunk, c.what)
		if c.holds > 0 {
			require.Equal(t, c.holds, *bad.Holds, c.what)
		}
		require.Contains(t, string(s.report.Cases[0].Reason), "offset ", c.what)
	}
}
