package driver

import (
	"fmt"
	"math/bits"
)

// Copier2D is a Device that copies rows which lie a pitch apart, and leaves alone what
// is between them. Sizes and pitches are bytes.
//
// Every copy needs rows whose width is at most the pitch, and whose end is at an
// address; else it returns ErrInvalid. All memory from the first row to the end of the
// last must be such that Copy could copy it, what lies between the rows included. A
// copy of no rows, or of rows of no bytes, works anywhere.
type Copier2D interface {
	// Pitch is what the device prefers as the number of bytes from one row to the next,
	// for rows of rowBytes: at least that, and what cuMemAllocPitch chooses for plain
	// memory. 0, and rows whose pitch exceeds 2^63-1, are ErrInvalid.
	Pitch(rowBytes uint64) (uint64, error)
	// CopyIn2D is CopyIn of the rows in src, which has one behind the other: whole rows
	// of that width.
	CopyIn2D(dst PitchedPtr, src []byte, width uint64) error
	// CopyOut2D is CopyIn2D the other way.
	CopyOut2D(dst []byte, src PitchedPtr, width uint64) error
	// Copy2D queues a copy of that many rows of width bytes on s. Either side is device,
	// peer or pinned host memory, as for Copy.
	Copy2D(dst, src PitchedPtr, width, rows uint64, s Stream) error
}

// PitchedPtr is where rows are: the first at Ptr, and each other one Pitch bytes behind
// the one before.
type PitchedPtr struct {
	Ptr   Ptr
	Pitch uint64
}

func (p PitchedPtr) String() string { return fmt.Sprintf("%v, pitch %d", p.Ptr, p.Pitch) }

// Extent is how many bytes there are from the first row to the end of the last, and
// false if such rows overlap, or if their end is at no address. Without rows, and for
// rows of no bytes, it is 0.
func (p PitchedPtr) Extent(width, rows uint64) (uint64, bool) {
	if width == 0 || rows == 0 {
		return 0, true
	}
	over, before := bits.Mul64(rows-1, p.Pitch)
	n, carry := bits.Add64(before, width, 0)
	_, past := bits.Add64(uint64(p.Ptr), n, 0)
	return n, over == 0 && carry == 0 && past == 0 && width <= p.Pitch
}
