// Probe runs single operations of vmm on the host driver, and writes for each
// the functions that it ran through: out/operation/covcounters.*.
package main

import (
	"bytes"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"runtime"
	"runtime/coverage"
	"strings"
	"time"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

const chunk = 2 << 20

func main() {
	// With one P the device's goroutine runs only when the operation waits.
	runtime.GOMAXPROCS(1)
	d, err := vmm.Open("host")
	must(err)
	text := []byte("contents")

	fits := ranged(d)
	must(fits.Append(text))
	measure("Append that fits", func() error { return fits.Append(text) })

	grows := ranged(d)
	must(grows.Append(make([]byte, chunk)))
	must(grows.Append(make([]byte, chunk)))
	full := make([]byte, chunk)
	measure("Append that grows", func() error { return grows.Append(full) })

	clipped, word := ranged(d), ranged(d)
	must(clipped.Append(make([]byte, 3*chunk)))
	must(word.Append(make([]byte, 8)))
	s, err := d.NewStream()
	must(err)
	switch g := any(clipped).(type) {
	case interface{ Use(...*vmm.Stream) error }:
		must(g.Use(s))
	case interface{ UsedBy(...*vmm.Stream) error }:
		must(g.UsedBy(s))
	default:
		log.Fatal("Range has neither Use nor UsedBy")
	}
	raw, err := d.Raw()
	must(err)
	// The stream works on what Clip gives up, and is held until the word is 1.
	gate := raw.(interface {
		WaitValue(s driver.Stream, p vmm.Ptr, x uint64, width int) error
	})
	must(gate.WaitValue(s.Raw(), word.Ptr(), 1, 8))
	must(raw.Fill(clipped.Ptr()+2*chunk, 0xab, 1, chunk, s.Raw()))
	must(clipped.SetLen(chunk))
	measure("Clip after Use", clipped.Clip)
	measure("background", func() error {
		_, err := word.WriteAt([]byte{1}, 0)
		must(coverage.ClearCounters())
		time.Sleep(300 * time.Millisecond)
		return err
	})

	sleeps := ranged(d)
	must(sleeps.Append(text))
	// 1 keeps the contents; its name differs between versions.
	measure("first Sleep", func() error { return vmm.Sleep(1, sleeps) })
	must(vmm.Wake(sleeps))
	got := make([]byte, len(text))
	_, err = sleeps.ReadAt(got, 0)
	must(err)
	if !bytes.Equal(got, text) {
		log.Fatal("Sleep(1) did not keep the contents")
	}
}

func ranged(d *vmm.Device) *vmm.Range {
	r, err := d.NewRange(vmm.RangeOptions{Max: 64 << 20, Chunk: chunk})
	must(err)
	return r
}

// measure writes what f runs through, up to its return and no further.
func measure(name string, f func() error) {
	time.Sleep(300 * time.Millisecond) // what came before has settled
	var counters bytes.Buffer
	must(coverage.ClearCounters())
	err := f()
	must(coverage.WriteCounters(&counters))
	must(err)
	dir := filepath.Join(os.Args[1], name)
	must(os.Mkdir(dir, 0o700))
	must(coverage.WriteMetaDir(dir))
	meta, err := filepath.Glob(filepath.Join(dir, "covmeta.*"))
	must(err)
	_, hash, _ := strings.Cut(filepath.Base(meta[0]), ".")
	file := fmt.Sprintf("covcounters.%s.1.1", hash)
	must(os.WriteFile(filepath.Join(dir, file), counters.Bytes(), 0o600))
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
