package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/cuvmm/cuvmm/growable"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/kernel"
)

// saxpyCUDA adds a multiple of x to y. A vector among the arguments of a launch becomes a
// pointer and a count. The grid stays what it was when the launch was bound, so each thread
// does as many elements as it takes.
const saxpyCUDA = `
extern "C" __global__ void saxpy(float a, const float *x, u64 n, float *y, u64)
{
	u64 threads = (u64)gridDim.x * blockDim.x;
	for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += threads)
		y[i] += a * x[i];
}
`

func saxpy(a float32, x, y []float32) {
	for i := range x {
		y[i] += a * x[i]
	}
}

const (
	rounds = 8
	part   = 500_000 // elements that the vectors grow by in each round
	a      = float32(2)
)

// grow launches the kernel after each growth of two vectors, and then checks the result.
func grow(w io.Writer, s *vmm.Stream, f *kernel.Func) (err error) {
	x, err := growable.New[float32](s.Device(), growable.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, x.Close()) }()
	y, err := growable.New[float32](s.Device(), growable.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, y.Close()) }()

	threads, blocks, err := f.SuggestBlock(0)
	if err != nil {
		return err
	}
	// The vectors are empty still. Each launch looks anew at how long they are.
	c := kernel.Config{Grid: vmm.Dim{X: blocks}, Block: vmm.Dim{X: threads}}
	launch, err := f.Bind(c, a, kernel.Read(x), y)
	if err != nil {
		return err
	}
	first := y.Ptr()
	xs, ys := make([]float32, part), make([]float32, part)
	for i := range xs {
		xs[i], ys[i] = float32(i%1000), 1
	}
	for range rounds {
		// The kernel of the last round may still run: growth moves nothing that it uses.
		if err := errors.Join(x.Append(xs...), y.Append(ys...)); err != nil {
			return err
		}
		if err := launch.Launch(s); err != nil {
			return err
		}
		fmt.Fprintf(w, "launched for %d elements at %v on %v\n", y.Len(), y.Ptr(), s.Device())
	}
	if err := s.Sync(); err != nil {
		return err
	}
	if y.Ptr() != first {
		return fmt.Errorf("the address has changed from %v to %v", first, y.Ptr())
	}
	return checkSums(w, y)
}

// checkSums compares each element with what the launches that saw it have made of it.
func checkSums(w io.Writer, y *growable.Vector[float32]) error {
	i := 0
	for v, err := range y.All() {
		if err != nil {
			return err
		}
		launches := rounds - i/part
		if want := 1 + float32(launches)*a*float32(i%part%1000); v != want {
			return fmt.Errorf("element %d is %v after %d launches, not %v", i, v, launches, want)
		}
		i++
	}
	if i != rounds*part {
		return fmt.Errorf("%d elements, not %d", i, rounds*part)
	}
	fmt.Fprintf(w, "all %d elements are right, and the address is the same\n", i)
	return nil
}
