// Command arrow builds an Arrow array whose buffers grow in place: they are blocks of a pool on host
// memory. It prints where they were while they grew, and what the pool has taken from the system. It
// is a module of its own. In its directory:
//
//	go run .
//	go test .
package main

import (
	"errors"
	"fmt"
	"io"
	"log"
	"os"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/cuvmm/cuvmm/examples/arrow/poolmem"
	"github.com/cuvmm/cuvmm/vmm/pool"
)

// device is host memory in pieces of a page.
const device = "host?page=4K"

var _ memory.Allocator = (*poolmem.Allocator)(nil)

func main() {
	if err := run(os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(w io.Writer) (err error) {
	mem, err := poolmem.Open(device, pool.Options{})
	if err != nil {
		return err
	}
	// Close returns ErrBusy if a buffer was not released.
	defer func() { err = errors.Join(err, mem.Close()) }()

	builder := array.NewInt64Builder(mem)
	defer builder.Release()
	for i := range int64(1_000_000) {
		builder.Append(i)
	}
	numbers := builder.NewInt64Array()
	defer numbers.Release()
	sum := int64(0)
	for _, v := range numbers.Int64Values() {
		sum += v
	}
	stats, err := mem.Stats()
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "%d numbers, whose sum is %d\n", numbers.Len(), sum)
	fmt.Fprintf(w, "%d blocks, %d bytes used, %d reserved\n", stats.Blocks, stats.Used, stats.Reserved)
	return nil
}
