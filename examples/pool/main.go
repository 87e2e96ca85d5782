// Command pool shows stream-ordered memory: the listings of the CUDA programming guide's
// chapter on its allocator, with a pool of package pool; for two processes, with a pool of the
// driver's. It uses the machine's first two GPUs, or two devices of host memory if there is none.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"strings"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/kernel"
	"github.com/cuvmm/cuvmm/vmm/pool"
)

func main() {
	device := flag.String("import", "", "read a block of another process's pool, on this device; for the program itself")
	flag.Parse()
	err := error(nil)
	if *device != "" {
		err = importBlock(*device, os.NewFile(sharedFD, "pool"), os.Stdin, os.Stdout)
	} else {
		err = run(os.Stdout)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// demo is what the listings work with.
type demo struct {
	w       io.Writer
	dev     *vmm.Device
	peer    *vmm.Device // nil if there is no second device
	kernels *kernel.Builtins
	stream  *vmm.Stream
	other   *vmm.Stream
}

func run(w io.Writer) (err error) {
	devs, err := openDevices()
	defer func() {
		for _, d := range devs {
			err = errors.Join(err, d.Close())
		}
	}()
	if err != nil {
		return err
	}
	d := &demo{w: w, dev: devs[0]}
	if len(devs) > 1 {
		d.peer = devs[1]
	}
	if d.kernels, err = kernel.LoadBuiltins(d.dev); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.kernels.Close()) }()
	if d.stream, err = d.dev.NewStream(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.stream.Close()) }()
	if d.other, err = d.dev.NewStream(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.other.Close()) }()

	fmt.Fprintln(w, "memory of", d.dev)
	for _, listing := range []func() error{
		d.inOrder, d.acrossStreams, d.atOnce, d.plain, d.onPeer,
		d.captured, d.phases, d.reuse, d.share,
	} {
		if err := listing(); err != nil {
			return err
		}
	}
	return nil
}

// openDevices opens the first two GPUs, or the one that there is. If there is none, it opens
// two devices of host memory.
func openDevices() (devs []*vmm.Device, err error) {
	all, err := vmm.Devices()
	if err != nil {
		return nil, err
	}
	var names []string
	for _, i := range all {
		if strings.HasPrefix(i.Open, "cuda:") && len(names) < 2 {
			names = append(names, i.Open)
		}
	}
	if len(names) == 0 {
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

// with runs f with a pool. Close returns ErrBusy if f leaves a block behind.
func (d *demo) with(o pool.Options, f func(p *pool.Pool) error) (err error) {
	p, err := pool.New(d.dev, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	return f(p)
}

// work queues a kernel that writes the numbers from first on to the block's elements.
func (d *demo) work(s *vmm.Stream, b kernel.Memory, first uint32) error {
	return kernel.Iota(d.kernels, s, b, first, 1)
}
