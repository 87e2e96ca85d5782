// Command pool allocates blocks in the order of two streams from a pool of 16 MiB, which drops
// results that are kept when its memory runs out. Try it, on a GPU if there is one:
//
//	go run ./examples/pool
//	go run ./examples/pool -device host
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"sync"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/pool"
)

func main() {
	device := flag.String("device", "auto", "which device; auto is the first GPU, or host memory")
	flag.Parse()
	if err := run(os.Stdout, *device); err != nil {
		log.Fatal(err)
	}
}

const mib = 1 << 20

// results are blocks that can be computed again, the oldest first.
type results struct {
	mu   sync.Mutex // OnOOM is called by whoever needs memory
	pool *pool.Pool
	kept []result
}

type result struct {
	block pool.Block
	of    *vmm.Stream // whose work wrote it
}

// drop frees the oldest result after the work on it, and reports whether there was one.
func (r *results) drop(*vmm.Stream, uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.kept) == 0 || r.pool.Free(r.kept[0].of, r.kept[0].block) != nil {
		return false // Alloc returns ErrOutOfMemory; what cannot be freed is the error of Pool.Close
	}
	r.kept = r.kept[1:]
	return true
}

// compute fills a block in the stream and keeps it.
func (r *results) compute(s *vmm.Stream, value uint32) error {
	b, err := r.pool.Alloc(s, 4*mib) // may call drop
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.kept = append(r.kept, result{b, s})
	return s.Fill(b.Ptr(), value, 4, b.Size()/4)
}

func run(w io.Writer, device string) (err error) {
	dev, err := vmm.Open(device)
	if err != nil {
		return err
	}
	r, streams := results{}, [2]*vmm.Stream{}
	defer func() {
		for r.drop(nil, 0) {
		}
		err = errors.Join(err, streams[0].Close(), streams[1].Close(), r.pool.Close(), dev.Close())
	}()
	if r.pool, err = pool.New(dev, pool.Options{Max: 16 * mib, ChunkSize: 2 * mib, OnOOM: r.drop}); err != nil {
		return err
	}
	for i := range streams {
		if streams[i], err = dev.NewStream(); err != nil {
			return err
		}
	}
	for i := range uint32(10) { // 40 MiB in all, by turns in either stream
		if err := r.compute(streams[i%2], i); err != nil {
			return err
		}
	}
	scratch, err := r.pool.Alloc(streams[0], 8*mib) // of the four that are left, the two oldest go
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.pool.Free(streams[0], scratch)) }()
	u, err := r.pool.Usage()
	fmt.Fprintf(w, "%d MiB of %d used by scratch and the last %d results of 10, %d idle\n", u.Stats.Used/mib, u.Stats.Reserved/mib, len(r.kept), u.Idle/mib)
	_, oom := r.pool.Alloc(streams[1], 12*mib) // all results go, in vain
	fmt.Fprintf(w, "12 MiB beside 8 of 16: out of memory %t, %d results left\n", errors.Is(oom, vmm.ErrOutOfMemory), len(r.kept))
	return err
}
