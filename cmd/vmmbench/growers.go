package main

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"runtime/debug"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// grower is something that grows.
type grower interface {
	append(p []byte) error
	address() any // comparable: another value means that it moved
	// cost is how many bytes growing has copied, beside those appended, and
	// the most it held at once.
	cost() (copied, peak uint64)
	buffer() *buffer
	close() error
}

// starter gives a function that makes growers of a kind, and what to call when
// no more are needed. o is how ranges that grow in place are made.
func starter(dev *vmm.Device, raw driver.Device, kind string, target uint64, o vmm.RangeOptions) (func() (grower, error), func() error, error) {
	nothing := func() error { return nil }
	switch kind {
	case growVMM, growAhead:
		return func() (grower, error) { return newInPlace(dev, raw, o) }, nothing, nil
	case growKept:
		return keptStarter(dev, raw, o)
	case growWhole:
		return func() (grower, error) { return newReadyMade(dev, raw, target) }, nothing, nil
	case growAppend, growWarm:
		if !addressable(dev) {
			return nil, nil, missing(dev, "memory that a Go slice can be made of")
		}
		return func() (grower, error) { return &goSlice{warm: kind == growWarm}, nil }, nothing, nil
	}

	plain, ok := raw.(driver.Allocator)
	if !ok {
		return nil, nil, missing(dev, memName(dev, memPlain))
	}
	own := raw.CopyStream()
	switch kind {
	case growAsync:
		// A pool that gives back what is freed at each synchronise is no pool.
		if err := plain.SetPoolThreshold(math.MaxUint64); err != nil {
			return nil, nil, err
		}
		return func() (grower, error) {
			return &copying{
				raw: raw, room: exactly,
				alloc: func(n uint64) (driver.Ptr, error) { return plain.AllocAsync(n, own) },
				free:  func(p driver.Ptr) error { return plain.FreeAsync(p, own) },
			}, nil
		}, func() error { return plain.SetPoolThreshold(0) }, nil
	case growPlain, growDouble:
		room := exactly
		if kind == growDouble {
			room = doubling
		}
		return func() (grower, error) {
			return &copying{
				raw: raw, room: room, alloc: plain.AllocPlain,
				free: func(p driver.Ptr) error {
					if err := raw.SyncStream(own); err != nil {
						return err
					}
					return plain.FreePlain(p)
				},
			}, nil
		}, nothing, nil
	}
	return nil, nil, fmt.Errorf("way to grow %q: %w", kind, driver.ErrInvalid)
}

// addressable says whether the CPU has the addresses of the device's memory.
func addressable(dev *vmm.Device) bool {
	_, ok := dev.Driver().(driver.HostViewer)
	return ok && dev.Driver().Name() == "host"
}

// inPlace is a range of this project.
type inPlace struct {
	*vmm.Range
	raw driver.Device
}

func newInPlace(dev *vmm.Device, raw driver.Device, o vmm.RangeOptions) (grower, error) {
	r, err := dev.NewRange(o)
	if err != nil {
		return nil, err
	}
	return &inPlace{Range: r, raw: raw}, nil
}

// keptStarter is starter for ranges that take the chunks which the last one
// left. The warm-up, which does not count, makes them. They are kept by a Device
// of their own, out of reach of the others, who start with nothing.
func keptStarter(dev *vmm.Device, raw driver.Device, o vmm.RangeOptions) (func() (grower, error), func() error, error) {
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
	return func() (grower, error) { return newInPlace(own, raw, o) }, undo, nil
}

func (g *inPlace) append(p []byte) error { return g.Append(p) }
func (g *inPlace) address() any          { return g.Ptr() }

// cost counts look-ahead too, which may be committed and not yet be capacity.
func (g *inPlace) cost() (copied, peak uint64) { return 0, max(g.Cap(), g.Stats().Committed) }
func (g *inPlace) close() error                { return g.Close() }
func (g *inPlace) buffer() *buffer {
	return &buffer{raw: g.raw, ptr: g.Ptr(), size: g.Len(), chunks: chunkStarts(g.Range)}
}

// readyMade is a range that has all its memory, in one chunk, before the first byte
// is written: through the mapping where the CPU reaches it.
type readyMade struct {
	inPlace
	view []byte
	len  uint64
}

func newReadyMade(dev *vmm.Device, raw driver.Device, target uint64) (grower, error) {
	gran, err := dev.Driver().Granularity(driver.Prop{Location: driver.Location{Kind: driver.LocationDevice, ID: dev.Info().Ordinal}})
	if err != nil {
		return nil, err
	}
	r, err := dev.NewRange(vmm.RangeOptions{Max: target, Chunk: (target + gran - 1) / gran * gran})
	if err != nil {
		return nil, err
	}
	g := &readyMade{inPlace: inPlace{Range: r, raw: raw}}
	err = errors.Join(r.Grow(target), r.SetLen(target))
	if err == nil {
		g.view, err = r.Host()
	}
	if errors.Is(err, driver.ErrNotSupported) {
		err = nil
	}
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return g, nil
}

func (g *readyMade) append(p []byte) error {
	at := g.len
	g.len += uint64(len(p))
	if g.view != nil {
		copy(g.view[at:], p)
		return nil
	}
	return g.raw.CopyIn(g.Ptr()+driver.Ptr(at), p)
}

// copying allocates anew when it is full, and copies.
type copying struct {
	raw   driver.Device
	alloc func(uint64) (driver.Ptr, error)
	free  func(driver.Ptr) error         // in the order of the library's stream
	room  func(have, need uint64) uint64 // the next capacity
	ptr   driver.Ptr
	len   uint64
	cap   uint64

	copied, peak uint64
}

func exactly(_, need uint64) uint64     { return need }
func doubling(have, need uint64) uint64 { return max(2*have, need) }

func (g *copying) append(p []byte) error {
	if need := g.len + uint64(len(p)); need > g.cap {
		if err := g.move(g.room(g.cap, need)); err != nil {
			return err
		}
	}
	if err := g.raw.CopyIn(g.ptr+driver.Ptr(g.len), p); err != nil {
		return err
	}
	g.len += uint64(len(p))
	return nil
}

func (g *copying) move(room uint64) error {
	next, err := g.alloc(room)
	if err != nil {
		return err
	}
	old, oldCap := g.ptr, g.cap
	g.ptr, g.cap = next, room
	g.peak = max(g.peak, oldCap+room)
	if oldCap == 0 {
		return nil
	}
	if g.len > 0 {
		err = g.raw.Copy(next, old, g.len, g.raw.CopyStream())
		g.copied += g.len
	}
	return errors.Join(err, g.free(old))
}

func (g *copying) address() any                { return g.ptr }
func (g *copying) cost() (copied, peak uint64) { return g.copied, g.peak }
func (g *copying) buffer() *buffer {
	return &buffer{raw: g.raw, ptr: g.ptr, size: g.len, chunks: []uint64{0}}
}

func (g *copying) close() error {
	if g.cap == 0 {
		return nil
	}
	g.cap = 0
	return g.free(g.ptr)
}

// goSlice is a Go slice and append.
type goSlice struct {
	b            []byte
	warm         bool
	copied, peak uint64
}

func (g *goSlice) append(p []byte) error {
	was := g.b
	g.b = append(g.b, p...)
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

// close gives the memory back to the system, so that the next growth pays for
// its pages as the others do. A warm heap only collects it.
func (g *goSlice) close() error {
	g.b = nil
	if g.warm {
		runtime.GC()
		return nil
	}
	debug.FreeOSMemory()
	return nil
}
