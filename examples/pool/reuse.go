package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/pool"
)

const chunk = 2 << 20

// reuse shows when a stream may have memory that another stream has freed. The pool has one
// chunk, and a block is all of it, so that nothing else can be had.
func (d *demo) reuse() error {
	for _, policy := range []struct {
		name    string
		on      pool.Reuse
		between func() error // what the program does after the free
		retry   bool         // the work has to end by itself
	}{
		{"follow events", pool.ReuseFollowEvents, func() error { return after(d.other, d.stream) }, false},
		{"opportunistic", pool.ReuseOpportunistic, func() error { return nil }, true},
		{"internal dependencies", pool.ReuseInternalDependencies, func() error { return nil }, false},
		{"none, after a synchronisation", 0, func() error { return d.stream.Sync() }, false},
	} {
		err := d.with(pool.Options{Max: chunk, ChunkSize: chunk}, func(p *pool.Pool) error {
			if err := errors.Join(p.SetReleaseThreshold(chunk), p.SetReuse(0)); err != nil {
				return err
			}
			b, err := p.Alloc(d.stream, chunk)
			if err != nil {
				return err
			}
			if err := errors.Join(d.work(d.stream, b, 0), p.Free(d.stream, b)); err != nil {
				return err
			}
			// Without the policy the memory is not the other stream's, even if the work has
			// ended meanwhile: no one has said so.
			switch _, err := p.Alloc(d.other, chunk); {
			case err == nil:
				return errors.New("memory was reused with all policies off")
			case !errors.Is(err, vmm.ErrOutOfMemory):
				return err
			}

			if err := errors.Join(p.SetReuse(policy.on), policy.between()); err != nil {
				return err
			}
			next, err := p.Alloc(d.other, chunk)
			if policy.retry && err != nil {
				next, err = retry(func() (pool.Block, error) { return p.Alloc(d.other, chunk) })
			}
			if err != nil {
				return err
			}
			stats, err := p.Stats()
			if err != nil {
				return err
			}
			fmt.Fprintf(d.w, "reuse by %s: the same memory: %v, waits inserted: %d\n",
				policy.name, next.Ptr() == b.Ptr(), stats.Waits)
			return errors.Join(d.work(d.other, next, 1), p.Free(d.other, next))
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// retry allocates once the work that uses the memory has ended.
func retry(alloc func() (pool.Block, error)) (b pool.Block, err error) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for range 10_000 {
		if b, err = alloc(); !errors.Is(err, vmm.ErrOutOfMemory) {
			break
		}
		<-tick.C
	}
	return b, err
}
