//go:build linux

package store_test

import (
	"context"
	"fmt"
	"log"

	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/shareable/store"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
)

// A writer seals an object and ends; a reader gets it by its name.
func Example() {
	check := func(err error) {
		if err != nil {
			log.Fatal(err)
		}
	}
	ctx := context.Background()
	dev, err := vmm.OpenDriver(host.New(host.Config{}), 0) // vmm.Open("auto") for a GPU
	check(err)
	s, err := store.NewServer(dev, store.Options{}) // or run vmmstored
	check(err)
	c, err := s.Connect(ctx, dev, store.ClientOptions{}) // or store.Connect(ctx, "", dev, ...)
	check(err)

	w, err := c.Create(ctx, "greeting", store.CreateOptions{Size: 1 << 20, Growable: true})
	check(err)
	check(w.Append([]byte("hello, ")))
	check(w.Append([]byte("world")))
	check(w.Seal(ctx, shareable.SealOptions{}))
	check(w.Close())

	b, err := c.Get(ctx, "greeting", store.GetOptions{})
	check(err)
	text := make([]byte, b.Len())
	_, err = b.ReadAt(text, 0)
	check(err)
	fmt.Println(string(text), b.Sealed())
	check(c.Delete(ctx, "greeting", store.DeleteOptions{}))
	fmt.Println(b.Len(), s.Stats().Objects) // it stays for b
	check(b.Close())

	check(c.Close())
	check(s.Close())
	check(dev.Close())
	// Output:
	// hello, world true
	// 12 1
}

// A writer of a durable object ends, and the next one goes on.
func ExampleClient_Append() {
	check := func(err error) {
		if err != nil {
			log.Fatal(err)
		}
	}
	ctx := context.Background()
	dev, err := vmm.OpenDriver(host.New(host.Config{}), 0)
	check(err)
	s, err := store.NewServer(dev, store.Options{})
	check(err)
	c, err := s.Connect(ctx, dev, store.ClientOptions{})
	check(err)

	w, err := c.Create(ctx, "log", store.CreateOptions{Size: 1 << 20, Growable: true, Durable: true})
	check(err)
	check(w.Append([]byte("one ")))
	check(w.Close()) // or the process is killed

	w, err = c.Append(ctx, "log", store.AppendOptions{Wait: true})
	check(err)
	fmt.Println(w.Len())
	check(w.Append([]byte("two")))
	check(w.Seal(ctx, shareable.SealOptions{}))
	check(w.Close())

	b, err := c.Get(ctx, "log", store.GetOptions{})
	check(err)
	text := make([]byte, b.Len())
	_, err = b.ReadAt(text, 0)
	check(err)
	fmt.Println(string(text))
	check(b.Close())

	check(c.Close())
	check(s.Close())
	check(dev.Close())
	// Output:
	// 4
	// one two
}
