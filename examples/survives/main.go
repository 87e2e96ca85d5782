// Command survives shows that what a writer has published outlives it. Start vmmstored, then run
//
//	go run ./examples/survives -read
//	go run ./examples/survives -write
//
// in two terminals, and kill the writer with SIGKILL. The reader keeps what it has, at the same
// address. Start the writer again: it appends after the last number, and the reader goes on.
// The memory is that of the first GPU, or host memory if there is no GPU.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"time"

	"github.com/cuvmm/cuvmm/growable"
	"github.com/cuvmm/cuvmm/shareable/store"
	"github.com/cuvmm/cuvmm/vmm"
)

type options struct {
	read, write        bool
	path, name, device string
	every              time.Duration
	count              int
}

func main() {
	var o options
	flag.BoolVar(&o.read, "read", false, "follow the numbers")
	flag.BoolVar(&o.write, "write", false, "append numbers, after those that are there")
	flag.StringVar(&o.path, "path", "", "path of the store's socket; by default one in a directory of the user")
	flag.StringVar(&o.name, "name", "numbers", "name of the object")
	flag.StringVar(&o.device, "device", "auto", "device: cuda:0, host, ...")
	flag.DurationVar(&o.every, "every", 500*time.Millisecond, "time between appends")
	flag.IntVar(&o.count, "count", 0, "numbers to append, or to be read in all; 0 is no limit")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Stdout, o); err != nil && !errors.Is(err, context.Canceled) {
		log.Fatal(err)
	}
}

func run(ctx context.Context, out io.Writer, o options) (err error) {
	if o.read == o.write {
		return errors.New("use one of -read and -write")
	}
	dev, err := vmm.Open(o.device)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	c, err := store.Connect(ctx, o.path, dev, store.ClientOptions{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	if o.write {
		return write(ctx, out, c, o)
	}
	return read(ctx, out, c, o)
}

// write appends numbers to an object that outlives this process.
func write(ctx context.Context, out io.Writer, c *store.Client, o options) (err error) {
	layout, err := growable.LayoutOf[int64]()
	if err != nil {
		return err
	}
	w, err := c.OpenAppend(ctx, o.name, store.CreateOptions{Growable: true, Size: 1 << 30, Layout: layout, Wait: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	v, err := growable.FromRange[int64](w.Range())
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "writer %d: %d numbers are there\n", os.Getpid(), v.Len())
	for n := 0; o.count == 0 || n < o.count; n++ {
		if err := v.Append(int64(v.Len())); err != nil {
			return err
		}
		fmt.Fprintf(out, "writer %d: appended %d\n", os.Getpid(), v.Len()-1)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(o.every):
		}
	}
	return nil
}

// read follows the numbers, and checks each of them.
func read(ctx context.Context, out io.Writer, c *store.Client, o options) (err error) {
	b, err := c.Get(ctx, o.name, store.GetOptions{Wait: true, Unsafe: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	r, err := growable.NewReader[int64](b)
	if err != nil {
		return err
	}
	for seen := 0; o.count == 0 || seen < o.count; {
		if err := r.Wait(ctx, seen+1); err != nil {
			return err
		}
		numbers := make([]int64, r.Len())
		if _, err := r.ReadAt(numbers, 0); err != nil {
			return err
		}
		for i, x := range numbers {
			if x != int64(i) {
				return fmt.Errorf("number %d is %d", i, x)
			}
		}
		seen = len(numbers)
		fmt.Fprintf(out, "reader: %d numbers at %#x\n", seen, uintptr(b.Ptr()))
	}
	return nil
}
