package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"

	"github.com/cuvmm/cuvmm/growable"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/kernel"
)

// filterCUDA copies the positive elements of src to dst, in any order. *count is how many there
// are. The lanes of a warp that have one take their places by one addition to it.
const filterCUDA = `
extern "C" __global__ void keep_positive(int *dst, int *count, const int *src, int n)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i >= n)
		return;
	int value = src[i];
	if (value > 0)
		dst[atomicAggInc(count)] = value;
}
`

func keepPositive(dst vmm.Ptr, count *int32, src vmm.Ptr, n int32) {
	to := kernel.Slice[int32](dst, uint64(n))
	for _, value := range kernel.Slice[int32](src, uint64(n)) {
		if value > 0 {
			to[*count] = value
			*count++
		}
	}
}

const numbers = 1_000_000

// filter keeps the positive ones of numbers with a counter, in memory that has room for all of
// them, and then checks them.
func filter(w io.Writer, s *vmm.Stream, f *kernel.Func) (err error) {
	src, err := growable.New[int32](s.Device(), growable.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, src.Close()) }()
	dst, err := growable.New[int32](s.Device(), growable.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dst.Close()) }()
	count, err := growable.New[int32](s.Device(), growable.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, count.Close()) }()

	values := make([]int32, numbers)
	var want []int32
	rnd := rand.New(rand.NewPCG(3, 4))
	for i := range values {
		values[i] = rnd.Int32N(2001) - 1000
		if values[i] > 0 {
			want = append(want, values[i])
		}
	}
	if err := errors.Join(src.Append(values...), dst.Grow(numbers), dst.SetLen(numbers), count.Append(0)); err != nil {
		return err
	}
	err = f.Launch(s, kernel.Over(numbers, 256), kernel.Pointer(dst), kernel.Pointer(count), kernel.Read(kernel.Pointer(src)), int32(numbers))
	if err != nil {
		return err
	}
	kept := make([]int32, 1)
	if _, err := count.ReadAt(kept, 0); err != nil { // waits for the kernel
		return err
	}
	if err := dst.SetLen(int(kept[0])); err != nil {
		return err
	}
	if err := checkKept("numbers", dst, want, cmp.Compare); err != nil {
		return err
	}
	fmt.Fprintf(w, "one counter has led to exactly the %d positive ones of %d numbers\n", len(want), numbers)
	return nil
}
