//go:build linux

package shareable_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/vmm"
)

// A range that grows, and a reader that follows it. Here both are in one process.
func Example() {
	check := func(err error) {
		if err != nil {
			log.Fatal(err)
		}
	}
	dir, err := os.MkdirTemp("", "")
	check(err)
	socket := filepath.Join(dir, "s")
	dev, err := vmm.Open("host")
	check(err)
	r, err := dev.NewRange(vmm.RangeOptions{Max: 1 << 30, Share: vmm.ShareFD})
	check(err)
	server, err := shareable.Listen(dev, socket, shareable.Options{})
	check(err)
	p, err := server.Publish("log", r, shareable.PublishOptions{})
	check(err)

	ctx := context.Background()
	v, err := shareable.Attach(ctx, socket, "log", dev, shareable.AttachOptions{})
	check(err)
	check(r.Append([]byte("one, ")))
	check(r.Append([]byte("two")))
	check(v.Wait(ctx, 8)) // until 8 bytes are published
	b := make([]byte, 8)
	_, err = v.ReadAt(b, 0)
	check(err)
	fmt.Println(string(b))

	check(v.Close())
	check(p.Close())
	check(server.Close())
	check(r.Close())
	check(dev.Close())
	check(os.RemoveAll(dir))
	// Output: one, two
}
