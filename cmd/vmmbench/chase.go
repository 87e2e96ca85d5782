package main

import (
	"context"
	"encoding/binary"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/verify"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/kernel"
)

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
	k        *benchKernels
	in       *buffer
	steps    int    // of one repetition
	perBlock uint32 // of them
}

// newChase writes the pointers: word i has the address of word i + wordsApart.
func newChase(by device, in *buffer) (*chase, error) {
	k, err := by.kernels.loadBench()
	if err != nil {
		return nil, err
	}
	x := &chase{k: k, in: in, perBlock: max(uint32(chaseSteps)/k.processors, 1)}
	x.steps = int(x.perBlock * k.processors)
	all := in.host
	if all == nil {
		all = make([]byte, in.size)
	}
	for i := uint64(0); i < in.size; i += 8 {
		binary.NativeEndian.PutUint64(all[i:], uint64(in.ptr)+(i+8*wordsApart)%in.size)
	}
	if in.host != nil {
		return x, nil
	}
	return x, in.dev.raw.CopyIn(in.ptr, all)
}

// queue queues a repetition: each processor makes its steps, one after the other.
func (x *chase) queue(on *vmm.Stream) error {
	for block := range x.k.processors {
		err := x.k.chase.Launch(on, kernel.Config{Grid: vmm.Dim{X: x.k.processors}, Block: vmm.Dim{X: 1}},
			words{x.in.span()}, uint64(x.in.ptr), x.perBlock, block)
		if err != nil {
			return err
		}
	}
	return nil
}

// verify makes the steps once more, and checks where they have ended.
func (x *chase) verify(ctx context.Context, c *copier, mode verify.Mode, corrupt int64) (verify.Result, error) {
	r := verify.Result{Mode: mode, Bytes: 8}
	end := x.in.part(8, 8)
	if err := end.poison(ctx); err != nil {
		return r, err
	}
	if _, err := c.measure(ctx, 1); err != nil {
		return r, err
	}
	if err := x.in.flip(corrupt); err != nil {
		return r, err
	}
	got, err := end.view(make([]byte, 8), 0, 8)
	if err != nil {
		return r, err
	}
	want := make([]byte, 8)
	binary.NativeEndian.PutUint64(want, uint64(x.in.ptr)+uint64(x.perBlock)*8*wordsApart%x.in.size)
	for i := range want {
		if want[i] != got[i] {
			r.Add(verify.Result{Errors: 1, FirstBad: &verify.Bad{Offset: uint64(8 + i), Expected: want[i], Got: got[i]}})
		}
	}
	return r, nil
}
