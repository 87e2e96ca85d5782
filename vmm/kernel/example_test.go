//go:build linux

package kernel_test

import (
	"fmt"
	"log"

	"github.com/cuvmm/cuvmm/growable"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/kernel"
)

// A kernel on a vector. The CUDA source is compiled where there is a GPU; on host memory the Go
// function does the same.
func Example() {
	check := func(err error) {
		if err != nil {
			log.Fatal(err)
		}
	}
	code := kernel.Code{
		CUDA: `extern "C" __global__ void scale(float a, float *x, unsigned long long n) {
			for (unsigned long long i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
				x[i] *= a;
		}`,
		Host: kernel.Host{"scale": func(a float32, x []float32) {
			for i := range x {
				x[i] *= a
			}
		}},
	}
	dev, err := vmm.Open("host") // or "auto"
	check(err)
	s, err := dev.NewStream()
	check(err)
	mod, err := kernel.Load(dev, code)
	check(err)
	scale, err := mod.Func("scale")
	check(err)
	x, err := growable.New[float32](dev, growable.Options{MaxLen: 1 << 20})
	check(err)

	check(x.Append(1, 2, 3))
	check(scale.Launch(s, kernel.Over(x.Len(), 256), float32(2), x))
	check(x.Append(4)) // the launch has the length that it was given
	got := make([]float32, x.Len())
	_, err = x.ReadAt(got, 0) // waits for the kernel
	check(err)
	fmt.Println(got)

	check(x.Close())
	check(mod.Close())
	check(s.Close())
	check(dev.Close())
	// Output: [2 4 6 4]
}

// A sum by a kernel that the package brings along.
func ExampleSumUint() {
	check := func(err error) {
		if err != nil {
			log.Fatal(err)
		}
	}
	dev, err := vmm.Open("host") // or "auto"
	check(err)
	s, err := dev.NewStream()
	check(err)
	k, err := kernel.LoadBuiltins(dev)
	check(err)
	x, err := growable.New[uint32](dev, growable.Options{MaxLen: 1 << 20})
	check(err)
	check(x.Grow(1000))
	check(x.SetLen(1000))
	check(kernel.Iota(k, s, x, uint32(1), 1)) // 1, 2, ...
	fmt.Println(kernel.SumUint[uint32](k, s, x))

	check(x.Close())
	check(k.Close())
	check(s.Close())
	check(dev.Close())
	// Output: 500500 <nil>
}
