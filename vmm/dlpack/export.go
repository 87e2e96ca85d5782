package dlpack

import (
	"cmp"
	"fmt"
	"math/bits"
	"sync/atomic"

	"github.com/cuvmm/cuvmm/cgo/dlpack"
	"github.com/cuvmm/cuvmm/internal/door"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/pool"
)

// in is what package vmm does for this one.
var in = door.Through[door.DLPack[*vmm.MemoryArg, *vmm.Device, *vmm.Mirror, *vmm.Reservation, *vmm.Stream]]()

// Memory is what can be exported, and what kernels take: a vmm.Range, a growable.Vector or Rows or a reader of
// one, a shareable.View, a block of a pool.Pool.
type Memory interface {
	// MemoryArg sets m to where the memory is now, and how many items it has.
	MemoryArg(m *vmm.MemoryArg)
}

// Options is how memory is exported. Its zero value suits memory that has a Layout, as a Vector, Rows and
// a View of one have.
type Options struct {
	// DType is the type of the elements; 0 is that of the Layout. Where there is a Layout, its elements
	// must have as many bits: a Vector of uint16 can be exported as BFloat16. Memory without a Layout needs
	// a DType.
	DType DType
	// Shape is the shape of one row, of at most 4 dimensions, where there is no Layout. Empty: a row is one
	// element.
	Shape []int
	// Unversioned exports a DLManagedTensor, which has no version and no flags. Read-only memory is then
	// ErrPermission.
	Unversioned bool
	// Stream is the stream that the consumer will use the memory on, as the array API standard has it; 0 is
	// the standard's None. For memory on a GPU, 0 and 1 are the legacy default stream and 2 is the per-thread
	// one. -1 means no wait. Any other positive number is a stream's handle, and any other negative number is
	// ErrInvalid. The stream waits for earlier work; the host does not. For memory of the host there are 0
	// and -1: with 0, Export itself waits.
	Stream int64
	// After are streams whose work comes before the consumer's, in addition to those passed to UsedBy.
	After []*vmm.Stream
}

// Tensor is memory that is exported, and the C struct that describes it. Safe for concurrent use.
type Tensor struct {
	slot     dlpack.Slot
	text     string
	release  func()        // drops the hold and closes released
	released chan struct{} // nil: of the zero Tensor
	gone     atomic.Bool   // handed over, or closed
}

// Export makes a DLManagedTensorVersioned of the first n items of memory: elements or rows of what has a
// Layout, and else rows of Options.Shape. The struct lies in C's memory, stays as it is while the memory
// grows, and always describes the n items. After growth, Export makes another one, of the same address.
//
// The n items are held, as by vmm.Range.Hold, until the consumer calls the struct's deleter, or until
// Close, if the struct was not handed over. Meanwhile calls that would unmap them, or lower Len below
// them, return vmm.ErrBusy, and so does Free of a pool's block. The owner of a View can take bytes back:
// this side acknowledges it once they are released, and detaches if that takes longer than the View's
// Timeout. After that, and after the owner's end, the bytes stay mapped, and may be stale.
//
//	ErrInvalid       no dtype, one of other bits than the Layout's, a bad shape or Stream; elements that
//	                 are not aligned; a block that was freed
//	ErrBounds        the memory has fewer items, or not all of them are mapped
//	ErrClosed        the memory is closed
//	ErrAsleep        it sleeps
//	ErrNotSupported  opaque elements and structs; a pitch of no whole elements; memory of a
//	                 pool.DriverPool; that of a pool.Pool, but for a pool.Block itself; a build
//	                 without cgo, or not for Linux
//	ErrPermission    read-only memory, with Unversioned
//
// The caller must HandOver or Close the Tensor.
func Export(m Memory, n int, o Options) (*Tensor, error) {
	t, err := export(m, n, o)
	if err != nil {
		return nil, fmt.Errorf("export %d items by DLPack: %w", n, err)
	}
	return t, nil
}

// source is memory that is exported.
type source struct {
	addr   vmm.Ptr
	size   uint64 // bytes that there are
	layout vmm.Layout
	dtype  DType

	strides []int64

	// Known after the hold.
	dev      *vmm.Device
	on       dlpack.DeviceType
	id       int32
	readOnly bool
	users    []*vmm.Stream
	release  func()
}

func export(m Memory, n int, o Options) (*Tensor, error) {
	if m == nil {
		return nil, fmt.Errorf("%w: no memory", vmm.ErrInvalid)
	}
	var at vmm.MemoryArg
	m.MemoryArg(&at)
	res := in.ReservationOf(&at)
	switch err := at.Err(); {
	case err != nil:
		return nil, err
	case at.Addr == 0:
		return nil, fmt.Errorf("%w: no memory", vmm.ErrInvalid)
	case res == nil:
		return nil, fmt.Errorf("%w: memory in no reservation", vmm.ErrNotSupported)
	}
	layout, dtype, err := describe(m, o)
	if err != nil {
		return nil, err
	}
	x := &source{addr: at.Addr, size: at.Size, layout: layout, dtype: dtype}
	return x.export(n, o, func(size uint64, text string) (err error) {
		x.dev = res.Device()
		if x.on, x.id, err = deviceOf(x.dev); err != nil {
			return err
		}
		x.readOnly, x.users = readOnly(res, at.Access), in.UsersOf(res)
		if x.release, err = hold(m, res, at.Addr, size, text); err != nil {
			return err
		}
		// Held from here on, but Len may have been lowered before.
		if m.MemoryArg(&at); at.Err() != nil || at.Size < size {
			return cmp.Or(at.Err(), fmt.Errorf("%w: %d bytes, of %d by now", vmm.ErrBounds, size, at.Size))
		}
		if at.Addr != x.addr || in.ReservationOf(&at) != res {
			return fmt.Errorf("%w: the memory is another one by now, at %v and not %v", vmm.ErrInvalid, at.Addr, x.addr)
		}
		return nil
	})
}

// ExportMirror is Export of the first n rows of a mirror's Bytes, which are memory of the host: pinned,
// with vmm.MirrorOptions.MaxPinned. It needs Options.DType. Meanwhile Close and Discard of the mirror return
// vmm.ErrBusy. A Flush copies the consumer's writes to the device's memory. A mirror without
// vmm.MirrorOptions.Write is read-only.
func ExportMirror(m *vmm.Mirror, n int, o Options) (*Tensor, error) {
	t, err := exportMirror(m, n, o)
	if err != nil {
		return nil, fmt.Errorf("export %d items of a mirror by DLPack: %w", n, err)
	}
	return t, nil
}

func exportMirror(m *vmm.Mirror, n int, o Options) (*Tensor, error) {
	layout, dtype, err := describe(nil, o)
	if err != nil {
		return nil, err
	}
	b := m.Bytes()
	if len(b) == 0 { // it may be closed
		_, _, _, release, err := in.HoldMirror(m, "")
		if err != nil {
			return nil, err
		}
		release()
	}
	x := &source{addr: addressOf(b), size: uint64(len(b)), layout: layout, dtype: dtype}
	return x.export(n, o, func(_ uint64, text string) (err error) {
		var pinned bool
		if x.dev, pinned, x.readOnly, x.release, err = in.HoldMirror(m, text); err != nil {
			return err
		}
		x.on = dlpack.CPU
		if on, _, _ := deviceOf(x.dev); pinned && on == dlpack.CUDA {
			x.on = dlpack.CUDAHost
		}
		return nil
	})
}

// export exports the first n items. hold fills in the rest of x.
func (x *source) export(n int, o Options, hold func(size uint64, text string) error) (_ *Tensor, err error) {
	if n < 0 {
		return nil, fmt.Errorf("%w: fewer than 0 items", vmm.ErrInvalid)
	}
	over, size := bits.Mul64(uint64(n), x.layout.Pitch)
	if over != 0 || size > x.size {
		return nil, fmt.Errorf("%w: %d items of %d bytes, of %d bytes", vmm.ErrBounds, n, x.layout.Pitch, x.size)
	}
	if n > 0 && uint64(x.addr)%x.dtype.align() != 0 {
		return nil, fmt.Errorf("%w: %v at %v, which is no multiple of %d", vmm.ErrInvalid, x.dtype, x.addr, x.dtype.align())
	}
	if x.strides, err = x.layout.Strides(); err != nil {
		return nil, err
	}
	text := fmt.Sprintf("DLPack export of %v%v", x.dtype, append([]int{n}, x.layout.Shape...))
	defer func() {
		if err != nil && x.release != nil {
			x.release()
		}
	}()
	if err = hold(size, text); err != nil {
		return nil, err
	}
	to, err := consumerOf(o.Stream, x.on)
	if err != nil {
		return nil, err
	}
	if err = to.after(x.dev, append(x.users, o.After...)); err != nil {
		return nil, err
	}
	spec := &dlpack.Tensor{
		Major: dlpack.Major, Minor: dlpack.Minor, Data: uint64(x.addr), Type: x.on, ID: x.id,
		Code: x.dtype.code(), Bits: x.dtype.bits(), Lanes: 1, Shape: []int64{int64(n)}, Strides: x.strides,
	}
	for _, n := range x.layout.Shape {
		spec.Shape = append(spec.Shape, int64(n))
	}
	if x.readOnly {
		spec.Flags |= dlpack.ReadOnly
	}
	return newTensor(spec, o.Unversioned, text, x.release)
}

// describe is how the items lie, and what their elements are. The Layout's own kind is one of the same
// size as the type, which may be one that a Layout does not have.
func describe(m Memory, o Options) (l vmm.Layout, t DType, err error) {
	if has, ok := m.(interface{ Layout() vmm.Layout }); ok {
		l = has.Layout()
	}
	if !l.Equal(vmm.Layout{}) {
		t, err = dtypeOf(l)
		switch {
		case err != nil:
			return l, 0, err
		case len(o.Shape) > 0:
			return l, 0, fmt.Errorf("%w: a shape for memory that has one, of %v", vmm.ErrInvalid, l)
		case o.DType == 0:
			return l, t, nil
		case o.DType.bits() != t.bits():
			return l, 0, fmt.Errorf("%w: elements of %v as %v", vmm.ErrInvalid, l, o.DType)
		}
		return l, o.DType, o.DType.check()
	}
	if o.DType == 0 {
		return l, 0, fmt.Errorf("%w: no dtype, for memory without a layout", vmm.ErrInvalid)
	}
	if err = o.DType.check(); err != nil {
		return l, 0, err
	}
	l = vmm.Layout{Kind: vmm.ElemUint, Bits: int(o.DType.bits()), Size: o.DType.size(), Shape: o.Shape, Pitch: o.DType.size()}
	if o.DType == Complex128 {
		l.Kind = vmm.ElemComplex
	}
	for _, n := range o.Shape {
		over, pitch := bits.Mul64(l.Pitch, uint64(max(n, 0)))
		if over != 0 {
			return l, 0, fmt.Errorf("%w: rows of %v elements", vmm.ErrInvalid, o.Shape)
		}
		l.Pitch = pitch
	}
	return l, o.DType, l.Validate()
}

// deviceOf is a device as DLPack names it.
func deviceOf(d *vmm.Device) (dlpack.DeviceType, int32, error) {
	switch name := d.Driver().Name(); name {
	case "host":
		return dlpack.CPU, 0, nil
	case "cuda":
		return dlpack.CUDA, int32(d.Info().Ordinal), nil
	default:
		return 0, 0, fmt.Errorf("%w: memory of driver %q", vmm.ErrNotSupported, name)
	}
}

// readOnly reports whether the memory must not be written to.
func readOnly(r *vmm.Reservation, a vmm.Access) bool {
	if owner, ok := r.Owner().(interface{ Sealed() bool }); ok && owner.Sealed() {
		return true
	}
	return min(a, r.Access(r.Device())) < vmm.AccessReadWrite
}

// hold keeps the memory mapped until release.
func hold(m Memory, r *vmm.Reservation, p vmm.Ptr, size uint64, text string) (release func(), err error) {
	if unheld {
		return func() {}, nil
	}
	if of, ok := r.Owner().(*pool.Pool); ok {
		if b, ok := m.(pool.Block); ok {
			return of.HoldBlock(b)
		}
		return nil, fmt.Errorf("%w: memory of a pool as %T and not as pool.Block, which is held", vmm.ErrNotSupported, m)
	}
	return in.HoldIn(r, text, uint64(p-r.Ptr()), size)
}

// unheld is set by the test that shows what the hold is for.
var unheld bool
