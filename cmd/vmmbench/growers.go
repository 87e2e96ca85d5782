package main

import (
	"cmp"
	"errors"
	"fmt"
	"math"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/pool"
)

// grower is a container that grows. more appends a piece, and free gives the memory back. The size is
// how much was appended so far.
type grower struct {
	buffer
	more   func(piece *buffer) error
	r      *vmm.Range // nil if it is none
	copied uint64     // bytes that growing has copied, without those appended
	peak   uint64     // the most memory that it held at once; not set of a range
}

// address changes when the container moves.
func (g *grower) address() any {
	if g.ptr != 0 || len(g.host) == 0 {
		return g.ptr
	}
	return &g.host[0]
}

// write copies a piece behind what is there, and has finished when it returns. A piece without an
// address has nothing to copy.
func (g *grower) write(piece *buffer) error {
	dst, raw := g.ptr+driver.Ptr(g.size), g.dev.raw
	switch {
	case piece.ptr != 0:
		own := raw.CopyStream()
		if err := raw.Copy(dst, piece.ptr, piece.size, own); err != nil {
			return err
		}
		return raw.SyncStream(own)
	case piece.host != nil:
		return raw.CopyIn(dst, piece.host)
	}
	return nil
}

// growWay is a way to grow.
type growWay struct {
	word, help string // as --mem takes it
	mem, label string // the report's name: the memory, unless it is the host's own, and how it grows
	chunks     bool   // in place, by chunks of each size
	// prepare returns the device to use and a function to call when no more grow. It may be nil.
	prepare func(device) (device, func() error, error)
	// start makes an empty grower. The options are those of ranges; Max is what it grows to.
	start func(device, vmm.RangeOptions) (*grower, error)
}

// growWays are the ways to grow. The last is not measured unless it is asked for.
var growWays = []growWay{
	{"vmm", "in place", memVMM, "", true, nil, growInPlace},
	{"ahead", "in place, with memory that is mapped before it is needed", memVMM, "-ahead", true, nil, growInPlace},
	{"kept", "in place, from chunks that an earlier growth released", memVMM, "-kept", true, keepChunks, growInPlace},
	{"whole", "no growth: the same bytes into one chunk of the final size", memVMM, "-whole", false, nil, fillOneChunk},
	{"plain", "a new allocation at each step, and a copy of the old one", memPlain, "-copy", false, nil, growByCopy(memPlain, 0)},
	{"double", "the same, but only when the old one is full, and twice as large",
		memPlain, "-double", false, nil, growByCopy(memPlain, 2)},
	{"async", "as plain, from the device's pool, which keeps its memory",
		memAsync, "-copy", false, keepPool, growByCopy(memAsync, 0)},
	{"remap", "mremap on the host, which moves pages to a larger range and copies nothing", "", "mremap", false, nil, growByRemap},
	{"append", "Go's append on the host, with new pages from the system as for the others",
		"", "go-append", false, nil, growByAppend(func(s *settings) { s.freeMemory() })},
	{"warm", "the same in a heap that keeps its pages; not beside append, which gives them back",
		"", "go-append-warm", false, nil, growByAppend(func(s *settings) { s.collect() })},
}

// name is the report's.
func (w growWay) name(dev device) string { return memName(dev, w.mem) + w.label }

// growInPlace is the way of this project's ranges.
func growInPlace(dev device, o vmm.RangeOptions) (*grower, error) {
	r, err := dev.NewRange(o)
	if err != nil {
		return nil, err
	}
	g := &grower{r: r, buffer: buffer{dev: dev, ptr: r.Ptr(), free: r.Close}}
	g.more = func(piece *buffer) error {
		if piece.ptr == 0 && piece.host != nil {
			return r.Append(piece.host)
		}
		if err := r.Grow(piece.size); err != nil {
			return err
		}
		if err := g.write(piece); err != nil {
			return err
		}
		return r.SetLen(g.size + piece.size)
	}
	return g, nil
}

// keepChunks has ranges take the chunks which the range before them released. The warm-up, which
// does not count, makes the chunks. A Device of its own keeps them, so that the other contenders
// start with nothing.
func keepChunks(dev device) (device, func() error, error) {
	own, err := vmm.OpenDriver(dev.Driver(), dev.Info().Ordinal)
	if err != nil {
		return dev, nil, err
	}
	dev.Device = own
	own.SetReleaseThreshold(math.MaxUint64)
	return dev, own.Close, nil
}

// fillOneChunk makes a range that has all its memory, in one chunk, before the first byte is written.
func fillOneChunk(dev device, o vmm.RangeOptions) (*grower, error) {
	gran, err := dev.Driver().Granularity(driver.Prop{Location: location(dev)})
	if err != nil {
		return nil, err
	}
	o.Chunk = roundUp(o.Max, gran)
	g, err := growInPlace(dev, o)
	if err != nil {
		return nil, err
	}
	err = g.r.Grow(o.Max)
	onError(&err, g.free)
	return g, err
}

// growByCopy is the way of memory that moves. When it is full, its contents are copied to new memory,
// which is as large as needed and at least so many times as large as the old.
func growByCopy(kind string, times uint64) func(device, vmm.RangeOptions) (*grower, error) {
	return func(dev device, _ vmm.RangeOptions) (*grower, error) {
		g := &grower{buffer: buffer{dev: dev, free: noUndo}}
		var has uint64 // its capacity
		g.more = func(piece *buffer) error {
			if need := g.size + piece.size; need > has {
				need = max(need, times*has)
				g.peak, has = max(g.peak, has+need), need
				if err := g.move(kind, need); err != nil {
					return err
				}
			}
			return g.write(piece)
		}
		return g, nil
	}
}

// move continues in new memory of this capacity.
func (g *grower) move(kind string, capacity uint64) error {
	next, err := newBuffer(g.dev, kind, shape{size: capacity})
	if err != nil {
		return err
	}
	free, own := next.free, g.dev.raw.CopyStream()
	if kind != memAsync { // which the stream orders, so nothing is waited for
		free = func() error { return errors.Join(g.dev.raw.SyncStream(own), next.free()) }
	}
	old := g.buffer
	g.ptr, g.free = next.ptr, free
	if g.size > 0 {
		err = g.dev.raw.Copy(g.ptr, old.ptr, g.size, own)
		g.copied += g.size
	}
	return errors.Join(err, old.free())
}

// keepPool makes the device's current pool keep what is freed. By default the pool gives
// it back at each synchronise, and every allocation would be a new one.
func keepPool(dev device) (same device, restore func() error, err error) {
	p, err := pool.DriverCurrent(dev.Device)
	if err != nil {
		return dev, nil, err
	}
	old, err := p.ReleaseThreshold()
	err = cmp.Or(err, p.SetReleaseThreshold(math.MaxUint64))
	onError(&err, p.Close)
	before := undo{p.Close, func() error { return p.SetReleaseThreshold(old) }}
	return dev, before.close, err
}

// addressable reports whether the CPU has the addresses of the device's memory.
func addressable(dev device) bool {
	_, ok := dev.Driver().(driver.HostViewer)
	return ok && onHost(dev)
}

// growByRemap is the way of mremap. Pages move to other addresses unless those behind them are
// free.
func growByRemap(_ device, _ vmm.RangeOptions) (*grower, error) {
	g := &grower{buffer: buffer{free: noUndo}}
	g.more = func(piece *buffer) error {
		mem, err := remapMemory(g.host, g.size+piece.size)
		if err != nil {
			return err
		}
		g.host, g.peak, g.free = mem, uint64(len(mem)), func() error { return unmapMemory(mem) }
		copy(mem[g.size:], piece.host)
		return nil
	}
	return g, nil
}

// growByAppend is the way of a Go slice. release is called after the last use of the slice. It gives
// the memory back to the system, so that the next growth has to get new pages as the other contenders
// do. In a warm heap it only collects the garbage.
func growByAppend(release func(*settings)) func(device, vmm.RangeOptions) (*grower, error) {
	return func(dev device, _ vmm.RangeOptions) (*grower, error) {
		g := &grower{}
		g.more = func(piece *buffer) error {
			if piece.ptr == 0 && piece.host == nil {
				return fmt.Errorf("append writes what it appends: %w", driver.ErrNotSupported)
			}
			was := cap(g.host)
			g.host = append(g.host, piece.host...)
			if cap(g.host) != was {
				g.copied += g.size
				g.peak = max(g.peak, uint64(was+cap(g.host)))
			}
			return nil
		}
		g.free = func() error {
			g.host = nil
			release(dev.settings)
			return nil
		}
		return g, nil
	}
}
