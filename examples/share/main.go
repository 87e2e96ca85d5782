// Command share shows how one process follows memory that grows in another. Try it in two or more
// terminals:
//
//	go run ./examples/share -append
//	go run ./examples/share -follow
//
// Each prints the number of rows of floats and their checksum. The memory is that of the first GPU, or
// host memory if there is no GPU. No data is copied between the processes.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"io"
	"log"
	"math/rand/v2"
	"os"
	"os/signal"
	"time"

	"github.com/cuvmm/cuvmm/growable"
	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/vmm"
)

type options struct {
	grow, follow bool
	path, name   string
	device       string
	width, rows  int
	every        time.Duration
	count        int
}

func main() {
	var o options
	flag.BoolVar(&o.grow, "append", false, "publish rows and append to them")
	flag.BoolVar(&o.follow, "follow", false, "follow what another process publishes")
	flag.StringVar(&o.path, "path", "", "path of the socket; by default one in a directory of the user")
	flag.StringVar(&o.name, "name", "rows", "name of the publication")
	flag.StringVar(&o.device, "device", "auto", "device: cuda:0, host, ...")
	flag.IntVar(&o.width, "width", 768, "floats in a row")
	flag.IntVar(&o.rows, "rows", 1000, "rows in an append")
	flag.DurationVar(&o.every, "every", 500*time.Millisecond, "time between appends")
	flag.IntVar(&o.count, "count", 0, "number of appends before the rows are sealed; 0 is no limit")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Stdout, o); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, w io.Writer, o options) (err error) {
	if o.grow == o.follow || o.width < 1 || o.rows < 1 || o.every <= 0 {
		return errors.New("use either -append or -follow, and -width, -rows and -every above 0")
	}
	dev, err := vmm.Open(o.device)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	if o.follow {
		return follow(ctx, w, dev, o)
	}
	return grow(ctx, w, dev, o)
}

// grow publishes rows and appends to them until ctx ends. The deferred closes run
// in the order that is needed: the publication before its rows.
func grow(ctx context.Context, w io.Writer, dev *vmm.Device, o options) (err error) {
	// ShareReadOnly has the kernel keep readers from writing. CUDA has nothing like
	// it.
	share := vmm.ShareFD
	if dev.Driver().Name() == "host" {
		share |= vmm.ShareReadOnly
	}
	rows, err := growable.NewRows[float32](dev, o.width, growable.RowsOptions{Range: vmm.RangeOptions{Share: share}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	server, err := shareable.Listen(dev, o.path, shareable.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	pub, err := server.Publish(o.name, rows.Range(), shareable.PublishOptions{Layout: rows.Layout()})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pub.Close()) }()
	fmt.Fprintf(w, "%v: %v as %q at %s\n", dev, rows.Layout(), o.name, server.Path())

	random := rand.New(rand.NewPCG(1, 2))
	part := make([]float32, o.rows*o.width)
	var sum checksum
	tick := time.NewTicker(o.every)
	defer tick.Stop()
	for n := 0; o.count == 0 || n < o.count; n++ {
		for i := range part {
			part[i] = random.Float32()
		}
		if err := rows.Append(part...); err != nil {
			return err
		}
		// The checksum of what was written, to compare with what readers print.
		if err := sum.extend(rows.Range(), rows.Range().Len()); err != nil {
			return err
		}
		fmt.Fprintf(w, "%d rows, checksum %08x, %d readers\n", rows.Len(), sum.crc, pub.Readers())
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		if err := pub.Err(); err != nil {
			return err
		}
	}
	// The process must stay while readers attach, so it waits for the interrupt.
	if err := pub.Seal(ctx, shareable.SealOptions{Digest: true}); err != nil {
		return err
	}
	fmt.Fprintln(w, "sealed; interrupt to end")
	<-ctx.Done()
	return nil
}

// follow prints each new length until the rows are sealed, the owner is gone, or
// ctx ends.
func follow(ctx context.Context, w io.Writer, dev *vmm.Device, o options) (err error) {
	view, err := shareable.Attach(ctx, o.path, o.name, dev, shareable.AttachOptions{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, view.Close()) }()
	layout := view.Layout()
	pitch := max(layout.Pitch, 1)
	fmt.Fprintf(w, "%q is %v at %v\n", view.Name(), layout, view.Ptr())
	var sum checksum
	for {
		generation, n := view.Generation(), view.Len()
		n -= n % pitch // Len may lie inside a row while a chunk is on its way
		if generation != sum.generation || n < sum.n {
			sum = checksum{generation: generation} // the owner took rows back
		}
		if n > sum.n {
			if err := sum.extend(view, n); err != nil {
				return err
			}
			fmt.Fprintf(w, "%d rows, checksum %08x, in %d chunks\n", n/pitch, sum.crc, len(view.Segments()))
		}
		switch err := view.Wait(ctx, sum.n+pitch); {
		case errors.Is(err, shareable.ErrSealed):
			fmt.Fprintln(w, "sealed")
			return nil
		case errors.Is(err, shareable.ErrOwnerGone):
			fmt.Fprintf(w, "the owner is gone; %d bytes stay mapped\n", view.Len())
			return nil
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		}
	}
}

// checksum is the checksum of the first n bytes of memory that grows.
type checksum struct {
	generation uint64
	n          uint64
	crc        uint32
}

// extend adds the bytes up to n.
func (c *checksum) extend(r io.ReaderAt, n uint64) error {
	b := make([]byte, 1<<20)
	for c.n < n {
		part := b[:min(uint64(len(b)), n-c.n)]
		if _, err := r.ReadAt(part, int64(c.n)); err != nil {
			return err
		}
		c.crc = crc32.Update(c.crc, crc32.IEEETable, part)
		c.n += uint64(len(part))
	}
	return nil
}
