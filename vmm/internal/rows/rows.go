// Package rows says where bytes lie that are not one behind the other. It knows no lock
// and calls no driver.
package rows

import (
	"github.com/cuvmm/cuvmm/internal/prefix"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// Rows is where bytes lie in memory: Width of them at a time, Pitch bytes apart.
type Rows struct {
	Ptr          driver.Ptr
	Width, Pitch uint64
}

// Flat is bytes one behind the other.
func Flat(p driver.Ptr) Rows { return Rows{p, 1, 1} }

// At is rows of that width at p.
func At(p driver.PitchedPtr, width uint64) Rows { return Rows{p.Ptr, width, p.Pitch} }

// Pitched is where the rows are, as a driver wants it.
func (r Rows) Pitched() driver.PitchedPtr { return driver.PitchedPtr{Ptr: r.Ptr, Pitch: r.Pitch} }

// IsFlat reports whether the bytes lie one behind the other.
func (r Rows) IsFlat() bool { return r.Width == r.Pitch }

// First is the first n bytes: those of one row are flat.
func (r Rows) First(n uint64) Rows {
	if n <= r.Width || r.IsFlat() {
		return Flat(r.Ptr)
	}
	return r
}

// From is the rows without their first n bytes, which are whole rows.
func (r Rows) From(n uint64) Rows {
	if r.IsFlat() {
		r.Ptr += driver.Ptr(n)
	} else {
		r.Ptr += driver.Ptr(n / r.Width * r.Pitch)
	}
	return r
}

// OfWidth is flat memory as rows of that width, and rows as they are.
func (r Rows) OfWidth(width uint64) Rows {
	if r.IsFlat() {
		r.Width, r.Pitch = width, width
	}
	return r
}

// Whole is n less what is no whole row, but at least one row.
func (r Rows) Whole(n uint64) uint64 {
	if r.IsFlat() {
		return n
	}
	return max(n-n%r.Width, r.Width)
}

// Each calls f for each row of n bytes, up to the first error.
func (r Rows) Each(n uint64, f func(off uint64, p driver.Ptr) error) error {
	for off := uint64(0); off < n; off += r.Width {
		if err := f(off, r.From(off).Ptr); err != nil {
			return err
		}
	}
	return nil
}

// Below is how many of n bytes of rows, the first at off, lie below have, and io.EOF if
// not all do. off is not negative.
func Below(n int, off int64, have, width, pitch uint64) (int, error) {
	if pitch == width && width == 1 {
		return prefix.Part(n, off, have)
	}
	left := have - min(have, uint64(off))
	return prefix.Part(n, 0, left/pitch*width)
}
