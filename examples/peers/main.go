// Command peers grows a vector on one device while another device reads it. Try it, and its test:
//
//	go run ./examples/peers
//	go test ./examples/peers
//
// It prints the links between the devices and the plan before it is applied, and ends with a revoke.
// It uses the machine's GPUs, or two devices of host memory if there are fewer than two GPUs.
package main

import (
	"encoding/binary"
	"fmt"
	"io"
	"log"
	"os"
	"strings"

	"github.com/cuvmm/cuvmm/growable"
	"github.com/cuvmm/cuvmm/vmm"
)

func main() {
	if err := run(os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(w io.Writer) error {
	devs, err := openAll()
	defer func() {
		for _, d := range devs {
			if err := d.Close(); err != nil {
				fmt.Fprintln(w, err)
			}
		}
	}()
	if err != nil {
		return err
	}
	links, err := vmm.Topology(devs...)
	if err != nil {
		return err
	}
	fmt.Fprintln(w, links)

	v, err := growable.New[uint32](devs[0], growable.Options{MaxLen: 64 << 20})
	if err != nil {
		return err
	}
	defer v.Close()
	if err := v.Append(0); err != nil {
		return err
	}

	// A plan changes nothing. If a pair of devices has no path, the plan shows it,
	// and Apply would return an error and change nothing.
	plan, err := vmm.PlanPeers(vmm.AccessRead, devs, v.Range())
	if err != nil {
		return err
	}
	fmt.Fprintln(w, plan)
	if err := plan.Apply(); err != nil {
		return err
	}

	// The grant includes memory that the vector grows by: the peer may read every
	// element below Len.
	done := make(chan error, 1)
	go func() { done <- grow(v) }()
	last := uint32(0)
	for more := true; more; {
		changed := v.Range().Changed()
		if n := v.Len(); n > 0 {
			if last, err = read(devs[1], v.PtrAt(n-1)); err != nil {
				return err
			}
			if last != uint32(n-1) {
				return fmt.Errorf("element %d reads %d", n-1, last)
			}
		}
		select {
		case err := <-done:
			if err != nil {
				return err
			}
			more = false
		case <-changed:
		}
	}
	if last, err = read(devs[1], v.PtrAt(v.Len()-1)); err != nil {
		return err
	}
	fmt.Fprintf(w, "%v saw the vector on %v grow to %d elements; the last is %d\n", devs[1], devs[0], v.Len(), last)

	// A revoke waits for queued work of the peers. After it their copies return an
	// error, and the devices remain usable.
	if err := vmm.EnablePeers(vmm.AccessNone, devs[1:], v.Range()); err != nil {
		return err
	}
	if _, err := read(devs[1], v.Ptr()); err == nil {
		return fmt.Errorf("%v still reads", devs[1])
	}
	fmt.Fprintf(w, "%v is refused after the revoke\n", devs[1])
	for _, d := range devs {
		if err := d.Sync(); err != nil {
			return err
		}
	}
	return nil
}

// openAll opens the GPUs if there are at least two, else two devices of host
// memory.
func openAll() (devs []*vmm.Device, err error) {
	all, err := vmm.Devices()
	if err != nil {
		return nil, err
	}
	var names []string
	for _, i := range all {
		if strings.HasPrefix(i.Open, "cuda:") {
			names = append(names, i.Open)
		}
	}
	// One GPU has no peer: host memory then shows the same.
	if len(names) < 2 {
		names = []string{"host:0", "host:1"}
	}
	for _, name := range names {
		d, err := vmm.Open(name)
		if err != nil {
			return devs, err
		}
		devs = append(devs, d)
	}
	return devs, nil
}

// grow appends 1, 2, 3 and so on, a thousand times.
func grow(v *growable.Vector[uint32]) error {
	part := make([]uint32, 10_000)
	for i := range 1000 {
		for j := range part {
			part[j] = uint32(1 + i*len(part) + j)
		}
		if err := v.Append(part...); err != nil {
			return err
		}
	}
	return nil
}

// read returns the element at p, read by a device.
func read(d *vmm.Device, p vmm.Ptr) (uint32, error) {
	b := make([]byte, 4)
	err := d.CopyOut(b, p)
	return binary.NativeEndian.Uint32(b), err
}
