package kernel

import (
	_ "embed"
	"fmt"
	"math"
	"sync"
	"sync/atomic"

	"github.com/cuvmm/cuvmm/internal/inside"
	"github.com/cuvmm/cuvmm/vmm"
)

// Builtins are the kernels that this package brings along, on one device: they fill and
// verify patterns, count, reduce, compact, and move rows. On host memory Go functions do the
// same. Safe for concurrent use. The caller must Close it.
//
// A call that returns a result waits for its stream, and for no other; the others return
// once their work is queued. Memory of elements is a growable.Vector of that type, or a
// Range of whole elements.
type Builtins struct {
	mod     *Module
	funcs   map[string]*Func
	blocks  uint32       // that fill the device
	scratch *vmm.Range   // scratchSlots pieces of scratchSize
	free    chan uint64  // offsets of the pieces that are not in use
	lost    atomic.Int32 // pieces that may be in use for ever
}

// builtinPTX is made by `make kernels`.
//
//go:embed device/builtin.ptx
var builtinPTX []byte

// builtinParams is ptxParams of it, which takes milliseconds.
var builtinParams = sync.OnceValue(func() map[string][]vmm.Param { return ptxParams(builtinPTX) })

const (
	builtinThreads = 256
	maxBlocks      = 4096 // partial results of a reduction

	// A piece of scratch memory has a result, a ticket, and the partial results.
	scratchTicket   = 64
	scratchPartials = 128
	scratchSize     = scratchPartials + 8*maxBlocks
	scratchSlots    = 16
)

// LoadBuiltins loads the kernels on the device. On a GPU of compute capability below 7.5
// it returns vmm.ErrNotSupported. The caller must Close it.
func LoadBuiltins(dev *vmm.Device) (*Builtins, error) {
	mod, err := load(dev, Code{Image: builtinPTX, Host: hostBuiltins()}, func([]byte) map[string][]vmm.Param { return builtinParams() })
	if err != nil {
		return nil, err
	}
	b := &Builtins{mod: mod, funcs: map[string]*Func{}, free: make(chan uint64, scratchSlots)}
	if err := b.prepare(dev); err != nil {
		return nil, fmt.Errorf("load built-in kernels: %w", inside.VMM.Discard(dev, err, b.Close))
	}
	return b, nil
}

func (b *Builtins) prepare(dev *vmm.Device) (err error) {
	for name := range hostBuiltins() {
		if b.funcs[name], err = b.mod.Func(name); err != nil {
			return err
		}
	}
	if _, b.blocks, err = b.funcs["cuvmm_sum_u32"].SuggestBlock(0); err != nil {
		return err
	}
	b.blocks = min(max(b.blocks, 1), maxBlocks)
	// Tickets must be 0, and are again after each use.
	b.scratch, err = dev.NewRange(vmm.RangeOptions{Max: scratchSlots * scratchSize})
	if err != nil {
		return err
	}
	if err := b.scratch.Append(make([]byte, scratchSlots*scratchSize)); err != nil {
		return err
	}
	for i := range uint64(scratchSlots) {
		b.free <- i * scratchSize
	}
	return nil
}

// Close gives memory and code back, after waiting for the work of the device's context.
// Twice is fine, and so is a nil Builtins.
func (b *Builtins) Close() error {
	if b == nil {
		return nil
	}
	// The code first: from then on no launch uses the scratch memory.
	if err := b.mod.Close(); err != nil {
		return err
	}
	return b.scratch.Close()
}

// fixed is memory as it was when it was looked at.
type fixed vmm.MemoryArg

func (f fixed) MemoryArg(m *vmm.MemoryArg) { *m = vmm.MemoryArg(f) }

// argOf is what m is now.
func argOf(m Memory) (a vmm.MemoryArg) {
	if m != nil {
		m.MemoryArg(&a)
	}
	return a
}

// elements is memory as n elements of size bytes.
func elements(m Memory, size uint64) (at fixed, n uint64, err error) {
	a := argOf(m)
	if err := a.Err(); err != nil {
		return at, 0, err
	}
	switch {
	case a.Addr == 0:
		return at, 0, fmt.Errorf("%w: no memory", vmm.ErrInvalid)
	case a.Stride != 1 && a.Stride != size:
		return at, 0, fmt.Errorf("%w: elements of %d bytes, not %d", vmm.ErrInvalid, a.Stride, size)
	case a.Size%size != 0 || uint64(a.Addr)%size != 0:
		return at, 0, fmt.Errorf("%w: %d bytes at %v are no whole elements of %d", vmm.ErrInvalid, a.Size, a.Addr, size)
	}
	return fixed(a), a.Size / size, nil
}

// tiles is a launch with a block for each tile of n bytes: the fastest for kernels that
// keep nothing from one tile to the next.
func tiles(n uint64) Config {
	return Over(max((n+tileBytes-1)/tileBytes, 1)*builtinThreads, builtinThreads)
}

// few is a launch with as many blocks as run at once, which do all tiles of n bytes: the
// fastest for kernels whose blocks have a result each.
func (b *Builtins) few(n uint64) Config {
	c := tiles(n)
	c.Grid.X = min(c.Grid.X, b.blocks)
	return c
}

// tileBytes is what a block reads at a time.
const tileBytes = builtinThreads * 16 * 4

func (b *Builtins) launch(name string, s *vmm.Stream, c Config, args ...any) error {
	if b == nil || b.mod == nil {
		return fmt.Errorf("%w: no built-in kernels", vmm.ErrInvalid)
	}
	return b.funcs[name].Launch(s, c, args...)
}

// withScratch runs f, which queues work that uses a piece of scratch memory and waits for
// it. A captured stream is refused: the work would become part of its graph.
func (b *Builtins) withScratch(s *vmm.Stream, f func(result vmm.Ptr) error) error {
	if b == nil || b.mod == nil {
		return fmt.Errorf("%w: no built-in kernels", vmm.ErrInvalid)
	}
	// Held, so that it can be waited for whatever happens.
	_, capturing, release, err := s.Hold()
	if err != nil {
		return err
	}
	defer release()
	if capturing {
		return fmt.Errorf("%w: the result is waited for", vmm.ErrCapturing)
	}
	at, ok := <-b.free // waits if more calls are under way than there are pieces
	if !ok {
		return fmt.Errorf("%w: after errors all scratch memory may still be in use", vmm.ErrBusy)
	}
	err = f(b.scratch.Ptr() + vmm.Ptr(at))
	// After an error the work may still run; while it may, no other call gets the piece.
	if err == nil || s.Sync() == nil {
		b.free <- at
	} else if b.lost.Add(1) == scratchSlots {
		close(b.free) // nothing comes back any more
	}
	return err
}

// FillPattern queues the pattern, from its beginning, over all of m. The address must be a
// multiple of 8.
func (b *Builtins) FillPattern(s *vmm.Stream, m Memory, p Pattern) error {
	at, n, err := elements(asBytes{m}, 1)
	if err != nil || n == 0 {
		return opErr("fill pattern", err)
	}
	return opErr("fill pattern", b.launch("cuvmm_fill_pattern", s, tiles(n), Pointer(at), n, p.Seed))
}

// VerifyPattern compares m with what FillPattern writes, and returns how many bytes differ
// and the offset of the first; 0 and 0 if none does.
func (b *Builtins) VerifyPattern(s *vmm.Stream, m Memory, p Pattern) (bad, first uint64, err error) {
	at, n, err := elements(asBytes{m}, 1)
	if err != nil || n == 0 {
		return 0, 0, opErr("verify pattern", err)
	}
	err = b.withScratch(s, func(result vmm.Ptr) error {
		res := [2]uint64{math.MaxUint64, 0}
		if err := s.CopyIn(result, rawBytes(&res)); err != nil {
			return err
		}
		if err := b.launch("cuvmm_verify_pattern", s, tiles(n), Read(Pointer(at)), n, p.Seed, result); err != nil {
			return err
		}
		if err := s.CopyOut(rawBytes(&res), result); err != nil {
			return err
		}
		if first, bad = res[0], res[1]; bad == 0 {
			first = 0
		}
		return nil
	})
	return bad, first, opErr("verify pattern", err)
}

// asBytes is any memory as bytes.
type asBytes struct{ m Memory }

func (b asBytes) MemoryArg(m *vmm.MemoryArg) {
	*m = argOf(b.m)
	m.Count, m.Stride = m.Size, 1
}

// opErr names the operation in an error.
func opErr(op string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", op, err)
}

// Number is an element type of the built-in kernels.
type Number interface {
	int32 | uint32 | int64 | uint64 | float32 | float64
}

// typeName is the suffix of the kernels for T.
func typeName[T Number]() string {
	var z T
	switch any(z).(type) {
	case int32:
		return "i32"
	case uint32:
		return "u32"
	case int64:
		return "i64"
	case uint64:
		return "u64"
	case float32:
		return "f32"
	}
	return "f64"
}
