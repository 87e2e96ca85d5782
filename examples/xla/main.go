// Command xla multiplies all rows of a table that grows in place with a query, by XLA. PJRT gets
// the table's memory as a view, and after growth another view, of the longer prefix. It is a module
// of its own, and needs a plugin of PJRT. In its directory:
//
//	go run .
//	go run . -device host -plugin cpu
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"slices"

	"github.com/gomlx/go-xla/pkg/pjrt"

	"github.com/cuvmm/cuvmm/growable"
	"github.com/cuvmm/cuvmm/vmm"
)

const width = 64

func main() {
	device := flag.String("device", "cuda:0", "where the table is: on the first device of the plugin")
	plugin := flag.String("plugin", "cuda", "which plugin of PJRT")
	flag.Parse()
	if err := run(os.Stdout, *device, *plugin); err != nil {
		log.Fatal(err)
	}
}

func run(w io.Writer, device, plugin string) (err error) {
	client, err := newClient(plugin)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, client.Destroy()) }()
	dev, err := vmm.Open(device)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	rows, err := growable.NewRows[float32](dev, width, growable.RowsOptions{MaxRows: 1 << 20})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()

	query, first := slices.Repeat([]float32{1}, width), rows.Ptr()
	for n := range 4 {
		// Append waits for its copy, so XLA needs no event of a stream.
		if err := rows.Append(slices.Repeat([]float32{float32(n)}, width*10_000)...); err != nil {
			return err
		}
		all, err := products(client, rows, query)
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "%5d rows, the same address: %t, the last product: %g\n",
			len(all), rows.Ptr() == first, all[len(all)-1])
	}
	return nil
}

func newClient(plugin string) (*pjrt.Client, error) {
	p, err := pjrt.GetPlugin(plugin)
	if err != nil {
		return nil, err
	}
	var options pjrt.NamedValuesMap
	if plugin != "cpu" {
		// Without it, XLA takes three quarters of the GPU at once, and the table cannot grow there.
		options = pjrt.NamedValuesMap{"preallocate": false}
	}
	return p.NewClient(options)
}
