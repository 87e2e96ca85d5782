package vmm_test

import (
	"expvar"
	"fmt"
	"log/slog"
	"os"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
)

// A device's statistics under /debug/vars, read anew for each request.
func ExampleStats_expvar() {
	dev, err := vmm.OpenDriver(host.New(host.Config{Memory: 1 << 30}), 0)
	if err != nil {
		panic(err)
	}
	defer dev.Close()
	expvar.Publish("gpu0", expvar.Func(func() any { return dev.Stats() }))

	g, err := dev.Alloc(3 << 20)
	if err != nil {
		panic(err)
	}
	defer g.Close()
	var vars struct{ Committed, Used uint64 }
	read(expvar.Get("gpu0"), &vars)
	fmt.Println(vars.Committed>>20, vars.Used>>20)
	// Output: 4 3
}

// Statistics as a group of a log line.
func ExampleStats_slog() {
	dev, err := vmm.OpenDriver(host.New(host.Config{Memory: 1 << 30}), 0)
	if err != nil {
		panic(err)
	}
	defer dev.Close()
	g, err := dev.Alloc(2 << 20)
	if err != nil {
		panic(err)
	}
	defer g.Close()

	log := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			switch a.Key {
			case "range", "msg", "committed", "used", "chunks": // what fits a page
				return a
			}
			return slog.Attr{}
		},
	}))
	log.Info("grown", "range", g.Stats())
	// Output: msg=grown range.committed=2097152 range.used=2097152 range.chunks=1
}
