package store

import (
	"context"
	"fmt"
	"io"

	"github.com/cuvmm/cuvmm/internal/nonnil"
	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/vmm"
)

// Buffer is an object of a store, mapped in this process. While it is open the store keeps the
// object's memory, also if the object is deleted, unless that is forced. The memory stays mapped
// until Close, also if the server ends; where another one continues with it, the Buffer does too.
//
// A Buffer is read-only, unless GetOptions.Write asked for more. Safe for concurrent use.
// The caller must Close it.
type Buffer struct {
	v        *shareable.View
	name     string
	writable bool
}

// View is the memory as a View: it waits for more bytes, of an object that grows, and has
// streams wait.
func (b *Buffer) View() *shareable.View { return nonnil.Of(b).v }

// ID is the object's.
func (b *Buffer) ID() ID { return ID{Instance: b.View().Instance(), Number: b.View().ID()} }

// Name is the name or the ID that Get was called with.
func (b *Buffer) Name() string { return nonnil.Of(b).name }

// Ptr is the first address. It stays the same until Close.
func (b *Buffer) Ptr() vmm.Ptr { return b.View().Ptr() }

// Len is how many bytes can be read. Until the object is sealed it grows. After Close it is
// 0.
func (b *Buffer) Len() uint64 { return b.View().Len() }

// Device is the device that the memory is mapped for.
func (b *Buffer) Device() *vmm.Device { return b.View().Device() }

// Location is where the memory is: on a device or on the host. It is the zero Location if
// the object has no memory yet.
func (b *Buffer) Location() vmm.Location {
	for _, s := range b.View().Segments() {
		return s.Location
	}
	return vmm.Location{}
}

// Sealed reports whether neither length nor bytes change any more.
func (b *Buffer) Sealed() bool { return b.View().Sealed() }

// Writable reports whether the memory is mapped for writing and the object is not sealed.
func (b *Buffer) Writable() bool { return b != nil && b.writable && !b.Sealed() }

// Layout is CreateOptions.Layout.
func (b *Buffer) Layout() vmm.Layout { return b.View().Layout() }

// Meta returns a copy of CreateOptions.Meta.
func (b *Buffer) Meta() []byte { return b.View().Meta() }

// Digest is the SHA-256 of the sealed bytes as the Writer computed it; false if it did not.
func (b *Buffer) Digest() ([32]byte, bool) { return b.View().Digest() }

// Tensor is as View.Tensor.
func (b *Buffer) Tensor() (vmm.Tensor, error) { return b.View().Tensor() }

// Changed is as View.Changed.
func (b *Buffer) Changed() <-chan struct{} { return b.View().Changed() }

// Wait is as View.Wait: it waits until Len is at least n.
func (b *Buffer) Wait(ctx context.Context, n uint64) error { return b.View().Wait(ctx, n) }

// Host is as View.Host.
func (b *Buffer) Host() ([]byte, error) { return b.View().Host() }

// Err is as View.Err: nil once the object is sealed, and shareable.ErrOwnerGone if it was not
// and the server has ended for good.
func (b *Buffer) Err() error { return b.View().Err() }

// ReadAt copies bytes from off on to p, and returns io.EOF beyond Len.
func (b *Buffer) ReadAt(p []byte, off int64) (int, error) { return b.View().ReadAt(p, off) }

// WriteAt copies p to the memory from off on. If the Buffer is not Writable it returns
// vmm.ErrPermission, also if the object was sealed since Get, and beyond Len vmm.ErrBounds; it
// writes nothing then.
func (b *Buffer) WriteAt(p []byte, off int64) (int, error) {
	if b == nil || b.v == nil {
		return 0, b.Err()
	}
	switch n := b.Len(); {
	case b.Err() != nil:
		return 0, b.Err()
	case !b.writable:
		return 0, fmt.Errorf("%w: %q is mapped for reading", vmm.ErrPermission, b.name)
	case b.Sealed():
		return 0, fmt.Errorf("%w: %q is sealed", vmm.ErrPermission, b.name)
	case off < 0 || uint64(off) > n || uint64(len(p)) > n-uint64(off):
		return 0, fmt.Errorf("%w: %d bytes from %d on, of %d", vmm.ErrBounds, len(p), off, n)
	case len(p) == 0:
		return 0, nil
	}
	if err := b.Device().CopyIn(b.Ptr()+vmm.Ptr(off), p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// MemoryArg sets m to the bytes up to Len as an argument of a kernel, for package kernel.
func (b *Buffer) MemoryArg(m *vmm.MemoryArg) { b.View().MemoryArg(m) }

// Close waits for work that uses the memory, and unmaps it. Twice is fine, and so is a nil
// Buffer.
func (b *Buffer) Close() error { return b.View().Close() }

var (
	_ io.ReaderAt = (*Buffer)(nil)
	_ io.WriterAt = (*Buffer)(nil)
)
