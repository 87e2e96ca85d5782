package growable

import (
	"crypto/sha256"
	"fmt"
	"reflect"
	"strings"

	"github.com/cuvmm/cuvmm/vmm"
)

// maxDims is how many dimensions a row has at most; see vmm.Layout.
const maxDims = 4

var kinds = map[reflect.Kind]vmm.ElemKind{
	reflect.Bool: vmm.ElemBool,
	reflect.Int8: vmm.ElemInt, reflect.Int16: vmm.ElemInt, reflect.Int32: vmm.ElemInt, reflect.Int64: vmm.ElemInt,
	reflect.Uint8: vmm.ElemUint, reflect.Uint16: vmm.ElemUint, reflect.Uint32: vmm.ElemUint, reflect.Uint64: vmm.ElemUint,
	reflect.Float32: vmm.ElemFloat, reflect.Float64: vmm.ElemFloat,
	reflect.Complex64: vmm.ElemComplex, reflect.Complex128: vmm.ElemComplex,
}

// layoutOf is the Layout of rows of t with the given shape; the zero Layout if t
// cannot be an element. Arrays become dimensions, so a Vector of [3]float32 and
// Rows of three float32 have the same Layout. Structs, and arrays of too many
// dimensions, are opaque.
func layoutOf(t reflect.Type, pitch uint64, shape ...int) vmm.Layout {
	if check(t) != nil {
		return vmm.Layout{}
	}
	elem, dims := t, shape
	for elem.Kind() == reflect.Array {
		elem, dims = elem.Elem(), append(dims, elem.Len())
	}
	if len(dims) > maxDims {
		elem, dims = t, shape
	}
	l := vmm.Layout{Kind: vmm.ElemOpaque, Bits: 8, Size: uint64(elem.Size()), Shape: dims, Pitch: pitch}
	if k, ok := kinds[elem.Kind()]; ok {
		l.Kind, l.Bits = k, 8*int(elem.Size())
	}
	// The hash is that of a text, so that a program in another language can compute
	// it too. It begins with the version of the text.
	var b strings.Builder
	b.WriteString("layout 1: ")
	describe(&b, elem)
	l.Hash = sha256.Sum256([]byte(b.String()))
	return l
}

// describe writes the structure of a type, with the sizes of structs and the names
// and offsets of fields: "struct 16 {X 0 float32; N 8 [2]int32}". It leaves out the
// names of types, so that two programs need not share a package.
func describe(b *strings.Builder, t reflect.Type) {
	switch t.Kind() {
	case reflect.Array:
		fmt.Fprintf(b, "[%d]", t.Len())
		describe(b, t.Elem())
	case reflect.Struct:
		fmt.Fprintf(b, "struct %d {", t.Size())
		for i := range t.NumField() {
			if i > 0 {
				b.WriteString("; ")
			}
			f := t.Field(i)
			fmt.Fprintf(b, "%s %d ", f.Name, f.Offset)
			describe(b, f.Type)
		}
		b.WriteByte('}')
	default:
		b.WriteString(t.Kind().String())
	}
}

// Layout describes the Vector's bytes, as a reader in another process must know
// them. Arrays become dimensions. Structs are opaque, with a hash of the names,
// types and offsets of their fields.
func (v *Vector[T]) Layout() vmm.Layout {
	t := reflect.TypeFor[T]()
	return layoutOf(t, uint64(t.Size()))
}

// Tensor describes the elements below Len in DLPack's terms.
func (v *Vector[T]) Tensor() (vmm.Tensor, error) { return v.base().tensor(v.Layout()) }

// Layout describes the rows' bytes, as Vector.Layout does; for nil Rows it is the
// zero Layout.
func (r *Rows[T]) Layout() vmm.Layout {
	if r == nil {
		return vmm.Layout{}
	}
	return layoutOf(reflect.TypeFor[T](), r.c.stride, r.width)
}

// Tensor describes the rows below Len in DLPack's terms. If the pitch is no multiple
// of the element's size, it returns vmm.ErrNotSupported.
func (r *Rows[T]) Tensor() (vmm.Tensor, error) { return r.base().tensor(r.Layout()) }

func (c counted) tensor(l vmm.Layout) (vmm.Tensor, error) {
	return l.Tensor(c.r.Device(), c.r.Ptr(), uint64(c.length())*c.stride)
}
