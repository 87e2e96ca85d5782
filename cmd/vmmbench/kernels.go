package main

import (
	"cmp"
	"context"
	_ "embed"
	"encoding/binary"
	"errors"
	"sync"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/verify"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/kernel"
)

// kernels are the built-in kernels on a device, and a stream for them. They are loaded when
// they are first needed.
type kernels struct {
	dev    device // without kernels
	tried  sync.Once
	err    error // why they could not be loaded
	all    *kernel.Builtins
	stream *vmm.Stream
	undo   undo

	// Of bench.ptx; nil before they are needed.
	copyBoth, chase *kernel.Func
	processors      uint32 // of the device, each of which runs a block of chase
}

// load returns the kernels. Its error is ErrNotSupported where the device runs none.
func (k *kernels) load() (*kernel.Builtins, error) {
	k.tried.Do(func() { k.err = k.open() })
	return k.all, k.err
}

func (k *kernels) open() (err error) {
	defer func() { onError(&err, k.close) }()
	if k.all, err = kernel.LoadBuiltins(k.dev.Device); err != nil {
		return err
	}
	k.undo.add(k.all.Close)
	if k.stream, err = k.dev.NewStream(); err != nil {
		return err
	}
	k.undo.add(k.stream.Close)
	return k.onBuffer(128<<10, k.try)
}

// close frees the kernels, if they were loaded.
func (k *kernels) close() error {
	k.all, k.chase = nil, nil
	return k.undo.close()
}

// onBuffer calls f with memory of n bytes that the host fills and checks.
func (k *kernels) onBuffer(n uint64, f func(*buffer) error) error {
	b, err := newBuffer(k.dev, memVMM, shape{size: n})
	if err != nil {
		return err
	}
	return errors.Join(f(b), k.stream.Sync(), b.free())
}

var errWrongKernels = errors.New("the device's kernels do not fill, copy and compare as the host does")

// try makes sure that the kernels do what the host does: that they write its pattern, copy
// it, and find nothing but a byte that the host has changed. Besides, the first launch of a
// kernel may wait for the device, which a launch behind a gate must not; here is none.
func (k *kernels) try(b *buffer) error {
	const flipped = 20001
	n, p, ctx := b.size/2, verify.Pattern{Seed: 1}, context.Background()
	low, high := b.part(0, n), b.part(n, n)
	if err := cmp.Or(k.fill(low, p), k.all.Copy(k.stream, high, low), k.stream.Sync()); err != nil {
		return err
	}
	copied, err := high.check(ctx, p, verify.Full, high.chunks) // by the host
	if err == nil && copied.Errors > 0 {
		err = errWrongKernels
	}
	errFlip := high.flip(flipped)
	found, errFind := k.check(ctx, p, verify.Full, n, high.chunks, high.ptr, high.view)
	if err := cmp.Or(err, errFlip, errFind); err != nil {
		return err
	}
	if found.Errors != 1 || found.FirstBad.Offset != flipped {
		return errWrongKernels
	}
	return nil
}

// fill writes the pattern and waits for it.
func (k *kernels) fill(b *buffer, p verify.Pattern) error {
	return cmp.Or(k.all.FillPattern(k.stream, b, kernel.Pattern(p)), k.stream.Sync())
}

// check compares n bytes at an address with the pattern, by the kernels, or by the host if k is
// nil. view reads them back.
func (k *kernels) check(ctx context.Context, p verify.Pattern, mode verify.Mode, n uint64, chunks []uint64, at driver.Ptr, view verify.View) (verify.Result, error) {
	if k == nil {
		return p.Check(ctx, mode, n, chunks, view)
	}
	return p.CheckBy(ctx, mode, n, chunks, func(off, n uint64, p verify.Pattern) (bad, first uint64, err error) {
		return k.all.VerifyPattern(k.stream, &buffer{ptr: at + driver.Ptr(off), size: n}, kernel.Pattern(p))
	}, view)
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

// loadBench loads the kernels of bench.ptx, and launches each: see try.
func (k *kernels) loadBench() error {
	if _, err := k.load(); err != nil || k.chase != nil {
		return err
	}
	mod, err := kernel.Load(k.dev.Device, kernel.Code{Image: benchPTX, Host: kernel.Host{"copyboth": hostCopyBoth, "chase": hostChase}})
	if err != nil {
		return err
	}
	k.undo.add(mod.Close)
	both, errBoth := mod.Func("copyboth")
	chase, errChase := mod.Func("chase")
	threads, blocks, errBlock := chase.SuggestBlock(0)
	each, err := chase.Occupancy(threads, 0)
	if err := cmp.Or(errBoth, errChase, errBlock, err); err != nil {
		return err
	}
	k.copyBoth = both
	k.processors = max(blocks/uint32(max(each, 1)), 1)
	err = k.onBuffer(8*wordsApart, func(b *buffer) error {
		one := kernel.Config{Grid: vmm.Dim{X: 1}, Block: vmm.Dim{X: 1}}
		return cmp.Or(chase.Launch(k.stream, one, b.ptr, b.size/8, uint64(b.ptr), uint32(0), uint32(0)), k.both(k.stream, transfer{b, b}, transfer{b, b}, 0))
	})
	if err == nil {
		k.chase = chase
	}
	return err
}

// both queues two transfers of n bytes each, a multiple of 16, by one kernel.
func (k *kernels) both(s *vmm.Stream, there, back transfer, n uint64) error {
	return k.copyBoth.Launch(s, kernel.Over(max(2*roundUp(n/16, 32), 1), 1024),
		there.dst.ptr, kernel.Read(there.src.ptr), back.dst.ptr, kernel.Read(back.src.ptr), n/16)
}

func hostCopyBoth(toA, fromA, toB, fromB vmm.Ptr, n uint64) {
	copy(kernel.Slice[byte](toA, n*16), kernel.Slice[byte](fromA, n*16))
	copy(kernel.Slice[byte](toB, n*16), kernel.Slice[byte](fromB, n*16))
}

func hostChase(at vmm.Ptr, n, base uint64, steps, _ uint32) {
	words, next := kernel.Slice[uint64](at, n), base
	for range steps {
		next = words[(next-base)/8]
	}
	words[1] = next
}

// Sizes of a chase. As in nvbandwidth, memory has 2 MiB and each step goes on by 128 bytes,
// a line of the cache. No launch comes to a line twice.
const (
	chaseSize  = 2 << 20
	wordsApart = 16
	chaseSteps = 1e5 // of a repetition, about, shared by all processors
)

// chase is loads of which each needs the one before: the time of one is the latency of
// the memory. The device's processors do it one after the other.
type chase struct {
	k        *kernels
	in       *buffer
	steps    int    // of one repetition
	perBlock uint32 // of them
}

// newChase writes the pointers: word i has the address of word i + wordsApart.
func newChase(k *kernels, in *buffer) (*chase, error) {
	if err := k.loadBench(); err != nil {
		return nil, err
	}
	x := &chase{k: k, in: in, perBlock: max(uint32(chaseSteps)/k.processors, 1)}
	x.steps = int(x.perBlock * k.processors)
	all := make([]byte, in.size)
	for i := uint64(0); i < in.size; i += 8 {
		binary.NativeEndian.PutUint64(all[i:], uint64(in.ptr)+(i+8*wordsApart)%in.size)
	}
	return x, in.write(0, all)
}

// queue queues a repetition: each processor makes its steps, one after the other.
func (x *chase) queue(on *vmm.Stream) error {
	for block := range x.k.processors {
		c := kernel.Config{Grid: vmm.Dim{X: x.k.processors}, Block: vmm.Dim{X: 1}}
		if err := x.k.chase.Launch(on, c, x.in.ptr, x.in.size/8, uint64(x.in.ptr), x.perBlock, block); err != nil {
			return err
		}
	}
	return nil
}

// verify makes the steps once more, and checks where they have ended.
func (x *chase) verify(ctx context.Context, c *copier, mode verify.Mode, corrupt int64) (verify.Result, error) {
	r := verify.Result{Mode: mode, Bytes: 8}
	if err := x.in.part(8, 8).poison(ctx); err != nil {
		return r, err
	}
	if _, err := c.measure(ctx, 1); err != nil {
		return r, err
	}
	errFlip := x.in.flip(corrupt)
	got, err := x.in.view(make([]byte, 8), 8, 8)
	if err := cmp.Or(errFlip, err); err != nil {
		return r, err
	}
	want := binary.NativeEndian.AppendUint64(nil, uint64(x.in.ptr)+uint64(x.perBlock)*8*wordsApart%x.in.size)
	for i := range want {
		if want[i] != got[i] {
			r.Add(verify.Result{Errors: 1, FirstBad: &verify.Bad{Offset: uint64(8 + i), Expected: want[i], Got: got[i]}})
		}
	}
	return r, nil
}
