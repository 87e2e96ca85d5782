package kernel

import (
	"encoding/binary"
	"fmt"
	"math"
	"reflect"

	"github.com/cuvmm/cuvmm/vmm"
)

// Memory is memory that a launch passes as a pointer and a count: a vmm.Range, a
// growable.Vector or Rows or a reader of one, a shareable.View.
type Memory interface {
	// MemoryArg sets m to where the memory is now, and how many items it has.
	MemoryArg(m *vmm.MemoryArg)
}

// Read says that the kernel only reads the argument, a Memory or a vmm.Ptr. Without it the
// stream's device must be allowed to write the memory, unless that is made to be read alone,
// as a View or a Reader is.
func Read(arg any) any { return modified{arg: arg, read: true} }

// Pointer passes memory as a pointer without the count.
func Pointer(m Memory) any { return modified{arg: m, pointer: true} }

// modified is what Read and Pointer return.
type modified struct {
	arg           any
	read, pointer bool
}

// arg is an argument as a launch passes it.
type arg struct {
	text   string // for errors: its Go type
	align  uint32
	bytes  []byte        // the value, or the pointer and the count
	pieces int           // parameters at most: 2 for a pointer with a count
	memory Memory        // nil for a vmm.Ptr and for values
	also   Memory        // of a cursor: memory that the kernel uses by it
	fixed  vmm.MemoryArg // of a vmm.Ptr
	holds  bool          // it has memory, of memory or of fixed
	read   bool          // the kernel only reads it
}

// newArg checks an argument and makes its bytes.
func newArg(v any) (a arg, err error) {
	for {
		m, ok := v.(modified)
		if !ok {
			break
		}
		a.read = a.read || m.read
		if m.pointer {
			a.pieces = 1
		}
		v = m.arg
	}
	a.text = fmt.Sprintf("%T", v)
	switch x := v.(type) {
	case nil:
		return a, fmt.Errorf("%w: nil", vmm.ErrInvalid)
	case *Cursor:
		if x == nil || x.words == nil {
			return a, fmt.Errorf("%w: a nil cursor", vmm.ErrInvalid)
		}
		a.memory, a.also, a.holds, a.pieces, a.align, a.bytes = x, capacity{x.dst}, true, 1, 8, make([]byte, 8)
		return a, nil
	case vmm.Ptr:
		a.align, a.pieces, a.bytes = 8, 1, binary.NativeEndian.AppendUint64(nil, uint64(x))
		if x != 0 {
			a.holds, a.fixed = true, vmm.MemoryArg{Span: vmm.Span{Addr: x, Access: access(a.read)}}
		}
		return a, nil
	case Memory:
		if p := reflect.ValueOf(v); p.Kind() == reflect.Pointer && p.IsNil() {
			return a, fmt.Errorf("%w: a nil %T", vmm.ErrInvalid, v)
		}
		a.memory, a.holds, a.align = x, true, 8
		if a.pieces == 0 {
			a.pieces = 2
		}
		a.bytes = make([]byte, 8*a.pieces)
		return a, nil
	}
	if a.pieces != 0 || a.read {
		return a, fmt.Errorf("%w: %T is no memory", vmm.ErrInvalid, v)
	}
	val := reflect.ValueOf(v)
	if why := notPlain(val.Type()); why != "" {
		return a, fmt.Errorf("%w: %s", vmm.ErrInvalid, why)
	}
	a.pieces, a.align, a.bytes = 1, alignInC(val.Type()), bytesOf(val)
	return a, nil
}

// alignInC is what an argument's offset is a multiple of. A complex number is CUDA's float2 or
// double2, which are aligned to their size, unlike Go's.
func alignInC(t reflect.Type) uint32 {
	switch t.Kind() {
	case reflect.Complex64, reflect.Complex128:
		return uint32(t.Size()) //nolint:gosec // 8 or 16
	case reflect.Array:
		return alignInC(t.Elem())
	case reflect.Struct:
		most := uint32(1)
		for i := range t.NumField() {
			most = max(most, alignInC(t.Field(i).Type))
		}
		return most
	}
	return uint32(t.Align()) //nolint:gosec // at most 8
}

// sizeInC is a type's size with complex numbers aligned as in CUDA.
func sizeInC(t reflect.Type) uintptr {
	switch t.Kind() {
	case reflect.Array:
		return uintptr(t.Len()) * sizeInC(t.Elem())
	case reflect.Struct:
		n := uintptr(0)
		for i := range t.NumField() {
			f := t.Field(i).Type
			n = roundUp(n, alignInC(f)) + sizeInC(f)
		}
		return roundUp(n, alignInC(t))
	}
	return t.Size()
}

func roundUp(n uintptr, align uint32) uintptr {
	a := uintptr(align)
	return (n + a - 1) / a * a
}

func access(read bool) vmm.Access {
	if read {
		return vmm.AccessRead
	}
	return vmm.AccessReadWrite
}

// notPlain says why values of a type are no argument; "" if they are.
func notPlain(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Bool, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Float32, reflect.Float64,
		reflect.Complex64, reflect.Complex128:
		return ""
	case reflect.Int, reflect.Uint, reflect.Uintptr:
		if t.Kind() == reflect.Uintptr {
			return "uintptr: an address is a vmm.Ptr"
		}
		return fmt.Sprintf("%v has no fixed size: convert it to int32 or int64", t)
	case reflect.Array:
		if t.Size() == 0 {
			return fmt.Sprintf("%v has no bytes", t)
		}
		if n := sizeInC(t.Elem()); t.Len() > 1 && n != t.Elem().Size() {
			return fmt.Sprintf("%v has %d bytes, and in C %d: fill the gap with a field", t.Elem(), t.Elem().Size(), n)
		}
		return notPlain(t.Elem())
	case reflect.Struct:
		if t.Size() == 0 {
			return fmt.Sprintf("%v has no bytes", t)
		}
		at := uintptr(0) // in C
		for i := range t.NumField() {
			f := t.Field(i)
			if why := notPlain(f.Type); why != "" {
				return fmt.Sprintf("field %s of %v: %s", f.Name, t, why)
			}
			if at = roundUp(at, alignInC(f.Type)); f.Offset != at {
				return fmt.Sprintf("field %s of %v is at %d bytes, and in C at %d: fill the gap with a field", f.Name, t, f.Offset, at)
			}
			at += sizeInC(f.Type)
		}
		return ""
	}
	return fmt.Sprintf("%v is no plain data", t)
}

// layOut says where in Args the pieces of all arguments lie, and how long Args is. With
// params nil they lie as in a C struct. strides are those of Func.
func layOut(args []arg, params []vmm.Param, strides []uint64) (offs [][2]uint32, size uint32, err error) {
	offs = make([][2]uint32, len(args))
	next := 0 // of params
	for i, a := range args {
		// Without knowledge of the parameters a count lies behind its pointer, which is
		// right for two parameters and for one struct.
		if params == nil {
			aligned := func(n uint32) uint32 { return (n + a.align - 1) &^ (a.align - 1) }
			off := aligned(size)
			offs[i] = [2]uint32{off, off + 8}
			size = aligned(off + uint32(len(a.bytes))) //nolint:gosec // checked below
			continue
		}
		left := params[next:]
		want := uint32(len(a.bytes)) //nolint:gosec // a type's size
		switch {
		case len(left) == 0:
			return nil, 0, fmt.Errorf("%w: %d arguments, of which %d fill all %d parameters", vmm.ErrInvalid, len(args), i, len(params))
		case left[0].Size == want:
			offs[i] = [2]uint32{left[0].Offset, left[0].Offset + 8}
			next++
		case a.pieces == 2 && left[0].Size == 8 && len(left) > 1 && left[1].Size == 8:
			offs[i] = [2]uint32{left[0].Offset, left[1].Offset}
			// What counts bytes is no slice of elements.
			if has := argOf(a.memory).Stride; strides != nil && strides[next] != 0 && has != 0 && has != strides[next] {
				return nil, 0, fmt.Errorf("argument %d: %w: %s has items of %d bytes, and the slice %d", i+1, vmm.ErrInvalid, a.text, has, strides[next])
			}
			next += 2
		case a.pieces == 2 && left[0].Size == 8:
			return nil, 0, fmt.Errorf("argument %d: %w: %s is a pointer and a 64-bit count, and the kernel has no such parameter after the pointer: see Pointer", i+1, vmm.ErrInvalid, a.text)
		default:
			return nil, 0, fmt.Errorf("argument %d: %w: %s has %d bytes for a parameter of %d", i+1, vmm.ErrInvalid, a.text, want, left[0].Size)
		}
		last := params[next-1]
		size = max(size, last.Offset+last.Size)
	}
	if params != nil && next < len(params) {
		return nil, 0, fmt.Errorf("%w: %d arguments fill %d of %d parameters", vmm.ErrInvalid, len(args), next, len(params))
	}
	if size > maxArgs {
		return nil, 0, fmt.Errorf("%w: %d bytes of arguments, more than %d", vmm.ErrInvalid, size, maxArgs)
	}
	return offs, size, nil
}

// maxArgs is what CUDA takes on recent devices; on others the driver refuses more than 4 KiB.
const maxArgs = 32764

// Config is how many threads a launch has, and how.
type Config struct {
	Grid        vmm.Dim // blocks
	Block       vmm.Dim // threads in a block
	Shared      uint32  // bytes of dynamic shared memory of a block; beyond 48 KiB see Func.SetMaxDynamicShared
	Cluster     vmm.Dim // blocks in a cluster; zero: no clusters
	Cooperative bool    // all blocks run at once, so that they can wait for each other
	Priority    int32   // lower is more urgent; 0: the stream's, so 0 itself cannot be asked for

	nothing bool
}

// Over is a launch of at least n threads, in blocks of the given size. A launch over
// nothing queues nothing, and looks at neither the stream nor the memory.
func Over[N int | int32 | int64 | uint32 | uint64](n N, block uint32) Config {
	b := uint64(max(block, 1))
	c := Config{Block: vmm.Dim{X: block}}
	if n <= 0 {
		c.nothing = true
		return c
	}
	// A grid that is too large stays too large for the driver.
	c.Grid.X = uint32(min((uint64(n)-1)/b+1, math.MaxUint32))
	return c
}
