package growable_test

import (
	"fmt"
	"log"

	"github.com/cuvmm/cuvmm/growable"
	"github.com/cuvmm/cuvmm/vmm"
)

func Example() {
	dev, err := vmm.Open("host")
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()

	x, err := growable.New[float32](dev, growable.Options{MaxLen: 1 << 30})
	if err != nil {
		log.Fatal(err)
	}
	defer x.Close()

	first := x.Ptr()
	for i := range 1000 {
		if err := x.Append(float32(i), float32(i)/2); err != nil {
			log.Fatal(err)
		}
	}
	last, err := x.At(x.Len() - 1)
	fmt.Println(x.Len(), last, err, x.Ptr() == first)
	// Output: 2000 499.5 <nil> true
}
