package nvrtc_test

import (
	"errors"
	"fmt"
	"log"

	"github.com/cuvmm/cuvmm/cgo/nvrtc"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// It compiles for a device. Where there is no libnvrtc, it says so.
func Example() {
	c, err := nvrtc.Open("")
	if errors.Is(err, driver.ErrNotSupported) {
		fmt.Println("nothing can be compiled here:", err)
		return
	} else if err != nil {
		log.Fatal(err)
	}
	const source = `
template <typename T> __global__ void scale(T *p, T by) {
	p[threadIdx.x] *= by;
}`
	r, err := c.Compile(source, nvrtc.Options{
		Arch:        c.ArchFor("sm_90"), // the device's
		Expressions: []string{"scale<float>"},
	})
	if err != nil {
		log.Fatal(err) // compile kernel.cu: kernel.cu(3): error: ...
	}
	fmt.Println(r.Kind, r.Names["scale<float>"])
}

func ExampleOpen() {
	_, err := nvrtc.Open("/nowhere/libnvrtc.so.12")
	fmt.Println(errors.Is(err, driver.ErrNotSupported))
	// Output: true
}
