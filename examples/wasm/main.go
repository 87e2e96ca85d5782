// Command wasm runs a WebAssembly program whose memory is a vmm.Range: it grows page by page
// and never moves. It is a module of its own. In its directory:
//
//	go run .
//	go test .
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/experimental"

	"github.com/cuvmm/cuvmm/vmm"
)

// device is host memory in pieces of 64 KiB, which is a page of WebAssembly.
const device = "host?page=64K"

func main() {
	if err := run(context.Background(), os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, w io.Writer) (err error) {
	dev, err := vmm.Open(device)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	memories := &Allocator{Device: dev, Failed: func(err error) { fmt.Fprintln(w, "no memory:", err) }}
	defer func() { err = errors.Join(err, memories.Close()) }()
	ctx = experimental.WithMemoryAllocator(ctx, memories)
	runtime := wazero.NewRuntime(ctx)
	defer func() { err = errors.Join(err, runtime.Close(ctx)) }() // and all modules
	module, err := runtime.Instantiate(ctx, program(hasMax, 1, 1024))
	if err != nil {
		return err
	}

	before, _ := module.Memory().Read(0, 1)
	pages, err := module.ExportedFunction("grow").Call(ctx)
	if err != nil {
		return err
	}
	after, _ := module.Memory().Read(0, 1)
	fmt.Fprintf(w, "%d pages of 64 KiB, every word checked\n", pages[0])
	fmt.Fprintln(w, "at the same address:", &before[0] == &after[0])
	fmt.Fprintln(w, "memory taken from the system:", dev.Stats().Committed, "bytes, in", dev.Stats().Creates, "pieces")
	return nil
}
