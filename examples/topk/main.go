// Command topk is a service that keeps vectors and returns the k nearest to a query, from several
// processes that have the same memory. Try it in two terminals: the first appends, and others attach
// to its memory and serve queries too.
//
//	go run ./examples/topk -append -width 3 -http 127.0.0.1:8080
//	go run ./examples/topk -http 127.0.0.1:8081
package main

import (
	"context"
	"errors"
	"flag"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/cuvmm/cuvmm/growable"
	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/vmm"
)

// published is the name of the vectors at the owner's socket.
const published = "vectors"

type options struct {
	owner        bool
	width        int
	addr         string
	path, device string
}

func main() {
	var o options
	flag.BoolVar(&o.owner, "append", false, "keep the vectors; without it, attach to the process that does")
	flag.IntVar(&o.width, "width", 768, "floats in a vector, for -append")
	flag.StringVar(&o.addr, "http", "127.0.0.1:0", "address of the service")
	flag.StringVar(&o.path, "path", "topk", "socket between the processes: a path, or a name in a directory of the user")
	flag.StringVar(&o.device, "device", "auto", "device: cuda:0, host, ...")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, o options) (err error) {
	dev, err := vmm.Open(o.device)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	if o.owner {
		return own(ctx, dev, o)
	}
	return follow(ctx, dev, o)
}

// owner is the store of the process that appends.
type owner struct {
	rows   *growable.Rows[float32]
	server *shareable.Server
	pub    *shareable.Publication
}

// own serves vectors of its own until ctx ends. The deferred closes run in the order that
// is needed: the publication before its rows.
func own(ctx context.Context, dev *vmm.Device, o options) (err error) {
	share := vmm.ShareFD
	if dev.Supports(vmm.FeatureShareReadOnly) == nil {
		share |= vmm.ShareReadOnly // the kernel keeps readers from writing
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
	pub, err := server.Publish(published, rows.Range(), shareable.PublishOptions{Layout: rows.Layout()})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pub.Close()) }()

	s := &owner{rows, server, pub}
	mux := handler(s)
	mux.HandleFunc("POST /vectors", post(s.add))
	return serve(ctx, o.addr, mux)
}

// add appends all vectors or none. When it returns they are published: readers see them, once
// they have mapped the memory.
func (s *owner) add(ctx context.Context, vectors [][]float32) (any, error) {
	flat := make([]float32, 0, len(vectors)*s.rows.Width())
	for _, v := range vectors {
		if len(v) != s.rows.Width() {
			return nil, wrongWidth(v, s.rows)
		}
		flat = append(flat, v...)
	}
	if err := s.rows.Append(flat...); err != nil {
		return nil, err
	}
	if err := s.pub.Flush(ctx); err != nil {
		return nil, err
	}
	return map[string]int{"rows": s.rows.Len()}, nil
}

func (s *owner) use(f func(table) error) error { return f(s.rows) }

func (s *owner) stats() any {
	return map[string]any{
		"rows": s.rows.Len(), "width": s.rows.Width(), "readers": s.pub.Readers(),
		"range": s.rows.Range().Stats(), "device": s.rows.Range().Device().Stats(), "server": s.server.Stats(),
	}
}
