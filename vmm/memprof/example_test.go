//go:build linux

package memprof_test

import (
	"fmt"
	"log"
	"net/http"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/memprof"
)

// A server whose profile of device memory "go tool pprof http://127.0.0.1:6060/debug/pprof/gpumem"
// shows.
func ExampleHandler() {
	http.Handle("/debug/pprof/gpumem", memprof.Handler())
	log.Fatal(http.ListenAndServe("127.0.0.1:6060", nil))
}

// How many bytes of device memory the program has. With a rate of 1 they are exact.
func ExampleTake() {
	defer memprof.SetRate(memprof.SetRate(1))
	dev, err := vmm.Open("host")
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	g, err := dev.Alloc(4 << 20)
	if err != nil {
		log.Fatal(err)
	}
	defer g.Close()
	p := memprof.Take()
	for i, t := range p.SampleType {
		if t.Type == "inuse_space" {
			total := int64(0)
			for _, s := range p.Sample {
				total += s.Value[i]
			}
			fmt.Println(total, t.Unit)
		}
	}
	// Output: 4194304 bytes
}
