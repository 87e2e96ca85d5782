package wire

import (
	"math"
	"math/bits"
)

// Kinds of an element.
const (
	KindOpaque  uint32 = 0
	KindInt     uint32 = 1
	KindUint    uint32 = 2
	KindFloat   uint32 = 3
	KindComplex uint32 = 4
	KindBool    uint32 = 5
)

// Elem describes one element of an object.
type Elem struct {
	Kind uint32
	Bits uint32
	Size uint64   // bytes
	Hash [32]byte // of its layout
	// Dtype describes the fields of an opaque element; MaxDtype bytes at most. It is the last
	// string of a payload.
	Dtype string
}

// Object describes an object and its present length. As the reply to ATTACH it
// comes with the descriptors of the control page and of the connection's wake socket,
// else without any.
type Object struct {
	ID         uint64
	Max        uint64 // bytes of addresses to reserve
	Generation uint64
	Length     uint64 // bytes done
	Queued     uint64 // bytes
	Capacity   uint64 // bytes
	Base       uint64 // bytes of the first chunk in front of the object
	State      uint32
	Access     uint32
	Elem       Elem
	Shape      []uint64 // of a row, MaxDims at most
	Pitch      uint64   // bytes from row to row
	Instance   [16]byte
	Name       string
	Meta       []byte
}

// Append appends the payload to b, with the first MaxDims dimensions of Shape.
func (o Object) Append(b []byte) []byte {
	for _, v := range []uint64{o.ID, o.Max, o.Generation, o.Length, o.Queued, o.Capacity, o.Base} {
		b = append64(b, v)
	}
	b = append32(append32(b, o.State), o.Access)
	b = appendLayout(b, o.Elem, o.Shape, o.Pitch)
	b = append(b, o.Instance[:]...)
	b = appendString(b, o.Name)
	b = appendString(b, string(o.Meta))
	return appendString(b, o.Elem.Dtype)
}

// appendLayout appends an element, a row's first MaxDims dimensions, and the pitch.
func appendLayout(b []byte, e Elem, shape []uint64, pitch uint64) []byte {
	b = append32(append32(b, e.Kind), e.Bits)
	b = append64(b, e.Size)
	b = append(b, e.Hash[:]...)
	var dims [MaxDims]uint64
	b = append32(append32(b, uint32(copy(dims[:], shape))), 0)
	for _, dim := range dims {
		b = append64(b, dim)
	}
	return append64(b, pitch)
}

// DecodeObject is the reverse of Object.Append. It also checks that the size of a
// row fits in a signed number, and that it does not exceed the pitch, if there is one.
func DecodeObject(payload []byte) (Object, error) {
	d := decoder{of: TypeObject, b: payload}
	o := Object{
		ID:         d.u64("id"),
		Max:        d.u64("max"),
		Generation: d.u64("generation"),
		Length:     d.u64("length"),
		Queued:     d.u64("queued"),
		Capacity:   d.u64("capacity"),
		Base:       d.u64("base"),
		State:      d.state(),
		Access:     d.access(),
	}
	o.Elem, o.Shape, o.Pitch = d.layout()
	o.Instance = d.id("instance")
	o.Name = d.name()
	o.Meta = d.blob("metadata", MaxMeta)
	d.dtype(&o.Elem)
	if d.err == nil && o.ID == 0 {
		d.failf("object 0")
	}
	return finish(&d, o)
}

// layout is the reverse of appendLayout.
func (d *decoder) layout() (e Elem, shape []uint64, pitch uint64) {
	e = Elem{
		Kind: d.within("element kind", KindOpaque, KindBool),
		Bits: d.u32("element bits"),
		Size: d.u64("element size"),
		Hash: d.hash("layout hash"),
	}
	// The dimensions lie before the pitch in the payload, and are checked with it.
	shape, pitch = d.shape(), d.u64("pitch")
	if row, ok := rowSize(e.Size, shape); !ok || pitch > math.MaxInt64 || pitch != 0 && row > pitch {
		d.failf("rows of %v elements of %d bytes, %d bytes apart", shape, e.Size, pitch)
	}
	return e, shape, pitch
}

// dtype reads the description of an element's fields.
func (d *decoder) dtype(e *Elem) {
	e.Dtype = d.string("dtype", MaxDtype)
	if d.err == nil && e.Dtype != "" && e.Kind != KindOpaque {
		d.failf("a dtype of elements of kind %d", e.Kind)
	}
}

func (d *decoder) state() uint32  { return d.within("state", StateLive, StateClosed) }
func (d *decoder) access() uint32 { return d.within("access", AccessRead, AccessReadWrite) }

func (d *decoder) shape() []uint64 {
	n := int(d.within("number of dimensions", 0, MaxDims))
	d.zero()
	var shape []uint64
	for i := range MaxDims {
		dim := d.u64("dimension")
		switch {
		case d.err != nil:
			return nil
		case i < n && dim == 0:
			d.failf("dimension %d of %d is 0", i, n)
		case i < n:
			shape = append(shape, dim)
		case dim != 0:
			d.failf("%d as dimension %d of %d", dim, i, n)
		}
	}
	return shape
}

// rowSize is size times all of dims; false if that, or the number of elements, is more
// than a signed number holds. A size of 0 stands for bytes that are not described.
func rowSize(size uint64, dims []uint64) (uint64, bool) {
	row := max(size, 1)
	for _, dim := range dims {
		over, low := bits.Mul64(row, dim)
		if over != 0 {
			return 0, false
		}
		row = low
	}
	if size == 0 {
		return 0, row <= math.MaxInt64
	}
	return row, row <= math.MaxInt64
}
