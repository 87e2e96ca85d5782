package vmm_test

import (
	"fmt"
	"log"

	"github.com/cuvmm/cuvmm/vmm"
)

func Example() {
	dev, err := vmm.Open("host")
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()

	g, err := dev.NewRange(vmm.RangeOptions{Max: 1 << 30})
	if err != nil {
		log.Fatal(err)
	}
	defer g.Close()

	fmt.Fprint(g, "hello, ")
	fmt.Fprint(g, "device") // a Range is an io.Writer
	b := make([]byte, g.Len())
	_, err = g.ReadAt(b, 0)
	fmt.Println(string(b), g.Cap(), err)
	// Output: hello, device 2097152 <nil>
}

// A ring: one chunk mapped twice, side by side, so that what wraps around is
// contiguous.
func ExampleReservation_ring() {
	dev, err := vmm.Open("host")
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()

	const size = 2 << 20
	r, err := dev.Reserve(2*size, vmm.ReserveOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer r.Close()
	c, err := dev.Create(size, vmm.Prop{})
	if err != nil {
		log.Fatal(err)
	}
	if err := r.Map(0, c, c); err != nil {
		log.Fatal(err)
	}
	if err := c.Close(); err != nil { // the mappings hold the memory
		log.Fatal(err)
	}

	if err := dev.CopyIn(r.Ptr()+size-3, []byte("wrapped")); err != nil {
		log.Fatal(err)
	}
	b := make([]byte, 4)
	err = dev.CopyOut(b, r.Ptr())
	fmt.Println(string(b), err)
	// Output: pped <nil>
}
