package dlpack

import (
	"fmt"

	"github.com/cuvmm/cuvmm/vmm"
)

// DType is the type of an element: DLPack's type code in the high byte, and the bits of an element in the
// low byte. There is one lane. The zero DType is none.
type DType uint16

// Types of element.
const (
	Int8       DType = 0<<8 | 8
	Int16      DType = 0<<8 | 16
	Int32      DType = 0<<8 | 32
	Int64      DType = 0<<8 | 64
	Uint8      DType = 1<<8 | 8
	Uint16     DType = 1<<8 | 16
	Uint32     DType = 1<<8 | 32
	Uint64     DType = 1<<8 | 64
	Float16    DType = 2<<8 | 16
	Float32    DType = 2<<8 | 32
	Float64    DType = 2<<8 | 64
	BFloat16   DType = 4<<8 | 16
	Complex64  DType = 5<<8 | 64
	Complex128 DType = 5<<8 | 128
	Bool       DType = 6<<8 | 8 // a byte, 0 or 1
)

var dtypeNames = map[DType]string{
	Int8: "int8", Int16: "int16", Int32: "int32", Int64: "int64",
	Uint8: "uint8", Uint16: "uint16", Uint32: "uint32", Uint64: "uint64",
	Float16: "float16", Float32: "float32", Float64: "float64", BFloat16: "bfloat16",
	Complex64: "complex64", Complex128: "complex128", Bool: "bool",
}

// kindOf has the types with the kinds that a vmm.Layout has.
var kindOf = map[vmm.ElemKind]DType{
	vmm.ElemInt: Int8, vmm.ElemUint: Uint8, vmm.ElemFloat: Float16, vmm.ElemComplex: Complex64, vmm.ElemBool: Bool,
}

// String is "float32".
func (t DType) String() string {
	if s, ok := dtypeNames[t]; ok {
		return s
	}
	return fmt.Sprintf("dtype(code %d, %d bits)", t.code(), t.bits())
}

func (t DType) code() uint8 { return uint8(t >> 8) }

func (t DType) bits() uint8 { return uint8(t) }

// size is the bytes of an element.
func (t DType) size() uint64 { return uint64(t.bits()) / 8 }

// align is the alignment of an element.
func (t DType) align() uint64 {
	if t.code() == Complex64.code() {
		return t.size() / 2
	}
	return t.size()
}

// check returns ErrNotSupported for an unknown type.
func (t DType) check() error {
	if _, ok := dtypeNames[t]; !ok {
		return fmt.Errorf("%w: elements of %v", vmm.ErrNotSupported, t)
	}
	return nil
}

// dtypeOf is the type of elements that a Layout describes. Those of kind opaque have none.
func dtypeOf(l vmm.Layout) (DType, error) {
	of, ok := kindOf[l.Kind]
	if !ok {
		return 0, fmt.Errorf("%w: elements of %v", vmm.ErrNotSupported, l)
	}
	return of&^0xff | DType(l.Bits), nil
}
