// Command growing appends to a vector that grows in place: its pointer stays, the next part is
// mapped ahead of need, and Clip gives back what is unused. Try it, on a GPU if there is one:
//
//	go run ./examples/growing
//	go run ./examples/growing -device host
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"

	"github.com/cuvmm/cuvmm/growable"
	"github.com/cuvmm/cuvmm/vmm"
)

func main() {
	device := flag.String("device", "auto", "which device; auto is the first GPU, or host memory")
	flag.Parse()
	if err := run(os.Stdout, *device); err != nil {
		log.Fatal(err)
	}
}

func run(w io.Writer, device string) (err error) {
	dev, err := vmm.Open(device)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	// MaxLen costs addresses, no memory. A goroutine of the device keeps 16 MiB mapped beyond Len.
	v, err := growable.New[float32](dev, growable.Options{MaxLen: 1 << 30, Range: vmm.RangeOptions{GrowAhead: 16 << 20}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, v.Close()) }() // before the device
	first, part := v.Ptr(), make([]float32, 1<<20)
	for range 16 {
		if err := v.Append(part...); err != nil {
			return err
		}
	}
	fmt.Fprintf(w, "%d elements, the same pointer: %t\n", v.Len(), v.Ptr() == first)
	if err := v.SetLen(4 << 20); err != nil { // the memory stays for the next Append
		return err
	}
	if err := v.Clip(); err != nil { // now it is given back
		return err
	}
	st := dev.Stats() // growth ahead may have mapped its 16 MiB again
	fmt.Fprintf(w, "%d elements after Clip, the same pointer: %t\n", v.Len(), v.Ptr() == first)
	fmt.Fprintf(w, "MiB: %d used, %d mapped, %d at most\n", st.Used>>20, st.Committed>>20, st.PeakCommitted>>20)
	fmt.Fprintf(w, "growths: %d that an Append waited for, %d ahead\n", st.Growths, st.GrowAheads)
	return nil
}
