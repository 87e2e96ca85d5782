package kernel

import (
	"encoding/binary"
	"fmt"
	"reflect"

	"github.com/cuvmm/cuvmm/vmm"
)

// Threads is the size of a launch, for a function of a Host. Nothing in it is 0.
type Threads struct{ Grid, Block vmm.Dim }

// whole is d with its zeros as they count.
func whole(d vmm.Dim) vmm.Dim { return vmm.Dim{X: max(d.X, 1), Y: max(d.Y, 1), Z: max(d.Z, 1)} }

// Count is the number of threads.
func (t Threads) Count() uint64 { return t.Grid.Size() * t.Block.Size() }

// kernels is the functions as the host driver takes them, and of each parameter that points
// to a slice the bytes of an element.
func (h Host) kernels() (all map[string]vmm.HostKernel, strides map[string][]uint64, err error) {
	all, strides = make(map[string]vmm.HostKernel, len(h)), make(map[string][]uint64, len(h))
	for name, f := range h {
		if all[name], strides[name], err = hostKernel(reflect.ValueOf(f)); err != nil {
			return nil, nil, fmt.Errorf("the Go function for %q: %w", name, err)
		}
	}
	return all, strides, nil
}

var (
	threadsType = reflect.TypeFor[Threads]()
	ptrType     = reflect.TypeFor[vmm.Ptr]()
	errorType   = reflect.TypeFor[error]()
)

// hostKernel makes a kernel of a Go function.
func hostKernel(f reflect.Value) (k vmm.HostKernel, strides []uint64, err error) {
	if f.Kind() != reflect.Func || f.IsNil() {
		return k, nil, fmt.Errorf("%w: it is no function", vmm.ErrInvalid)
	}
	t := f.Type()
	switch {
	case t.IsVariadic():
		return k, nil, fmt.Errorf("%w: it is variadic", vmm.ErrInvalid)
	case t.NumOut() > 1 || t.NumOut() == 1 && t.Out(0) != errorType:
		return k, nil, fmt.Errorf("%w: it returns more than an error", vmm.ErrInvalid)
	}
	var p hostParams
	for i := range t.NumIn() {
		if err := p.add(t.In(i), i); err != nil {
			return k, nil, err
		}
	}
	k.Params = p.params
	k.Run = func(l *vmm.Launch) error {
		in := make([]reflect.Value, len(p.decode))
		for i, d := range p.decode {
			in[i] = d(l)
		}
		out := f.Call(in)
		if len(out) == 0 || out[0].IsNil() {
			return nil
		}
		err, _ := out[0].Interface().(error)
		return err
	}
	return k, p.strides, nil
}

// hostParams is the parameters of a Go function as a kernel has them.
type hostParams struct {
	params  []vmm.Param
	strides []uint64                          // by params; 0 for what points to no slice
	decode  []func(*vmm.Launch) reflect.Value // by the function's parameters
	end     uint32                            // of the last one
}

// add adds the function's i-th parameter, which may be none, one or two of a kernel.
func (p *hostParams) add(in reflect.Type, i int) error {
	var decode func(*vmm.Launch) reflect.Value
	switch {
	case in == threadsType && i == 0:
		decode = func(l *vmm.Launch) reflect.Value {
			return reflect.ValueOf(Threads{whole(l.Grid), whole(l.Block)})
		}
	case in == threadsType:
		return fmt.Errorf("%w: parameter %d: Threads can only be the first", vmm.ErrInvalid, i+1)
	case in == ptrType:
		off := p.addParam(8, 8, 0)
		decode = func(l *vmm.Launch) reflect.Value { return reflect.ValueOf(ptrAt(l, off)) }
	case in.Kind() == reflect.Slice && notPlain(in.Elem()) == "":
		off := p.addParam(8, 8, uint64(in.Elem().Size()))
		count := p.addParam(8, 8, 0)
		decode = func(l *vmm.Launch) reflect.Value {
			return sliceAt(in, ptrAt(l, off), int(ptrAt(l, count))) //nolint:gosec // a count of what is mapped
		}
	case in.Kind() == reflect.Pointer && notPlain(in.Elem()) == "":
		off := p.addParam(8, 8, 0)
		decode = func(l *vmm.Launch) reflect.Value { return pointerAt(in, ptrAt(l, off)) }
	case notPlain(in) == "":
		size := uint32(in.Size())                      //nolint:gosec // a parameter's
		off := p.addParam(size, uint32(in.Align()), 0) //nolint:gosec // at most 8
		decode = func(l *vmm.Launch) reflect.Value { return valueOf(in, l.Args[off:off+size]) }
	default:
		return fmt.Errorf("%w: parameter %d: %s", vmm.ErrInvalid, i+1, notPlain(in))
	}
	p.decode = append(p.decode, decode)
	return nil
}

// addParam adds a parameter of the kernel behind the last, as C does, and returns its offset.
func (p *hostParams) addParam(size, align uint32, stride uint64) (off uint32) {
	off = (p.end + align - 1) &^ (align - 1)
	p.end = off + size
	p.params = append(p.params, vmm.Param{Offset: off, Size: size})
	p.strides = append(p.strides, stride)
	return off
}

// ptrAt is the 64-bit word at off.
func ptrAt(l *vmm.Launch, off uint32) vmm.Ptr {
	return vmm.Ptr(binary.NativeEndian.Uint64(l.Args[off:]))
}
