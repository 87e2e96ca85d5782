package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/verify"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// buffer is memory at one end of a copy.
type buffer struct {
	dev    device     // nothing if it is memory of the host
	ptr    driver.Ptr // 0 if only the CPU has its address
	host   []byte     // nil if only the device has its address
	size   uint64
	chunks []uint64   // offsets at which the chunks begin
	by     hostCopier // copies it if only the CPU has its address
	free   func() error
}

// hostCopier copies between ordinary Go memory and a device: the driver, or this project's
// staging.
type hostCopier interface {
	CopyIn(dst driver.Ptr, src []byte) error
	CopyOut(dst []byte, src driver.Ptr) error
}

// shape is how device memory is made. All but the size is for vmm memory.
type shape struct {
	size  uint64
	chunk uint64      // size of a chunk; 0: the range chooses
	step  uint64      // bytes of one growth; 0: all at once
	share bool        // the chunks can be exported
	peer  *vmm.Device // is granted access; nil: no device is
	keeps bool        // the host memory of a Sleep, for the next one
}

// Kinds of device memory, as --mem takes them.
const (
	memVMM   = "vmm"
	memPlain = "plain"
	memAsync = "async"
)

// memName is the report's name of a kind of memory: the call that makes it.
func memName(dev device, kind string) string {
	switch kind {
	case memAsync:
		return "mallocAsync"
	case memPlain:
		return cmp.Or(map[string]string{"cuda": "cuMemAlloc", "host": "mmap"}[dev.Driver().Name()], kind)
	}
	return kind
}

// notSupported is the error of something that a device does not offer.
func notSupported(dev device, what string) error {
	return fmt.Errorf("%s has no %s: %w", dev, what, driver.ErrNotSupported)
}

// onHost reports whether the device's memory is the host's.
func onHost(dev device) bool { return dev.Driver().Name() == "host" }

// location is where the device's memory is.
func location(dev device) driver.Location {
	return driver.Location{Kind: driver.LocationDevice, ID: dev.Info().Ordinal}
}

// newBuffer makes memory of a kind: of a device, or of the host for copies of that device. The
// caller must free it.
func newBuffer(dev device, kind string, s shape) (b *buffer, err error) {
	b = &buffer{size: s.size, chunks: []uint64{0}, free: noUndo}
	plain, hasPlain := dev.raw.(driver.Allocator)
	pinner, hasPinned := dev.raw.(driver.HostAllocator)
	switch {
	case kind == pageable:
		b.host, b.by = make([]byte, s.size), dev.raw
	case kind == staging:
		b.host, b.by = make([]byte, s.size), dev.Device
	case kind == pinned && hasPinned:
		b.ptr, b.host, err = pinner.AllocHost(s.size)
		b.free = func() error { return pinner.FreeHost(b.ptr) }
	case kind == memPlain && hasPlain:
		b.ptr, err = plain.AllocPlain(s.size)
		b.free = func() error { return plain.FreePlain(b.ptr) }
	case kind == memAsync && hasPlain:
		b.ptr, err = plain.AllocAsync(s.size, dev.raw.CopyStream())
		b.free = func() error { return plain.FreeAsync(b.ptr, dev.raw.CopyStream()) }
	case kind == memVMM:
		var r *vmm.Range
		if r, err = grownRange(dev, s); err == nil {
			b.ptr, b.free, b.chunks = r.Ptr(), r.Close, chunkStarts(r)
		}
	default:
		return nil, notSupported(dev, memName(dev, kind)+" memory")
	}
	if err != nil {
		return nil, fmt.Errorf("allocate %d bytes: %w", s.size, err)
	}
	if b.host == nil {
		b.dev = dev
	}
	return b, nil
}

// grownRange makes a range and grows it to its size by steps, as appends would.
func grownRange(dev device, s shape) (*vmm.Range, error) {
	o := vmm.RangeOptions{Max: s.size, Chunk: s.chunk, KeepHostMemory: s.keeps}
	if s.share {
		o.Share = vmm.ShareFD
	}
	r, err := dev.NewRange(o)
	if err != nil {
		return nil, err
	}
	step := cmp.Or(s.step, s.size)
	for at := uint64(0); at < s.size && err == nil; {
		at += min(step, s.size-at)
		err = r.Grow(at) // counted from Len, which stays 0
	}
	if s.peer != nil && err == nil {
		err = r.Grant(vmm.AccessReadWrite, s.peer)
	}
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// chunkStarts are the offsets at which the chunks of a range begin.
func chunkStarts(r *vmm.Range) []uint64 {
	var starts []uint64
	for _, s := range r.Segments() {
		starts = append(starts, uint64(s.Addr-r.Ptr()))
	}
	return starts
}

// renew gives the buffer newly mapped memory of the host, of which no page is there yet.
func (b *buffer) renew() error {
	mem, err := mapMemory(b.size)
	if err != nil {
		return err
	}
	err = b.free()
	b.host, b.free = mem, func() error { return unmapMemory(mem) }
	return err
}

// MemoryArg implements kernel.Memory.
func (b *buffer) MemoryArg(m *vmm.MemoryArg) {
	*m = vmm.MemoryArg{Span: vmm.Span{Addr: b.ptr, Size: b.size, Access: vmm.AccessReadWrite}, Count: b.size, Stride: 1}
}

// part is n bytes of b from off on, which b owns. All of them are b itself.
func (b *buffer) part(off, n uint64) *buffer {
	if n == b.size {
		return b
	}
	p := &buffer{dev: b.dev, ptr: b.ptr, size: n, chunks: []uint64{0}, by: b.by, free: noUndo}
	if b.ptr != 0 {
		p.ptr += driver.Ptr(off)
	}
	if b.host != nil {
		p.host = b.host[off : off+n]
	}
	return p
}

// copyTo has a device copy all of b to a buffer of the same size. The copy is queued where the
// memory allows it.
func (b *buffer) copyTo(dst *buffer, by device) copyFunc {
	switch {
	case b.size == 0:
		return func(driver.Stream) error { return nil }
	case b.ptr == 0:
		return func(driver.Stream) error { return b.by.CopyIn(dst.ptr, b.host) }
	case dst.ptr == 0:
		return func(driver.Stream) error { return dst.by.CopyOut(dst.host, b.ptr) }
	}
	return func(s driver.Stream) error { return by.raw.Copy(dst.ptr, b.ptr, b.size, s) }
}

// eachPart calls f for n parts of size bytes, in order.
func eachPart(size uint64, n int, f func(off, n uint64)) {
	// Parts begin at whole pages. If there are too few, the last ones are empty.
	const page = 4096
	part := roundUp(roundUp(size, uint64(n))/uint64(n), page)
	for i := range n {
		off := min(uint64(i)*part, size)
		f(off, min(part, size-off))
	}
}

// roundUp is the least multiple that is not less than n.
func roundUp(n, multiple uint64) uint64 { return (n + multiple - 1) / multiple * multiple }

// fill writes the pattern.
func (b *buffer) fill(ctx context.Context, p verify.Pattern) error {
	k, err := b.dev.ownKernels()
	if err := cmp.Or(err, ctx.Err()); err != nil {
		return err
	}
	if k != nil {
		return k.fill(b, p)
	}
	return verify.EachBlock(ctx, b.size, func(scratch []byte, off, n uint64) error {
		p.Fill(scratch[:n], off)
		return b.write(off, scratch[:n])
	})
}

// poison overwrites everything with verify.Poison.
func (b *buffer) poison(ctx context.Context) error {
	return verify.EachBlock(ctx, b.size, func(_ []byte, off, n uint64) error {
		if b.host != nil {
			return b.write(off, bytes.Repeat([]byte{verify.Poison}, int(n)))
		}
		own := b.dev.raw.CopyStream()
		// Else an interrupt would have to wait for all fills.
		return cmp.Or(b.dev.raw.Fill(b.ptr+driver.Ptr(off), verify.Poison, 1, n, own), b.dev.raw.SyncStream(own))
	})
}

// check compares the contents with the pattern. chunks are those by which an error is
// reported.
func (b *buffer) check(ctx context.Context, p verify.Pattern, mode verify.Mode, chunks []uint64) (verify.Result, error) {
	k, err := b.dev.ownKernels()
	if err != nil {
		return verify.Result{Mode: mode}, err
	}
	return k.check(ctx, p, mode, b.size, chunks, b.ptr, b.view)
}

// view reads the buffer back for verify.Pattern.Check.
func (b *buffer) view(scratch []byte, off, n uint64) ([]byte, error) {
	if b.host != nil {
		return b.host[off : off+n], nil
	}
	return scratch[:n], b.dev.raw.CopyOut(scratch[:n], b.ptr+driver.Ptr(off))
}

// write writes data from off on.
func (b *buffer) write(off uint64, data []byte) error {
	if b.host != nil {
		copy(b.host[off:], data)
		return nil
	}
	return b.dev.raw.CopyIn(b.ptr+driver.Ptr(off), data)
}

// flip inverts the byte at off, if the buffer has one there.
func (b *buffer) flip(off int64) error {
	if off < 0 || uint64(off) >= b.size {
		return nil
	}
	one, err := b.view(make([]byte, 1), uint64(off), 1)
	if err != nil {
		return err
	}
	return b.write(uint64(off), []byte{^one[0]})
}
