package growable_test

import (
	"fmt"
	"log"
	"slices"

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

func ExampleWriter() {
	dev, err := vmm.Open("host")
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()

	x, err := growable.New[int32](dev, growable.Options{MaxLen: 1 << 20})
	if err != nil {
		log.Fatal(err)
	}
	defer x.Close()

	w := growable.NewWriter(x, 0)
	for i := range int32(1000) {
		if err := w.Append(i * i); err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println(x.Len(), w.Buffered())
	if err := w.Flush(); err != nil {
		log.Fatal(err)
	}
	last, err := x.At(x.Len() - 1)
	fmt.Println(x.Len(), last, err)
	// Output:
	// 0 1000
	// 1000 998001 <nil>
}

func ExampleRows() {
	dev, err := vmm.Open("host")
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()

	// Three numbers a row, and each row at a multiple of 16 bytes.
	x, err := growable.NewRows[float32](dev, 3, growable.RowsOptions{Pitch: 16, MaxRows: 1 << 20})
	if err != nil {
		log.Fatal(err)
	}
	defer x.Close()

	if err := x.Append(1, 2, 3, 4, 5, 6, 7, 8, 9); err != nil {
		log.Fatal(err)
	}
	fmt.Println(x.Len(), "rows,", x.PtrAt(1)-x.Ptr(), "apart")
	for b, err := range x.Blocks(make([]float32, 6)) {
		fmt.Println(b, err)
	}
	// Output:
	// 3 rows, 0x10 apart
	// [1 2 3 4 5 6] <nil>
	// [7 8 9] <nil>
}

func ExampleRows_ReadAt() {
	dev, err := vmm.Open("host")
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()

	x, err := growable.NewRows[float32](dev, 3, growable.RowsOptions{MaxRows: 1 << 20})
	if err != nil {
		log.Fatal(err)
	}
	defer x.Close()

	if err := x.Append(1, 2, 3, 4, 5, 6); err != nil {
		log.Fatal(err)
	}
	row := make([]float32, x.Width()) // for all rows, one after the other
	_, err = x.ReadAt(row, 1)
	fmt.Println(row, err)
	// Output: [4 5 6] <nil>
}

func ExampleVector_All() {
	dev, err := vmm.Open("host")
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()

	x, err := growable.New[int32](dev, growable.Options{MaxLen: 1 << 20})
	if err != nil {
		log.Fatal(err)
	}
	defer x.Close()

	n, err := x.AppendSeq(slices.Values([]int32{1, 4, 9}))
	fmt.Println(n, err)
	for y, err := range x.All() {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(y)
	}
	// Output:
	// 3 <nil>
	// 1
	// 4
	// 9
}

// A RowsReader of a Range, which could as well be a shareable.View of another process.
func ExampleRowsReader() {
	dev, err := vmm.Open("host")
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()

	x, err := growable.NewRows[float32](dev, 2, growable.RowsOptions{MaxRows: 1 << 20})
	if err != nil {
		log.Fatal(err)
	}
	defer x.Close()

	r, err := growable.NewRowsReader[float32](x.Range(), 2)
	if err != nil {
		log.Fatal(err)
	}
	changed := r.Changed()
	if err := x.Append(1, 2, 3, 4); err != nil {
		log.Fatal(err)
	}
	<-changed
	for row, err := range r.All() {
		fmt.Println(row, err)
	}
	// Output:
	// [1 2] <nil>
	// [3 4] <nil>
}

func ExampleLayoutOf() {
	layout, err := growable.LayoutOf[float32](768)
	fmt.Println(layout, err)
	other, err := growable.LayoutOf[float64](768)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(other.Check(layout))
	// Output:
	// rows of 768 float32 <nil>
	// invalid argument: a layout of rows of 768 float64, not rows of 768 float32: numbers of 64 bits, not 32
}
