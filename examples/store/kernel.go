package main

import (
	"encoding/binary"
	"errors"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/kernel"
)

// code is the kernels of the writer and the reader, for GPUs and for host memory.
var code = kernel.Code{
	CUDA: `
typedef unsigned long long u64;

extern "C" __global__ void add(unsigned char *x, u64 n, unsigned char what)
{
	u64 threads = (u64)gridDim.x * blockDim.x;
	for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += threads)
		x[i] += what;
}

extern "C" __global__ void sum(const unsigned char *x, u64 n, u64 *total)
{
	u64 threads = (u64)gridDim.x * blockDim.x, part = 0;
	for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += threads)
		part += x[i];
	atomicAdd(total, part);
}
`,
	Host: kernel.Host{
		"add": func(x []byte, what uint8) {
			for i := range x {
				x[i] += what
			}
		},
		"sum": func(x []byte, total vmm.Ptr) {
			for _, b := range x {
				kernel.Slice[uint64](total, 1)[0] += uint64(b)
			}
		},
	},
}

// launch runs a kernel, and returns when it has finished.
func launch(dev *vmm.Device, name string, args ...any) (err error) {
	mod, err := kernel.Load(dev, code)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, mod.Close()) }()
	f, err := mod.Func(name)
	if err != nil {
		return err
	}
	threads, blocks, err := f.SuggestBlock(0)
	if err != nil {
		return err
	}
	s, err := dev.NewStream()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	c := kernel.Config{Grid: vmm.Dim{X: blocks}, Block: vmm.Dim{X: threads}}
	if err := f.Launch(s, c, args...); err != nil {
		return err
	}
	return s.Sync()
}

// sumOf is the sum of the bytes in memory, by a kernel.
func sumOf(dev *vmm.Device, m kernel.Memory) (total uint64, err error) {
	r, err := dev.Alloc(8) // zeros
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	if err := launch(dev, "sum", m, kernel.Pointer(r)); err != nil {
		return 0, err
	}
	b := make([]byte, 8)
	if _, err := r.ReadAt(b, 0); err != nil {
		return 0, err
	}
	return binary.NativeEndian.Uint64(b), nil
}
