// Command store shows how processes share buffers by name, which outlive the process that wrote them.
// Try it in two terminals:
//
//	go run ./examples/store -serve
//	go run ./examples/store -write
//
// The second prints an ID; then -read with that ID reads the buffer. The writer makes a buffer, fills
// it through a mirror in host memory, changes it by a kernel, and seals it. It may end before the
// reader starts: the buffer is the store's. The reader maps it, reads it by a kernel and through a
// mirror, and deletes it. The memory is that of the first GPU, or host memory if there is no
// GPU; between the processes no data is copied.
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

	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/shareable/store"
	"github.com/cuvmm/cuvmm/vmm"
)

type options struct {
	serve, write bool
	read         string
	path, device string
	size         uint64
}

func main() {
	var o options
	flag.BoolVar(&o.serve, "serve", false, "keep a store until the interrupt")
	flag.BoolVar(&o.write, "write", false, "make a buffer and seal it")
	flag.StringVar(&o.read, "read", "", "read and delete the buffer of this ID")
	flag.StringVar(&o.path, "path", "", "path of the socket; by default one in a directory of the user")
	flag.StringVar(&o.device, "device", "auto", "device: cuda:0, host, ...")
	flag.Uint64Var(&o.size, "size", 8<<20, "bytes of the buffer")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Stdout, o); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, out io.Writer, o options) (err error) {
	dev, err := vmm.Open(o.device)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	if o.serve {
		return serve(ctx, out, dev, o)
	}
	c, err := store.Connect(ctx, o.path, dev, store.ClientOptions{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	switch {
	case o.write:
		return write(ctx, out, c, o.size)
	case o.read != "":
		return read(ctx, out, c, o.read)
	}
	return errors.New("use one of -serve, -write and -read ID")
}

// serve keeps a store in this process. cmd/vmmstored does so for good.
func serve(ctx context.Context, out io.Writer, dev *vmm.Device, o options) error {
	s, err := store.Listen(dev, o.path, store.Options{})
	if err != nil {
		return err
	}
	fmt.Fprintln(out, "serving at", s.Path())
	<-ctx.Done()
	return s.Close()
}

// write makes a buffer, fills it through a mirror, changes it by a kernel, and seals it.
func write(ctx context.Context, out io.Writer, c *store.Client, size uint64) (err error) {
	w, err := c.Create(ctx, "", store.CreateOptions{Size: size, Labels: map[string]string{"example": "store"}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	// Before the seal the buffer is its writer's alone.
	_, err = c.Get(ctx, w.ID().String(), store.GetOptions{})
	fmt.Fprintln(out, "get before the seal:", errors.Is(err, shareable.ErrNotSealed))

	// The mirror begins with zeros: there is nothing to read yet. Close writes it back.
	m, err := c.Device().NewMirror(w.Ptr(), size, vmm.MirrorOptions{Write: true})
	if err != nil {
		return err
	}
	for i := range m.Bytes() {
		m.Bytes()[i] = pattern(i) - 1
	}
	if err := m.Close(); err != nil {
		return err
	}
	// The length is what kernels get, and what readers see. Before the seal that is no one.
	if err := w.SetLen(size); err != nil {
		return err
	}
	if err := launch(c.Device(), "add", w.Range(), uint8(1)); err != nil {
		return err
	}
	if err := w.Seal(ctx, shareable.SealOptions{Digest: true}); err != nil {
		return err
	}
	fmt.Fprintf(out, "sealed %d bytes\n", size)
	fmt.Fprintln(out, "id", w.ID())
	return nil
}

// read reads a buffer by a kernel and through a mirror, and deletes it.
func read(ctx context.Context, out io.Writer, c *store.Client, id string) (err error) {
	b, err := c.Get(ctx, id, store.GetOptions{Wait: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	fmt.Fprintf(out, "%d bytes, on a device: %t, writable: %t\n", b.Len(), b.Location().Kind == vmm.LocationDevice, b.Writable())

	total, err := sumOf(c.Device(), b)
	if err != nil {
		return err
	}
	fmt.Fprintln(out, "the sum by a kernel is", total)

	// A mirror of what is sealed has to be initialised, and cannot be written back.
	_, err = c.Device().NewMirror(b.Ptr(), b.Len(), vmm.MirrorOptions{})
	fmt.Fprintln(out, "a mirror that is not initialised is refused:", errors.Is(err, vmm.ErrInvalid))
	_, err = c.Device().NewMirror(b.Ptr(), b.Len(), vmm.MirrorOptions{Init: true, Write: true})
	fmt.Fprintln(out, "a mirror that writes back is refused:", errors.Is(err, vmm.ErrPermission))
	m, err := c.Device().NewMirror(b.Ptr(), b.Len(), vmm.MirrorOptions{Init: true})
	if err != nil {
		return err
	}
	wrong := 0
	for i, x := range m.Bytes() {
		if x != pattern(i) {
			wrong++
		}
		total -= uint64(x)
	}
	if err := m.Close(); err != nil {
		return err
	}
	fmt.Fprintf(out, "%d bytes are wrong\n", wrong)
	if wrong > 0 || total != 0 {
		return errors.New("the buffer is not what was written")
	}

	// The ID finds nothing from here on. The memory goes with the last View, this one.
	if err := c.Delete(ctx, id, store.DeleteOptions{}); err != nil {
		return err
	}
	_, err = c.Get(ctx, id, store.GetOptions{})
	fmt.Fprintln(out, "get after the delete:", errors.Is(err, shareable.ErrNotFound))
	return nil
}

// pattern is the byte at offset i.
func pattern(i int) byte { return byte(i*31 ^ i>>8) }
