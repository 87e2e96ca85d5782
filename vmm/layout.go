package vmm

import (
	"encoding/hex"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strconv"
	"strings"
)

// ElemKind is what an element is.
type ElemKind uint8

// Kinds of element, with the type codes that DLPack has for them.
const (
	ElemOpaque  ElemKind = iota // bytes whose meaning is the program's; DLPack 3
	ElemInt                     // signed; DLPack 0
	ElemUint                    // DLPack 1
	ElemFloat                   // IEEE 754; DLPack 2
	ElemComplex                 // two floats, of half the bits each; DLPack 5
	ElemBool                    // a byte, 0 or 1; DLPack 6
	elemKinds
)

var elemNames = [elemKinds]string{"opaque", "int", "uint", "float", "complex", "bool"}

func (k ElemKind) String() string {
	if k < elemKinds {
		return elemNames[k]
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// elemBits are the sizes that elements of a kind come in.
var elemBits = [elemKinds][]int{
	ElemOpaque: {8}, ElemInt: {8, 16, 32, 64}, ElemUint: {8, 16, 32, 64}, ElemFloat: {16, 32, 64}, ElemComplex: {64, 128}, ElemBool: {8},
}

// maxDims is how many dimensions a row has at most.
const maxDims = 4

// Layout describes a span of memory: rows of one shape, side by side. Both ends of shared memory must
// agree on it.
type Layout struct {
	Kind  ElemKind
	Bits  int    // of one number; 8 where Kind is Opaque
	Size  uint64 // bytes of one element: Bits/8, but any where Kind is Opaque
	Shape []int  // of one row, 4 dimensions at most; empty: a row is one element
	Pitch uint64 // bytes from row to row; no less than a row has
	// Hash tells types apart that are alike in all of this, structs above all:
	// package growable has the SHA-256 of a description there. 0 is none.
	Hash [32]byte
	// Dtype describes the fields of elements that are structs: the JSON of what NumPy's
	// dtype takes, with names, formats, offsets and itemsize. Up to MaxDtype bytes; empty:
	// they are not described. Fields reads it.
	Dtype string
}

// Equal reports whether both are the same, their hashes included.
func (l Layout) Equal(m Layout) bool { return l.difference(m) == "" }

// Check is nil if l equals want, else ErrInvalid with the first difference and both
// its values: "a pitch of 4096 bytes, not 3072".
func (l Layout) Check(want Layout) error {
	what := l.difference(want)
	switch {
	case what == "":
		return nil
	case l.Equal(Layout{}):
		return fmt.Errorf("%w: there is no layout, and %v is wanted", ErrInvalid, want)
	}
	return fmt.Errorf("%w: a layout of %v, not %v: %s", ErrInvalid, l, want, what)
}

// difference is the first thing in which l is not want; empty if there is none.
func (l Layout) difference(want Layout) string {
	switch {
	case l.Kind != want.Kind:
		return fmt.Sprintf("elements of kind %v, not %v", l.Kind, want.Kind)
	case l.Bits != want.Bits:
		return fmt.Sprintf("numbers of %d bits, not %d", l.Bits, want.Bits)
	case l.Size != want.Size:
		return fmt.Sprintf("elements of %d bytes, not %d", l.Size, want.Size)
	case !slices.Equal(l.Shape, want.Shape):
		return fmt.Sprintf("a shape of %v, not %v", l.Shape, want.Shape)
	case l.Pitch != want.Pitch:
		return fmt.Sprintf("a pitch of %d bytes, not %d", l.Pitch, want.Pitch)
	case l.Dtype != want.Dtype:
		return l.dtypeDifference(want)
	case l.Hash != want.Hash:
		return fmt.Sprintf("a hash of %s, not %s", hashText(l.Hash), hashText(want.Hash))
	}
	return ""
}

// hashText is the whole hash: no shorter text tells every two apart.
func hashText(hash [32]byte) string {
	if hash == [32]byte{} {
		return "none"
	}
	return hex.EncodeToString(hash[:])
}

// Validate is nil if memory can be laid out like this, else ErrInvalid.
func (l Layout) Validate() error {
	if l.Kind >= elemKinds || !slices.Contains(elemBits[l.Kind], l.Bits) {
		return fmt.Errorf("%w: elements of kind %v and %d bits", ErrInvalid, l.Kind, l.Bits)
	}
	if l.Size == 0 || l.Kind != ElemOpaque && l.Size != uint64(l.Bits/8) {
		return fmt.Errorf("%w: %d bytes for a %v of %d bits", ErrInvalid, l.Size, l.Kind, l.Bits)
	}
	if len(l.Shape) > maxDims {
		return fmt.Errorf("%w: rows of %d dimensions, of at most %d", ErrInvalid, len(l.Shape), maxDims)
	}
	if _, err := l.Fields(); err != nil {
		return err
	}
	// Row by row with a check for overflow: shapes come from other processes, too.
	row := l.Size
	for _, n := range l.Shape {
		if n < 1 {
			return fmt.Errorf("%w: a dimension of %d", ErrInvalid, n)
		}
		over, bytes := bits.Mul64(row, uint64(n))
		if over != 0 {
			return fmt.Errorf("%w: rows of %v elements of %d bytes", ErrInvalid, l.Shape, l.Size)
		}
		row = bytes
	}
	if l.Pitch < row || l.Pitch > math.MaxInt64 {
		return fmt.Errorf("%w: rows of %d bytes, %d apart", ErrInvalid, row, l.Pitch)
	}
	return nil
}

// row is how many bytes of a row are data. The layout is valid.
func (l Layout) row() uint64 {
	n := l.Size
	for _, d := range l.Shape {
		n *= uint64(d)
	}
	return n
}

// String is "float32", "rows of 3x4 float32, 64 bytes apart", or, with the start
// of the hash, "opaque of 24 bytes (1f9a6c02)".
func (l Layout) String() string {
	if err := l.Validate(); err != nil {
		return err.Error()
	}
	var b strings.Builder
	if len(l.Shape) > 0 || l.Pitch != l.row() {
		b.WriteString("rows of ")
	}
	for i, n := range l.Shape {
		if i > 0 {
			b.WriteByte('x')
		}
		b.WriteString(strconv.Itoa(n))
	}
	if len(l.Shape) > 0 {
		b.WriteByte(' ')
	}
	// The size of a number is a part of its name, but for bytes and bools.
	b.WriteString(l.Kind.String())
	switch l.Kind {
	case ElemOpaque:
		fmt.Fprintf(&b, " of %d bytes", l.Size)
		if l.Hash != [32]byte{} {
			b.WriteString(" (" + hex.EncodeToString(l.Hash[:4]) + ")")
		}
	case ElemBool:
	default:
		b.WriteString(strconv.Itoa(l.Bits))
	}
	if l.Pitch != l.row() {
		fmt.Fprintf(&b, ", %d bytes apart", l.Pitch)
	}
	return b.String()
}

// Strides are those of all rows as one array, in elements: the one from row to row first. Opaque elements, and a
// pitch that is no whole number of elements, are ErrNotSupported.
func (l Layout) Strides() ([]int64, error) {
	if err := l.Validate(); err != nil {
		return nil, err
	}
	if l.Kind == ElemOpaque || l.Pitch%l.Size != 0 {
		return nil, fmt.Errorf("%w: strides of %v", ErrNotSupported, l)
	}
	steps, step := make([]int64, 1+len(l.Shape)), int64(1)
	for i := len(l.Shape); i > 0; i-- {
		steps[i] = step
		step *= int64(l.Shape[i-1])
	}
	steps[0] = int64(l.Pitch / l.Size)
	return steps, nil
}
