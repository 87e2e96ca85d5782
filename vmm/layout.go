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

// Tensor is memory as DLPack describes it, for a program that hands it to another
// library. It owns nothing: the memory has to outlive what is made of it.
type Tensor struct {
	Device  string // the driver's name: "cuda" is DLPack's device type 2, "host" its 1
	Ordinal int    // of the device
	Ptr     Ptr
	Kind    ElemKind // ElemKind has DLPack's type codes
	Bits    int      // of one element; one lane
	Shape   []int64  // rows first
	Strides []int64  // in elements
}

// Tensor describes the rows in the given number of bytes from p on, memory that d can use. Opaque
// elements become bytes; the last dimension counts those of one element. It returns ErrInvalid if bytes
// is not whole rows, and ErrNotSupported if the pitch is no whole number of elements, because strides
// cannot say that.
func (l Layout) Tensor(d *Device, p Ptr, bytes uint64) (_ Tensor, err error) {
	defer func() { err = d.wrap("describe as tensor", p, bytes, err) }()
	if d == nil {
		return Tensor{}, fmt.Errorf("%w: no device", ErrInvalid)
	}
	if err := l.Validate(); err != nil {
		return Tensor{}, err
	}
	if p+Ptr(bytes) < p {
		return Tensor{}, fmt.Errorf("%w: the addresses overflow", ErrBounds)
	}
	if bytes%l.Pitch != 0 || bytes > math.MaxInt64 {
		return Tensor{}, fmt.Errorf("%w: they are no whole rows of %d bytes", ErrInvalid, l.Pitch)
	}
	dims, unit := make([]int64, 0, maxDims+2), l.Size
	dims = append(dims, int64(bytes/l.Pitch))
	for _, n := range l.Shape {
		dims = append(dims, int64(n))
	}
	if l.Kind == ElemOpaque {
		dims, unit = append(dims, int64(l.Size)), 1
	}
	if l.Pitch%unit != 0 {
		return Tensor{}, fmt.Errorf("%w: rows %d bytes apart, which is no whole number of %d-byte elements", ErrNotSupported, l.Pitch, unit)
	}
	// Strides from the last dimension up, in elements; the first one is the pitch.
	steps := make([]int64, len(dims))
	steps[0] = int64(l.Pitch / unit)
	step := int64(1)
	for i := len(dims) - 1; i > 0; i-- {
		steps[i] = step
		step *= dims[i]
	}
	return Tensor{d.drv.Name(), d.info.Ordinal, p, l.Kind, l.Bits, dims, steps}, nil
}
