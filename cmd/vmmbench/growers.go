package main

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/verify"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// grower is a container that grows.
type grower interface {
	append(p piece) error
	address() any // comparable: another value means that the container moved
	// cost returns how many bytes growing has copied, without those appended,
	// and the most memory it held at once.
	cost() (copied, peak uint64)
	buffer() *buffer
	close() error
}

// piece is what is appended: bytes of the host that are uploaded, or of the device that are
// copied there. If it has neither, nothing is written.
type piece struct {
	size uint64
	host []byte     // the same bytes where the CPU has their address; nil elsewhere
	ptr  driver.Ptr // 0 if they are uploaded
}

func (p piece) blank() bool { return p.ptr == 0 && p.host == nil }

// write copies the piece to device memory, and has finished when it returns.
func (p piece) write(raw driver.Device, dst driver.Ptr) error {
	if p.blank() {
		return nil
	}
	if p.ptr == 0 {
		return raw.CopyIn(dst, p.host)
	}
	own := raw.CopyStream()
	if err := raw.Copy(dst, p.ptr, p.size, own); err != nil {
		return err
	}
	return raw.SyncStream(own)
}

// growSource is device memory from which growths append. It is filled once, before them.
type growSource struct {
	*buffer
}

// newGrowSource makes it, of size bytes.
func newGrowSource(ctx context.Context, dev device, size uint64, p verify.Pattern) (_ *growSource, err error) {
	r, err := grownRange(dev, shape{size: size})
	if err != nil {
		return nil, err
	}
	defer func() { onError(&err, r.Close) }()
	s := &growSource{&buffer{dev: dev, ptr: r.Ptr(), size: size, free: r.Close}}
	if addressable(dev) {
		if err := r.SetLen(size); err != nil {
			return nil, err
		}
		if s.host, err = r.Host(); err != nil {
			return nil, err
		}
	}
	return s, s.fill(ctx, p)
}

// piece is n bytes at off.
func (s *growSource) piece(off, n uint64) piece {
	p := piece{size: n, ptr: s.ptr + driver.Ptr(off)}
	if s.host != nil {
		p.host = s.host[off : off+n]
	}
	return p
}

// growerFactory returns a function that makes growers of a kind, and one to call
// when no more are needed. o are the options of ranges that grow in place.
func growerFactory(dev device, kind string, target uint64, o vmm.RangeOptions) (start func() (grower, error), undo func() error, err error) {
	switch kind {
	case growVMM, growAhead:
		return func() (grower, error) { return newGrowingRange(dev, o) }, noUndo, nil
	case growKept:
		return keptFactory(dev, o)
	case growWhole:
		return func() (grower, error) { return newWholeRange(dev, target) }, noUndo, nil
	case growRemap:
		start = newRemapped
	case growAppend:
		start = func() (grower, error) { return &goSlice{release: dev.settings.freeMemory}, nil }
	case growWarm:
		start = func() (grower, error) { return &goSlice{release: dev.settings.collect}, nil }
	default:
		return reallocatingFactory(dev, kind)
	}
	if !addressable(dev) {
		what := "memory that a Go slice can be made of"
		if kind == growRemap {
			what = "mremap"
		}
		return nil, nil, notSupported(dev, what)
	}
	return start, noUndo, nil
}

// reallocatingFactory is growerFactory for memory that moves when it grows.
func reallocatingFactory(dev device, kind string) (start func() (grower, error), undo func() error, err error) {
	plain, ok := dev.raw.(driver.Allocator)
	if !ok {
		return nil, nil, notSupported(dev, memName(dev, memPlain))
	}
	own := dev.raw.CopyStream()
	x := reallocating{dev: dev, double: kind == growDouble, alloc: plain.AllocPlain}
	x.free = func(p driver.Ptr) error {
		// The copy out of this memory may still run.
		if err := dev.raw.SyncStream(own); err != nil {
			return err
		}
		return plain.FreePlain(p)
	}
	undo = noUndo
	if kind == growAsync {
		if undo, err = keepPool(dev); err != nil {
			return nil, nil, err
		}
		// These two are ordered by the stream, so nothing is waited for.
		x.alloc = func(n uint64) (driver.Ptr, error) { return plain.AllocAsync(n, own) }
		x.free = func(p driver.Ptr) error { return plain.FreeAsync(p, own) }
	}
	// Each grower begins empty.
	return func() (grower, error) { g := x; return &g, nil }, undo, nil
}

// keepPool makes the device's current pool keep what is freed. By default the pool gives
// it back at each synchronise, and every allocation would be a new one.
func keepPool(dev device) (undo func() error, err error) {
	pooler, ok := dev.raw.(driver.Pooler)
	if !ok {
		return nil, fmt.Errorf("%w: pools", driver.ErrNotSupported)
	}
	pool, err := pooler.CurrentPool()
	if err != nil {
		return nil, err
	}
	old, err := pooler.PoolAttribute(pool, driver.PoolReleaseThreshold)
	if err != nil {
		return nil, err
	}
	set := func(bytes uint64) error { return pooler.SetPoolAttribute(pool, driver.PoolReleaseThreshold, bytes) }
	return func() error { return set(old) }, set(math.MaxUint64)
}

// addressable reports whether the CPU has the addresses of the device's memory.
func addressable(dev device) bool {
	_, ok := dev.Driver().(driver.HostViewer)
	return ok && onHost(dev)
}

// growingRange is a range of this project, which grows in place.
type growingRange struct {
	*vmm.Range
	dev device
}

func newGrowingRange(dev device, o vmm.RangeOptions) (grower, error) {
	r, err := dev.NewRange(o)
	if err != nil {
		return nil, err
	}
	return &growingRange{Range: r, dev: dev}, nil
}

// keptFactory is growerFactory for ranges that take the chunks which the range
// before them released. The warm-up, which does not count, makes the chunks. A
// Device of its own keeps them, so that the other contenders start with nothing.
func keptFactory(dev device, o vmm.RangeOptions) (func() (grower, error), func() error, error) {
	own, err := vmm.OpenDriver(dev.Driver(), dev.Info().Ordinal)
	if err != nil {
		return nil, nil, err
	}
	old := own.SetReleaseThreshold(math.MaxUint64)
	undo := func() error {
		_, err := own.Trim(0)
		own.SetReleaseThreshold(old)
		return errors.Join(err, own.Close())
	}
	dev.Device = own
	return func() (grower, error) { return newGrowingRange(dev, o) }, undo, nil
}

func (g *growingRange) append(p piece) error {
	if p.ptr == 0 && !p.blank() {
		return g.Append(p.host)
	}
	have := g.Len()
	if err := g.Grow(p.size); err != nil {
		return err
	}
	if err := p.write(g.dev.raw, g.Ptr()+driver.Ptr(have)); err != nil {
		return err
	}
	return g.SetLen(have + p.size)
}

func (g *growingRange) address() any { return g.Ptr() }

// cost counts growth ahead too, which may be committed and not yet be capacity.
func (g *growingRange) cost() (copied, peak uint64) { return 0, max(g.Cap(), g.Stats().Committed) }
func (g *growingRange) close() error                { return g.Close() }
func (g *growingRange) buffer() *buffer {
	return &buffer{dev: g.dev, ptr: g.Ptr(), size: g.Len(), chunks: chunkStarts(g.Range)}
}

// wholeRange is a range that has all its memory, in one chunk, before the first
// byte is written. Where the CPU can address the memory, it writes there directly.
type wholeRange struct {
	growingRange
	view []byte
	len  uint64
}

func newWholeRange(dev device, target uint64) (grower, error) {
	gran, err := dev.Driver().Granularity(driver.Prop{Location: location(dev)})
	if err != nil {
		return nil, err
	}
	r, err := dev.NewRange(vmm.RangeOptions{Max: target, Chunk: roundUp(target, gran)})
	if err != nil {
		return nil, err
	}
	g := &wholeRange{growingRange: growingRange{Range: r, dev: dev}}
	err = errors.Join(r.Grow(target), r.SetLen(target))
	if err == nil {
		g.view, err = r.Host()
	}
	if errors.Is(err, driver.ErrNotSupported) {
		err = nil // append copies in
	}
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return g, nil
}

func (g *wholeRange) append(p piece) error {
	at := g.len
	g.len += p.size
	if g.view != nil && p.ptr == 0 {
		copy(g.view[at:], p.host)
		return nil
	}
	return p.write(g.dev.raw, g.Ptr()+driver.Ptr(at))
}

// reallocating allocates new memory when it is full, and copies the old contents.
type reallocating struct {
	dev    device
	alloc  func(uint64) (driver.Ptr, error)
	free   func(driver.Ptr) error // after what the copy stream has queued
	double bool                   // the capacity, when it is not enough
	ptr    driver.Ptr
	len    uint64
	cap    uint64

	copied, peak uint64
}

func (g *reallocating) append(p piece) error {
	if need := g.len + p.size; need > g.cap {
		if g.double {
			need = max(2*g.cap, need)
		}
		if err := g.move(need); err != nil {
			return err
		}
	}
	if err := p.write(g.dev.raw, g.ptr+driver.Ptr(g.len)); err != nil {
		return err
	}
	g.len += p.size
	return nil
}

// move continues in new memory of this capacity.
func (g *reallocating) move(capacity uint64) error {
	next, err := g.alloc(capacity)
	if err != nil {
		return err
	}
	old, oldCap := g.ptr, g.cap
	g.ptr, g.cap = next, capacity
	g.peak = max(g.peak, oldCap+capacity)
	if oldCap == 0 {
		return nil
	}
	if g.len > 0 {
		err = g.dev.raw.Copy(next, old, g.len, g.dev.raw.CopyStream())
		g.copied += g.len
	}
	return errors.Join(err, g.free(old))
}

func (g *reallocating) address() any                { return g.ptr }
func (g *reallocating) cost() (copied, peak uint64) { return g.copied, g.peak }
func (g *reallocating) buffer() *buffer {
	return &buffer{dev: g.dev, ptr: g.ptr, size: g.len, chunks: []uint64{0}}
}

func (g *reallocating) close() error {
	if g.cap == 0 {
		return nil
	}
	g.cap = 0
	return g.free(g.ptr)
}

// goSlice is a Go slice that grows by append.
type goSlice struct {
	b            []byte
	release      func() // after the last use of b
	copied, peak uint64
}

func (g *goSlice) append(p piece) error {
	if p.blank() {
		return fmt.Errorf("append writes what it appends: %w", driver.ErrNotSupported)
	}
	was := g.b
	g.b = append(g.b, p.host...)
	if cap(g.b) != cap(was) {
		g.copied += uint64(len(was))
		g.peak = max(g.peak, uint64(cap(was)+cap(g.b)))
	}
	return nil
}

func (g *goSlice) address() any                { return &g.b[0] }
func (g *goSlice) cost() (copied, peak uint64) { return g.copied, g.peak }
func (g *goSlice) buffer() *buffer {
	return &buffer{host: g.b, size: uint64(len(g.b)), chunks: []uint64{0}}
}

// close gives the memory back to the system, so that the next growth has to get
// new pages as the other contenders do. A warm heap collects the garbage and
// keeps the pages.
func (g *goSlice) close() error {
	g.b = nil
	g.release()
	return nil
}
