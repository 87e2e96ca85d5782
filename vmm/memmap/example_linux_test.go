package memmap_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
	"github.com/cuvmm/cuvmm/vmm/memmap"
)

// Readers of a Server, in the map of the process that publishes.
func ExampleOptions_sharers() {
	dev, err := vmm.OpenDriver(host.New(host.Config{Memory: 1 << 30}), 0)
	if err != nil {
		panic(err)
	}
	defer dev.Close()
	dir, err := os.MkdirTemp("", "memmap")
	if err != nil {
		panic(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	srv, err := shareable.Listen(dev, filepath.Join(dir, "socket"), shareable.Options{})
	if err != nil {
		panic(err)
	}
	defer srv.Close()
	g, err := dev.NewRange(vmm.RangeOptions{Max: 1 << 20, Share: vmm.ShareFD})
	if err != nil {
		panic(err)
	}
	defer g.Close()
	p, err := srv.Publish("table", g, shareable.PublishOptions{})
	if err != nil {
		panic(err)
	}
	defer p.Close()
	if err := g.Append(make([]byte, 1000)); err != nil {
		panic(err)
	}
	v, err := shareable.Attach(context.Background(), srv.Path(), "table", dev, shareable.AttachOptions{}) // another process, mostly
	if err != nil {
		panic(err)
	}
	defer v.Close()
	for len(srv.Readers()) == 0 || srv.Readers()[0].Bytes == 0 {
		time.Sleep(time.Millisecond)
	}

	m := memmap.New(memmap.Options{
		Devices: []*vmm.Device{dev},
		Sharers: func() (all []memmap.Sharer) {
			for _, r := range srv.Readers() {
				all = append(all, memmap.Sharer{
					Addr: memmap.Addr(r.Addr), Object: r.Name, PID: r.PID, UID: int(r.UID), Bytes: r.Bytes, Behind: r.BytesBehind,
				})
			}
			return all
		},
	})
	for _, r := range m.Snapshot().Devices[0].Ranges {
		if r.Addr == memmap.Addr(g.Ptr()) {
			fmt.Println(len(r.Sharers), r.Sharers[0].Object, r.Sharers[0].PID == os.Getpid())
		}
	}
	// Output:
	// 1 table true
}
