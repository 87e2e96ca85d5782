package main

import (
	"errors"
	"fmt"
	"math"

	"github.com/cuvmm/cuvmm/vmm/pool"
)

// phases is a program with a phase that needs much memory and one that needs little. With the
// threshold at its greatest, synchronisations release nothing, so the rounds of the first
// phase reuse what the first of them created. TrimTo then releases it for others. With a
// threshold of 0, which is the default, each synchronisation would have.
func (d *demo) phases() error {
	return d.with(pool.Options{}, func(p *pool.Pool) error {
		if err := p.SetReleaseThreshold(math.MaxUint64); err != nil {
			return err
		}
		for range 10 {
			if err := d.round(p); err != nil {
				return err
			}
			if err := d.stream.Sync(); err != nil {
				return err
			}
		}
		many, err := p.Stats()
		if err != nil {
			return err
		}
		// The stream is synchronised, so the pool knows that nothing uses the memory.
		freed, err := p.TrimTo(0)
		if err != nil {
			return err
		}
		few, err := p.Stats()
		if err != nil {
			return err
		}
		fmt.Fprintf(d.w, "phases: created once: %v; trimmed: %v; left: %d bytes\n",
			many.Created == many.Reserved, freed == many.Reserved, few.Reserved)

		if err := errors.Join(p.SetReleaseThreshold(0), d.round(p), d.stream.Sync()); err != nil {
			return err
		}
		if few, err = p.Stats(); err != nil {
			return err
		}
		fmt.Fprintf(d.w, "phases: with a threshold of 0 a synchronisation leaves %d bytes\n", few.Reserved)
		return nil
	})
}

// round allocates ten blocks, has a kernel use each and frees them.
func (d *demo) round(p *pool.Pool) error {
	var blocks []pool.Block
	for i := range uint64(10) {
		b, err := p.Alloc(d.stream, (i+1)<<16)
		if err != nil {
			return err
		}
		blocks = append(blocks, b)
	}
	for _, b := range blocks {
		if err := errors.Join(d.work(d.stream, b, 0), p.Free(d.stream, b)); err != nil {
			return err
		}
	}
	return nil
}
