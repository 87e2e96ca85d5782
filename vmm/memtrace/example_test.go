//go:build linux

package memtrace_test

import (
	"fmt"
	"log"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/memtrace"
)

// An Append, as the history of its device shows it.
func ExampleResolve() {
	dev, err := vmm.Open("host")
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	dev.SetHistory(vmm.HistoryOptions{Events: 10_000})
	g, err := dev.NewRange(vmm.RangeOptions{Max: 1 << 30})
	if err != nil {
		log.Fatal(err)
	}
	defer g.Close()
	if err := g.Append(make([]byte, 3<<20)); err != nil {
		log.Fatal(err)
	}
	for _, e := range dev.History(0) {
		line := memtrace.Resolve(e) // its stack, as text
		fmt.Println(line.Kind, line.Size, line.Where != "")
	}
	// Output:
	// reserve 1073741824 true
	// create 4194304 true
	// map 4194304 true
	// grow 4194304 true
}
