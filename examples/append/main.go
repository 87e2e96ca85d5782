// Command append has kernels append rows to a vector that grows under them. Each batch of
// rows is filtered where it lies: what is kept goes behind what is there, and where the
// vector is full, it grows at its address and the unfinished part runs again. On a GPU the
// kernel is CUDA source that is compiled when the program runs. Without one, or where there
// is no libnvrtc to compile it, a Go function does the same on host memory.
package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"os"
	"slices"

	"github.com/cuvmm/cuvmm/growable"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/kernel"
)

const (
	batches = 8
	batch   = 250_000 // rows
	limit   = float32(0.25)
)

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
	f, err := mod.Func("keep_above")
	if err != nil {
		return err
	}
	return filter(w, dev, f)
}

// filter appends what is kept of all batches, and then checks it.
func filter(w io.Writer, dev *vmm.Device, f *kernel.Func) (err error) {
	s, err := dev.NewStream()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	in, err := growable.New[row](dev, growable.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	out, err := growable.New[row](dev, growable.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	c, err := kernel.NewCursor(out)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()

	var want []row
	rnd := rand.New(rand.NewPCG(1, 2))
	for b := range batches {
		rows := make([]row, batch)
		for i := range rows {
			rows[i] = row{uint32(b*batch + i), rnd.Float32()}
			if rows[i].Score > limit {
				want = append(want, rows[i])
			}
		}
		// Append waits for its stream, so the last batch may be overwritten here.
		if err := errors.Join(in.Truncate(0), in.Append(rows...)); err != nil {
			return err
		}
		launches := 0
		kept, err := c.Append(s, (batch+tile-1)/tile, func(items uint64) error {
			launches++
			grid := kernel.Config{Grid: vmm.Dim{X: uint32(items)}, Block: vmm.Dim{X: threads}}
			return f.Launch(s, grid, c, kernel.Read(in), limit)
		})
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "batch %d: %d of %d rows in %d launches\n", b+1, kept, batch, launches)
	}
	return check(w, out, want)
}

// check compares the rows with those that have to be there. They come in any order.
func check(w io.Writer, out *growable.Vector[row], want []row) error {
	got := make([]row, out.Len())
	if _, err := out.ReadAt(got, 0); err != nil {
		return err
	}
	slices.SortFunc(got, func(a, b row) int {
		return cmp.Or(cmp.Compare(a.ID, b.ID), cmp.Compare(a.Score, b.Score))
	})
	if !slices.Equal(got, want) {
		return fmt.Errorf("%d rows were kept, and are not the %d that have to be", len(got), len(want))
	}
	fmt.Fprintf(w, "%v grew %d times at %v and has exactly the %d rows above %v\n",
		out.Range().Device(), out.Range().Stats().Growths, out.Ptr(), len(got), limit)
	return nil
}
