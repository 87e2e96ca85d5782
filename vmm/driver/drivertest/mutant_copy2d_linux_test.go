package drivertest_test

import (
	"bytes"
	"errors"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// copy2DMutants are the mutants for copies of rows.
func copy2DMutants(device func(rule string, wrap func(full) driver.Device) mutant) map[string]mutant {
	waits := device("copy2d-order", func(f full) driver.Device { return &waitsForRows{f} })
	waits.hangs = true
	return map[string]mutant{
		"a pitch is below the row":        device("pitch", func(f full) driver.Device { return &halfPitch{f} }),
		"what is between rows is written": device("copy2d-round-trip", func(f full) driver.Device { return &writesPadding{f} }),
		"rows are copied as one":          device("copy2d-device", func(f full) driver.Device { return &copiesFlat{f} }),
		"rows may overlap":                device("copy2d-bounds", func(f full) driver.Device { return &takesOverlaps{f} }),
		"a captured copy of rows runs":    device("copy2d-capture", func(f full) driver.Device { return &runsCaptured{f} }),
		"copying rows waits":              waits,
	}
}

type halfPitch struct{ full }

func (d *halfPitch) Pitch(rowBytes uint64) (uint64, error) {
	n, err := d.full.Pitch(rowBytes)
	return n / 2, err
}

type writesPadding struct{ full }

func (d *writesPadding) CopyIn2D(dst driver.PitchedPtr, src []byte, width uint64) error {
	if n, ok := dst.Extent(width, uint64(len(src))/max(width, 1)); ok {
		if err := d.CopyIn(dst.Ptr, bytes.Repeat([]byte{0}, int(n))); err != nil {
			return err
		}
	}
	return d.full.CopyIn2D(dst, src, width)
}

type copiesFlat struct{ full }

func (d *copiesFlat) Copy2D(dst, src driver.PitchedPtr, width, rows uint64, s driver.Stream) error {
	return d.Copy(dst.Ptr, src.Ptr, width*rows, s)
}

type takesOverlaps struct{ full }

func (d *takesOverlaps) CopyOut2D(dst []byte, src driver.PitchedPtr, width uint64) error {
	return pass(d.full.CopyOut2D(dst, src, width), driver.ErrInvalid)
}

type runsCaptured struct{ full }

func (d *runsCaptured) Copy2D(dst, src driver.PitchedPtr, width, rows uint64, _ driver.Stream) error {
	return d.full.Copy2D(dst, src, width, rows, d.CopyStream())
}

type waitsForRows struct{ full }

func (d *waitsForRows) Copy2D(dst, src driver.PitchedPtr, width, rows uint64, s driver.Stream) error {
	return errors.Join(d.full.Copy2D(dst, src, width, rows, s), d.SyncStream(s))
}
