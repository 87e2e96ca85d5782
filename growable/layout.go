package growable

import (
	"crypto/sha256"
	"fmt"
	"reflect"
	"slices"
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

// LayoutOf describes elements of T or, with dims, rows of them of that shape, side by side:
// LayoutOf[float32](768) is rows of 768 float32. A Vector's Layout and that of Rows without a pitch are
// the same. Arrays become dimensions. Structs are opaque, with a hash of the names, types and offsets of
// their fields, and a Dtype that describes them. In the Dtype nested fields have names like
// "Outer.Inner", or "Outer[0].Inner" in an array. Fields named _ or without bytes are left out. The Dtype
// is empty if it would be longer than vmm.MaxDtype. If T is not plain data, LayoutOf returns ErrElement;
// for dims that no memory can have, vmm.ErrInvalid.
func LayoutOf[T any](dims ...int) (vmm.Layout, error) {
	t := reflect.TypeFor[T]()
	if err := check(t); err != nil {
		return vmm.Layout{}, fmt.Errorf("describe %v: %w", t, err)
	}
	// The size of a row is right unless it overflows, which Validate finds, too.
	pitch := uint64(t.Size())
	for _, n := range dims {
		pitch *= uint64(n)
	}
	l := layoutOf(t, pitch, dims...)
	if err := l.Validate(); err != nil {
		return vmm.Layout{}, fmt.Errorf("describe %v in rows of %v: %w", t, dims, err)
	}
	return l, nil
}

// layoutOf is the Layout of rows of t with the given pitch and shape; the zero Layout
// if t cannot be an element. Arrays become dimensions, so a Vector of [3]float32 and
// Rows of three float32 have the same Layout. Structs, and arrays of too many
// dimensions, are opaque.
func layoutOf(t reflect.Type, pitch uint64, shape ...int) vmm.Layout {
	if check(t) != nil {
		return vmm.Layout{}
	}
	elem, dims := t, slices.Clone(shape)
	for elem.Kind() == reflect.Array {
		elem, dims = elem.Elem(), append(dims, elem.Len())
	}
	if len(dims) > maxDims {
		elem, dims = t, slices.Clone(shape)
	}
	l := vmm.Layout{Kind: vmm.ElemOpaque, Bits: 8, Size: uint64(elem.Size()), Shape: dims, Pitch: pitch}
	if k, ok := kinds[elem.Kind()]; ok {
		l.Kind, l.Bits = k, 8*int(elem.Size())
	}
	if elem.Kind() == reflect.Struct {
		l.Dtype, _ = vmm.DtypeOf(l.Size, fieldsOf(nil, elem, "", 0)) // empty if it is too long
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

// maxFields is more fields than a Dtype has room for.
const maxFields = vmm.MaxDtype / 10

// fieldsOf appends the fields of t, which is at off in the element under this name: one
// for each number or array of numbers. It stops where there are too many.
func fieldsOf(fields []vmm.Field, t reflect.Type, name string, off uint64) []vmm.Field {
	elem, dims := t, []int(nil)
	for elem.Kind() == reflect.Array {
		dims, elem = append(dims, elem.Len()), elem.Elem()
	}
	switch {
	case t.Size() == 0 || len(fields) > maxFields:
	case t.Kind() == reflect.Struct:
		for f := range t.Fields() {
			if f.Name != "_" {
				fields = fieldsOf(fields, f.Type, strings.TrimPrefix(name+"."+f.Name, "."), off+uint64(f.Offset))
			}
		}
	case elem.Kind() == reflect.Struct:
		for i := 0; i < t.Len() && len(fields) <= maxFields; i++ {
			fields = fieldsOf(fields, t.Elem(), fmt.Sprintf("%s[%d]", name, i), off+uint64(i)*uint64(t.Elem().Size()))
		}
	default:
		fields = append(fields, vmm.Field{Name: name, Kind: kinds[elem.Kind()], Bits: 8 * int(elem.Size()), Shape: dims, Offset: off})
	}
	return fields
}

// Layout describes the Vector's bytes for a reader in another process; see LayoutOf.
func (v *Vector[T]) Layout() vmm.Layout { return layoutOfElements[T]() }

func layoutOfElements[T any]() vmm.Layout {
	t := reflect.TypeFor[T]()
	return layoutOf(t, uint64(t.Size()))
}

// Layout describes the rows' bytes, as Vector.Layout does; for nil Rows it is the
// zero Layout.
func (r *Rows[T]) Layout() vmm.Layout {
	if r.Width() == 0 {
		return vmm.Layout{}
	}
	return layoutOf(reflect.TypeFor[T](), uint64(r.Pitch()), r.Width())
}
