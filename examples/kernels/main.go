// Command kernels runs kernels on vectors that grow, and lets kernels append to them. Try it, on a GPU
// if there is one, and its test:
//
//	go run ./examples/kernels
//	go test ./examples/kernels
//
// The first kernel, in saxpy.go, runs on vectors that grow between its launches. The second, in
// append.go, appends rows to a vector that grows under it. The third, in filter.go, filters numbers
// with a counter, to which a warp adds once. On a GPU the kernels are CUDA source that is compiled
// when the program runs. Without one, or where there is no libnvrtc to compile it, Go functions do
// the same on host memory.
package main

import (
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"slices"

	"github.com/cuvmm/cuvmm/growable"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/kernel"
)

// code is the kernels, for GPUs and for host memory.
var code = kernel.Code{
	CUDA: `
#include "cuvmm_append.cuh"

typedef unsigned long long u64;
` + saxpyCUDA + appendCUDA + filterCUDA,
	Host: kernel.Host{"saxpy": saxpy, "keep_above": keepAbove, "keep_positive": keepPositive},
}

func main() {
	dev, err := vmm.Open("auto")
	if err == nil {
		err = run(os.Stdout, dev)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// run closes the device.
func run(w io.Writer, dev *vmm.Device) (err error) {
	mod, err := kernel.Load(dev, code)
	if errors.Is(err, vmm.ErrNotSupported) {
		// No libnvrtc, or one that does not know this GPU.
		fmt.Fprintln(w, "using host memory:", err)
		if err := dev.Close(); err != nil {
			return err
		}
		if dev, err = vmm.Open("host"); err != nil {
			return err
		}
		mod, err = kernel.Load(dev, code)
	}
	defer func() { err = errors.Join(err, mod.Close(), dev.Close()) }()
	if err != nil {
		return err
	}
	s, err := dev.NewStream()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	for _, part := range []struct {
		kernel string
		show   func(io.Writer, *vmm.Stream, *kernel.Func) error
	}{{"saxpy", grow}, {"keep_above", appendRows}, {"keep_positive", filter}} {
		f, err := mod.Func(part.kernel)
		if err != nil {
			return err
		}
		if err := part.show(w, s, f); err != nil {
			return err
		}
	}
	return nil
}

// checkKept compares what was kept with what has to be there. It comes in any order.
func checkKept[T comparable](what string, v *growable.Vector[T], want []T, order func(a, b T) int) error {
	got := make([]T, v.Len())
	if _, err := v.ReadAt(got, 0); err != nil {
		return err
	}
	slices.SortFunc(got, order)
	slices.SortFunc(want, order)
	if !slices.Equal(got, want) {
		return fmt.Errorf("%d %s were kept, and are not the %d that have to be", len(got), what, len(want))
	}
	return nil
}
