package dlpack

import (
	"fmt"
	"math/bits"
	"slices"
	"sync"

	"github.com/cuvmm/cuvmm/cgo/dlpack"
	"github.com/cuvmm/cuvmm/internal/inside"
	"github.com/cuvmm/cuvmm/internal/nonnil"
	"github.com/cuvmm/cuvmm/vmm"
)

// Foreign is memory of another library, as its DLPack tensor describes it: rows of equal size, one
// after the other. On a GPU, kernels and vmm.Stream.Copy take it as they take plain memory. If it is host
// memory, pass Bytes or Slice to Append and vmm.Stream.CopyIn. Kernels and copies of the host driver accept
// it only if that driver allocated it. Safe for concurrent use. The caller must Close it.
type Foreign struct {
	// Immutable.
	extent
	dev      *vmm.Device
	on       dlpack.DeviceType
	shape    []int64
	readOnly bool
	release  func() // of the device
	destroy  func() // calls the deleter

	mu     sync.RWMutex
	closed bool
}

// extent is where a tensor's bytes are.
type extent struct {
	dtype DType
	ptr   vmm.Ptr
	rows  uint64
	pitch uint64 // bytes from one row to the next
	size  uint64 // bytes from the first to the last
}

// fromTensor is a Foreign of what t says. Package vmm knows nothing of the memory, so it is not found in
// a reservation unless it lies in one.
func fromTensor(d *vmm.Device, t dlpack.Tensor, destroy func()) (*Foreign, error) {
	if d == nil {
		return nil, fmt.Errorf("%w: no device", vmm.ErrInvalid)
	}
	at, err := locate(t)
	if err == nil {
		err = checkDevice(d, t)
	}
	if err != nil {
		return nil, err
	}
	release, err := inside.VMM.KeepOpen(d, fmt.Sprintf("DLPack import of %v%v", at.dtype, t.Shape))
	if err != nil {
		return nil, err
	}
	return &Foreign{
		extent: at, dev: d, on: t.Type, shape: t.Shape, readOnly: t.Flags&dlpack.ReadOnly != 0, release: release, destroy: destroy,
	}, nil
}

// locate checks a tensor, of which nothing is trusted.
func locate(t dlpack.Tensor) (p extent, err error) {
	p.dtype = DType(t.Code)<<8 | DType(t.Bits)
	switch {
	case t.NDim < 0 || t.NDim > dlpack.MostDimsIn:
		return p, fmt.Errorf("%w: %d dimensions, of at most %d", vmm.ErrInvalid, t.NDim, dlpack.MostDimsIn)
	case len(t.Shape) != t.NDim:
		return p, fmt.Errorf("%w: %d dimensions and no shape", vmm.ErrInvalid, t.NDim)
	case t.Lanes != 1:
		return p, fmt.Errorf("%w: elements of %d lanes", vmm.ErrNotSupported, t.Lanes)
	}
	if err = p.dtype.check(); err != nil {
		return p, err
	}
	row, err := rowBytes(t, p.dtype.size())
	if err != nil {
		return p, err
	}
	p.rows, p.pitch = 1, row
	if t.NDim > 0 {
		p.rows = uint64(t.Shape[0])
	}
	if row == 0 || p.rows == 0 {
		p.rows, p.size = 0, 0
		return p, nil // the address may be anything
	}
	if t.Strides != nil && t.NDim > 0 && p.rows > 1 {
		stride := t.Strides[0]
		over, pitch := bits.Mul64(uint64(max(stride, 0)), p.dtype.size())
		if stride < 0 || over != 0 || pitch < row {
			return p, fmt.Errorf("%w: rows of %d bytes, %d elements apart", vmm.ErrNotSupported, row, stride)
		}
		p.pitch = pitch
	}
	over, before := bits.Mul64(p.rows-1, p.pitch)
	size, carry := bits.Add64(before, row, 0)
	addr, beyond := bits.Add64(t.Data, t.ByteOffset, 0)
	_, end := bits.Add64(addr, size, 0)
	switch {
	case over|carry|beyond|end != 0 || size > 1<<63-1:
		return p, fmt.Errorf("%w: %d rows of %d bytes at %#x, byte offset %d", vmm.ErrBounds, p.rows, p.pitch, t.Data, t.ByteOffset)
	case t.Data == 0:
		return p, fmt.Errorf("%w: no data for %d bytes", vmm.ErrInvalid, size)
	case addr%p.dtype.align() != 0:
		return p, fmt.Errorf("%w: %v at %#x, which is no multiple of %d", vmm.ErrInvalid, p.dtype, addr, p.dtype.align())
	}
	p.ptr, p.size = vmm.Ptr(addr), size
	return p, nil
}

// rowBytes is the size of a row, whose elements must lie one after the other. Strides of
// dimensions of one element are not used.
func rowBytes(t dlpack.Tensor, elem uint64) (uint64, error) {
	for _, n := range t.Shape {
		if n < 0 {
			return 0, fmt.Errorf("%w: a shape of %v", vmm.ErrInvalid, t.Shape)
		}
	}
	if slices.Contains(t.Shape, 0) {
		return 0, nil
	}
	step := uint64(1)
	for i := len(t.Shape) - 1; i > 0; i-- {
		n := uint64(t.Shape[i])
		if t.Strides != nil && n > 1 && uint64(t.Strides[i]) != step {
			return 0, fmt.Errorf("%w: a shape of %v with strides of %v: rows whose elements do not lie one after the other", vmm.ErrNotSupported, t.Shape, t.Strides)
		}
		over, product := bits.Mul64(step, n)
		if over != 0 {
			return 0, fmt.Errorf("%w: a shape of %v", vmm.ErrBounds, t.Shape)
		}
		step = product
	}
	over, size := bits.Mul64(step, elem)
	if over != 0 {
		return 0, fmt.Errorf("%w: a shape of %v", vmm.ErrBounds, t.Shape)
	}
	return size, nil
}

// checkDevice is nil if d is where the tensor is, or the tensor is in memory of the host.
func checkDevice(d *vmm.Device, t dlpack.Tensor) error {
	switch t.Type {
	case dlpack.CPU, dlpack.CUDAHost:
		return nil
	case dlpack.CUDA:
		if on, id, err := deviceOf(d); err != nil || on != dlpack.CUDA || id != t.ID {
			return fmt.Errorf("%w: memory of cuda:%d for %v", vmm.ErrInvalid, t.ID, d)
		}
		return nil
	}
	return fmt.Errorf("%w: memory of device type %d", vmm.ErrNotSupported, t.Type)
}

// Device is the device that the memory was taken for.
func (f *Foreign) Device() *vmm.Device { return nonnil.Of(f).dev }

// Ptr is the first address, with the tensor's byte_offset. It is 0 for memory of 0 bytes.
func (f *Foreign) Ptr() vmm.Ptr { return nonnil.Of(f).ptr }

// Size is how many bytes there are from the first to the last, the padding between rows included.
func (f *Foreign) Size() uint64 { return nonnil.Of(f).size }

// Pitch is the number of bytes from one row to the next.
func (f *Foreign) Pitch() uint64 { return nonnil.Of(f).pitch }

// DType is the type of the elements.
func (f *Foreign) DType() DType { return nonnil.Of(f).dtype }

// Shape is the tensor's shape, rows first.
func (f *Foreign) Shape() []int64 { return slices.Clone(nonnil.Of(f).shape) }

// ReadOnly reports whether the tensor is marked so. Nothing prevents writing to it.
func (f *Foreign) ReadOnly() bool { return nonnil.Of(f).readOnly }

// MemoryArg sets m to the memory as an argument of a kernel, which only reads it if it is ReadOnly.
// Launches refuse memory of the host that the device cannot address.
func (f *Foreign) MemoryArg(m *vmm.MemoryArg) {
	if m == nil {
		return
	}
	*m = vmm.MemoryArg{}
	if f == nil || f.dev == nil {
		return
	}
	f.mu.RLock()
	defer f.mu.RUnlock()
	if f.closed {
		m.Refuse(errForeignClosed)
		return
	}
	if on, _, err := deviceOf(f.dev); err != nil || on == dlpack.CUDA && f.on == dlpack.CPU {
		m.Refuse(fmt.Errorf("%w: memory of the host on %v", vmm.ErrNotSupported, f.dev))
		return
	}
	access := vmm.AccessReadWrite
	if f.ReadOnly() {
		access = vmm.AccessRead
	}
	*m = vmm.MemoryArg{Span: vmm.Span{Addr: f.ptr, Size: f.size, Access: access}, Count: f.rows, Stride: f.pitch}
}

var errForeignClosed = fmt.Errorf("%w: the tensor of another library", vmm.ErrClosed)

// Close calls the tensor's deleter, if it has one, and gives the memory up. Work that uses the memory must
// have ended. Twice is fine, and so is a nil Foreign.
func (f *Foreign) Close() error {
	if f == nil || f.dev == nil {
		return nil
	}
	f.mu.Lock()
	first := !f.closed
	f.closed = true
	f.mu.Unlock()
	if first {
		defer f.release()
		f.destroy() // it runs code of others, which may panic, so no lock is held
	}
	return nil
}
