package main

import (
	"errors"
	"fmt"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/verify"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// bounce is how much is filled or read back at a time.
const bounce = 1 << 20

// buffer is memory at one end of a copy.
type buffer struct {
	raw    driver.Device
	ptr    driver.Ptr // 0 if only the CPU has its address
	host   []byte     // nil if only the device has its address
	size   uint64
	chunks []uint64 // offsets at which its chunks begin
	free   func() error
}

// Kinds of device memory, as --mem takes them.
const (
	memVMM   = "vmm"
	memPlain = "plain"
	memAsync = "async"
)

// memName is what the report calls a kind of memory: the call that makes it.
func memName(dev *vmm.Device, kind string) string {
	switch {
	case kind == memAsync:
		return "mallocAsync"
	case kind == memVMM:
		return kind
	}
	switch dev.Driver().Name() {
	case "cuda":
		return "cuMemAlloc"
	case "host":
		return "mmap"
	}
	return kind
}

// missing is the error of something that a device does not offer.
func missing(dev *vmm.Device, what string) error {
	return fmt.Errorf("%s has no %s: %w", dev, what, driver.ErrNotSupported)
}

// deviceBuffer makes device memory of a kind. chunk is the size of the chunks
// of a vmm range, 0 for its own choice.
func deviceBuffer(dev *vmm.Device, raw driver.Device, kind string, size, chunk uint64) (*buffer, error) {
	b := &buffer{raw: raw, size: size, chunks: []uint64{0}}
	if kind == memVMM {
		r, err := dev.NewRange(vmm.RangeOptions{Max: size, Chunk: chunk})
		if err != nil {
			return nil, err
		}
		if err := r.Grow(size); err != nil {
			return nil, errors.Join(err, r.Close())
		}
		b.ptr, b.free, b.chunks = r.Ptr(), r.Close, chunkStarts(r)
		return b, nil
	}
	plain, ok := raw.(driver.Plain)
	if !ok {
		return nil, missing(dev, memName(dev, kind))
	}
	var err error
	if kind == memAsync {
		b.ptr, err = plain.AllocAsync(size, raw.Own())
		b.free = func() error { return plain.FreeAsync(b.ptr, raw.Own()) }
	} else {
		b.ptr, err = plain.AllocPlain(size)
		b.free = func() error { return plain.FreePlain(b.ptr) }
	}
	if err != nil {
		return nil, fmt.Errorf("allocate %d bytes: %w", size, err)
	}
	return b, nil
}

// chunkStarts is where the chunks of a range begin.
func chunkStarts(r *vmm.Range) []uint64 {
	var starts []uint64
	for _, s := range r.Segments() {
		starts = append(starts, uint64(s.Addr-r.Ptr()))
	}
	return starts
}

// hostBuffer makes host memory: pinned, or a Go slice.
func hostBuffer(dev *vmm.Device, raw driver.Device, pinned bool, size uint64) (*buffer, error) {
	b := &buffer{raw: raw, size: size, chunks: []uint64{0}, free: func() error { return nil }}
	if !pinned {
		b.host = make([]byte, size)
		return b, nil
	}
	pinner, ok := raw.(driver.Pinner)
	if !ok {
		return nil, missing(dev, "pinned memory")
	}
	var err error
	if b.ptr, b.host, err = pinner.AllocHost(size); err != nil {
		return nil, fmt.Errorf("pin %d bytes: %w", size, err)
	}
	b.free = func() error { return pinner.FreeHost(b.ptr) }
	return b, nil
}

// pageable says whether this is ordinary Go memory, whose copies are
// synchronous.
func (b *buffer) pageable() bool { return b.ptr == 0 }

// copyTo is one copy of the whole of b to dst. It queues it where it can.
func (b *buffer) copyTo(dst *buffer) func(driver.Stream) error {
	switch {
	case b.pageable():
		return func(driver.Stream) error { return b.raw.CopyIn(dst.ptr, b.host) }
	case dst.pageable():
		return func(driver.Stream) error { return b.raw.CopyOut(dst.host, b.ptr) }
	}
	return func(s driver.Stream) error { return b.raw.Copy(dst.ptr, b.ptr, b.size, s) }
}

// fill writes the pattern.
func (b *buffer) fill(p verify.Pattern) error {
	if b.host != nil {
		p.Fill(b.host, 0)
		return nil
	}
	block := make([]byte, min(bounce, b.size))
	for off := uint64(0); off < b.size; off += bounce {
		part := block[:min(bounce, b.size-off)]
		p.Fill(part, off)
		if err := b.raw.CopyIn(b.ptr+driver.Ptr(off), part); err != nil {
			return err
		}
	}
	return nil
}

// poison overwrites everything with verify.Poison.
func (b *buffer) poison() error {
	if b.host != nil {
		for i := range b.host {
			b.host[i] = verify.Poison
		}
		return nil
	}
	own := b.raw.Own()
	if err := b.raw.Fill(b.ptr, verify.Poison, 1, b.size, own); err != nil {
		return err
	}
	return b.raw.SyncStream(own)
}

// view reads the buffer back.
func (b *buffer) view() verify.View {
	if b.host != nil {
		return verify.Bytes(b.host)
	}
	block := make([]byte, min(bounce, b.size))
	return func(off, n uint64) ([]byte, error) {
		part := block[:n]
		return part, b.raw.CopyOut(part, b.ptr+driver.Ptr(off))
	}
}

// flip turns over the bits of one byte, if the buffer has it.
func (b *buffer) flip(off int64) error {
	if off < 0 || uint64(off) >= b.size {
		return nil
	}
	if b.host != nil {
		b.host[off] ^= 0xff
		return nil
	}
	one := make([]byte, 1)
	at := b.ptr + driver.Ptr(off)
	if err := b.raw.CopyOut(one, at); err != nil {
		return err
	}
	one[0] ^= 0xff
	return b.raw.CopyIn(at, one)
}

// freeAll frees buffers, some of which may be nil.
func freeAll(buffers ...*buffer) error {
	var err error
	for _, b := range buffers {
		if b != nil {
			err = errors.Join(err, b.free())
		}
	}
	return err
}
