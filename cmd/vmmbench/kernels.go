package main

import (
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/verify"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/kernel"
)

// kernels are the built-in kernels on a device, and a stream for them. They are loaded when
// they are first needed.
type kernels struct {
	dev    *vmm.Device
	tried  bool
	err    error // why they could not be loaded
	all    *kernel.Builtins
	stream *vmm.Stream
	bench  *benchKernels // nil before they are needed
	undo   undo
}

// load returns the kernels. Its error is ErrNotSupported where the device runs none.
func (k *kernels) load() (*kernel.Builtins, error) {
	if !k.tried {
		k.tried, k.err = true, k.open()
	}
	return k.all, k.err
}

func (k *kernels) open() (err error) {
	defer func() { onError(&err, k.close) }()
	if k.all, err = kernel.LoadBuiltins(k.dev); err != nil {
		return err
	}
	k.undo.add(k.all.Close)
	if k.stream, err = k.dev.NewStream(); err != nil {
		return err
	}
	k.undo.add(k.stream.Close)
	return k.onRange(2*tryBytes, k.try)
}

// close frees the kernels, if they were loaded.
func (k *kernels) close() error {
	k.all, k.bench = nil, nil
	return k.undo.close()
}

// onRange calls f with memory of n bytes.
func (k *kernels) onRange(n uint64, f func(at driver.Ptr) error) error {
	r, err := grownRange(device{Device: k.dev}, shape{size: n})
	if err != nil {
		return err
	}
	return errors.Join(f(r.Ptr()), k.stream.Sync(), r.Close())
}

var errWrongKernels = errors.New("the device's kernels do not fill, copy and compare as the host does")

const tryBytes = 64 << 10

// try makes sure that the kernels do what the host does: that they write its pattern, copy
// it, and find a byte that the host has changed. Besides, the first launch of a kernel may
// wait for the device, which a launch behind a gate must not; here is none.
func (k *kernels) try(at driver.Ptr) error {
	const flipped = 20001
	low, high := span{at, tryBytes, vmm.AccessReadWrite}, span{at + tryBytes, tryBytes, vmm.AccessReadWrite}
	seed := kernel.Pattern{Seed: 1}
	want, got := make([]byte, tryBytes), make([]byte, tryBytes)
	verify.Pattern(seed).Fill(want, 0)

	err := cmp.Or(k.all.FillPattern(k.stream, low, seed), k.all.Copy(k.stream, high, low), k.stream.Sync(), k.dev.CopyOut(got, high.at))
	if err == nil && !bytes.Equal(got, want) {
		err = errWrongKernels
	}
	if err := cmp.Or(err, k.dev.CopyIn(high.at+flipped, []byte{^want[flipped]})); err != nil {
		return err
	}
	// low is still as it was filled.
	for _, x := range []struct {
		in         span
		bad, first uint64
	}{{low, 0, 0}, {high, 1, flipped}} {
		bad, first, err := k.all.VerifyPattern(k.stream, x.in, seed)
		if err == nil && (bad != x.bad || first != x.first) {
			err = fmt.Errorf("%w: they count %d wrong bytes instead of %d", errWrongKernels, bad, x.bad)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// fill writes the pattern and waits for it.
func (k *kernels) fill(m span, p verify.Pattern) error {
	return cmp.Or(k.all.FillPattern(k.stream, m, kernel.Pattern(p)), k.stream.Sync())
}

// check compares n bytes at an address with the pattern, by the kernels, or by the host if k is
// nil. view reads them back.
func (k *kernels) check(ctx context.Context, p verify.Pattern, mode verify.Mode, n uint64, chunks []uint64, at driver.Ptr, view verify.View) (verify.Result, error) {
	if k == nil {
		return p.Check(ctx, mode, n, chunks, view)
	}
	return p.CheckBy(ctx, mode, n, chunks, func(off, n uint64, p verify.Pattern) (bad, first uint64, err error) {
		return k.all.VerifyPattern(k.stream, span{at + driver.Ptr(off), n, vmm.AccessRead}, kernel.Pattern(p))
	}, view)
}

// span is memory as a kernel takes it, of whichever kind.
type span struct {
	at     driver.Ptr
	size   uint64
	access vmm.Access
}

// MemoryArg implements kernel.Memory.
func (s span) MemoryArg(m *vmm.MemoryArg) {
	*m = vmm.MemoryArg{Span: vmm.Span{Addr: s.at, Size: s.size, Access: s.access}, Count: s.size, Stride: 1}
}

// words is memory as a kernel takes its words of 8 bytes.
type words struct{ span }

// MemoryArg implements kernel.Memory.
func (w words) MemoryArg(m *vmm.MemoryArg) {
	w.span.MemoryArg(m)
	m.Count, m.Stride = w.size/8, 8
}

// loadKernels loads what will fill and compare the memory of devices, before memory that is
// measured fills them. Whoever needs the kernels gets the error.
func loadKernels(devs []device) {
	for _, dev := range devs {
		_, _ = dev.ownKernels()
	}
}

// ownKernels returns the kernels that fill and compare the device's memory, nil if it is
// copied to the host for that: it is the host's, or the device runs no kernels.
func (d device) ownKernels() (*kernels, error) {
	if d.kernels == nil || !d.checksItself() {
		return nil, nil
	}
	switch _, err := d.kernels.load(); {
	case errors.Is(err, vmm.ErrNotSupported):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return d.kernels, nil
}

//go:embed bench.ptx
var benchPTX []byte

// benchKernels are the kernels of bench.ptx on a device.
type benchKernels struct {
	copyBoth, chase *kernel.Func
	processors      uint32 // of the device, each of which runs a block of chase
}

// loadBench returns the kernels of bench.ptx, after a launch of each: see try.
func (k *kernels) loadBench() (*benchKernels, error) {
	if _, err := k.load(); err != nil || k.bench != nil {
		return k.bench, err
	}
	mod, err := kernel.Load(k.dev, kernel.Code{Image: benchPTX, Host: kernel.Host{"copyboth": hostCopyBoth, "chase": hostChase}})
	if err != nil {
		return nil, err
	}
	b := &benchKernels{}
	if err := b.prepare(k, mod); err != nil {
		return nil, errors.Join(err, mod.Close())
	}
	k.undo.add(mod.Close)
	k.bench = b
	return b, nil
}

func (b *benchKernels) prepare(k *kernels, mod *kernel.Module) (err error) {
	if b.copyBoth, err = mod.Func("copyboth"); err != nil {
		return err
	}
	if b.chase, err = mod.Func("chase"); err != nil {
		return err
	}
	threads, blocks, err := b.chase.SuggestBlock(0)
	if err != nil {
		return err
	}
	each, err := b.chase.Occupancy(threads, 0)
	if err != nil {
		return err
	}
	b.processors = max(blocks/uint32(max(each, 1)), 1)
	const n = 4 * wordsApart * 8
	return k.onRange(n, func(at driver.Ptr) error {
		all := span{at, n, vmm.AccessReadWrite}
		one := kernel.Config{Grid: vmm.Dim{X: 1}, Block: vmm.Dim{X: 1}}
		return cmp.Or(b.chase.Launch(k.stream, one, words{all}, uint64(at), uint32(0), uint32(0)), b.both(k.stream, all, all, all, all, 0))
	})
}

// both queues two copies of n bytes each, a multiple of 16, by one kernel.
func (b *benchKernels) both(s *vmm.Stream, toA, fromA, toB, fromB span, n uint64) error {
	return b.copyBoth.Launch(s, kernel.Over(max(2*roundUp(n/16, 32), 1), 1024),
		kernel.Pointer(toA), kernel.Read(kernel.Pointer(fromA)), kernel.Pointer(toB), kernel.Read(kernel.Pointer(fromB)), n/16)
}

func hostCopyBoth(toA, fromA, toB, fromB vmm.Ptr, n uint64) {
	copy(kernel.Slice[byte](toA, n*16), kernel.Slice[byte](fromA, n*16))
	copy(kernel.Slice[byte](toB, n*16), kernel.Slice[byte](fromB, n*16))
}

func hostChase(words []uint64, base uint64, steps, _ uint32) {
	at := base
	for range steps {
		at = words[(at-base)/8]
	}
	words[1] = at
}
