package memmap_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
	"github.com/cuvmm/cuvmm/vmm/memmap"
	"github.com/cuvmm/cuvmm/vmm/pool"
)

// A map under /debug/memmap/ of a program's server, and as a file.
func Example() {
	dev, err := vmm.OpenDriver(host.New(host.Config{Memory: 1 << 30}), 0)
	if err != nil {
		panic(err)
	}
	defer dev.Close()
	p, err := pool.New(dev, pool.Options{})
	if err != nil {
		panic(err)
	}
	defer p.Close()
	g, err := dev.Alloc(3 << 20)
	if err != nil {
		panic(err)
	}
	defer g.Close()

	m := memmap.New(memmap.Options{
		Title:   "my program",
		Devices: []*vmm.Device{dev},
		Pools:   func() map[string]*pool.Pool { return map[string]*pool.Pool{"activations": p} },
	})
	mux := http.NewServeMux()
	mux.Handle("/debug/memmap/", m)
	srv := httptest.NewServer(mux)
	defer srv.Close()
	srv.Config.RegisterOnShutdown(func() { _ = m.Close() }) // pages that are open do not hold it up

	resp, err := srv.Client().Get(srv.URL + "/debug/memmap/data.json")
	if err != nil {
		panic(err)
	}
	defer resp.Body.Close()
	var data memmap.Snapshot
	if err := json.NewDecoder(resp.Body).Decode(&data); err != nil {
		panic(err)
	}
	for _, r := range data.Devices[0].Ranges {
		if r.Kind == "range" {
			fmt.Println(r.Len>>20, "of", r.Committed>>20, "MiB are used")
		}
	}

	var page strings.Builder // a file, mostly
	if err := m.WriteHTML(&page); err != nil {
		panic(err)
	}
	fmt.Println(strings.Contains(page.String(), "<title>my program: memory map</title>"))
	// Output:
	// 3 of 4 MiB are used
	// true
}
