package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/cuvmm/cuvmm/growable"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/kernel"
)

// buffer is keys or values of one layer, however they are laid out: as part of a row for all layers, or
// as a vector of their own, whose rows follow one another. Its fields are those of struct buffer below.
type buffer struct {
	First             vmm.Ptr
	Pitch, Rows, Each uint64 // bytes from row to row; rows; elements in a row
}

// code sums the elements of many buffers in one launch, a block for each.
var code = kernel.Code{
	CUDA: `
typedef unsigned long long u64;

struct buffer { const char *first; u64 pitch, rows, each; };

extern "C" __global__ void sum(const buffer *all, u64 n, u64 *sums, u64)
{
	const buffer b = all[blockIdx.x];
	u64 s = 0;
	for (u64 i = threadIdx.x; i < b.rows * b.each; i += blockDim.x)
		s += ((const unsigned short *)(b.first + i / b.each * b.pitch))[i % b.each];
	atomicAdd(&sums[blockIdx.x], s);
}
`,
	Host: kernel.Host{"sum": func(all []buffer, sums []uint64) {
		for i, b := range all {
			for row := range b.Rows {
				for _, x := range kernel.Slice[uint16](b.First+vmm.Ptr(row*b.Pitch), b.Each) {
					sums[i] += uint64(x)
				}
			}
		}
	}},
}

// keys is how many of the elements of a token are the keys of one layer; as many are its values.
const keys = width / layers / 2

// layer is the keys of a layer in rows that have keys and values of all layers.
func layer(rows *growable.Rows[uint16], l int) buffer {
	at := l * width / layers * 2 // in bytes
	return buffer{rows.Ptr() + vmm.Ptr(at), uint64(rows.Pitch()), uint64(rows.Len()), keys}
}

// whole is a vector that has the keys of one layer alone.
func whole(v *growable.Vector[uint16]) buffer {
	return buffer{v.Ptr(), 2 * keys, uint64(v.Len() / keys), keys}
}

// sumKeys sums the keys of each layer of a sequence, and those of a vector with as many of its own, in one
// launch. Only the table and the sums are arguments of the kernel, so the sequence must not sleep or close
// before the launch. Afterwards Sleep and Close wait for the kernel.
func sumKeys(w io.Writer, c *Cache, id uint64) (err error) {
	mod, err := kernel.Load(c.dev, code)
	if errors.Is(err, vmm.ErrNotSupported) { // no libnvrtc, or one that does not know this GPU
		fmt.Fprintln(w, "no kernel:", err)
		return mod.Close()
	}
	if err != nil {
		return errors.Join(err, mod.Close())
	}
	defer func() { err = errors.Join(err, mod.Close()) }()
	f, err := mod.Func("sum")
	if err != nil {
		return err
	}
	s, err := c.dev.NewStream()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	own, err := growable.New[uint16](c.dev, growable.Options{MaxLen: maxTokens * width})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, own.Close()) }()
	all, err := growable.New[buffer](c.dev, growable.Options{MaxLen: layers + 1})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, all.Close()) }()
	sums, err := growable.New[uint64](c.dev, growable.Options{MaxLen: layers + 1})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, sums.Close()) }()

	return c.Use(context.Background(), id, func(rows *growable.Rows[uint16]) error {
		var table []buffer
		for l := range layers {
			table = append(table, layer(rows, l))
		}
		var want uint64
		for token := range rows.Len() {
			x := element(id, token)
			if err := own.Append(slices.Repeat([]uint16{x}, keys)...); err != nil {
				return err
			}
			want += keys * uint64(x)
		}
		table = append(table, whole(own))
		if err := errors.Join(all.Append(table...), sums.Append(make([]uint64, len(table))...)); err != nil {
			return err
		}
		c := kernel.Config{Grid: vmm.Dim{X: uint32(len(table))}, Block: vmm.Dim{X: 128}}
		if err := errors.Join(f.Launch(s, c, kernel.Read(all), sums), s.Sync()); err != nil {
			return err
		}
		got := make([]uint64, len(table))
		if _, err := sums.ReadAt(got, 0); err != nil {
			return err
		}
		for i, sum := range got {
			if sum != want {
				return fmt.Errorf("the keys of buffer %d have the sum %d, not %d", i, sum, want)
			}
		}
		fmt.Fprintf(w, "one launch has read the keys of %d layers, and a vector of one\n", layers)
		return nil
	})
}
