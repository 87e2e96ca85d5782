package main

import (
	"errors"
	"fmt"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/kernel"
	"github.com/cuvmm/cuvmm/vmm/pool"
)

// captured uses a block in a graph. The block is allocated before and freed after the last
// replay: an allocation does not become part of a graph, and is refused in a capture.
func (d *demo) captured() error {
	return d.with(pool.Options{}, func(p *pool.Pool) error {
		b, err := p.Alloc(d.stream, size)
		if err != nil {
			return err
		}
		if err := d.stream.BeginCapture(); err != nil {
			return err
		}
		err = d.stream.Fill(b.Ptr(), 7, 4, size/4)
		_, refused := p.Alloc(d.stream, size)
		g, end := d.stream.EndCapture()
		if err = errors.Join(err, end); err != nil {
			return err
		}
		x, err := g.Instantiate()
		if err = errors.Join(err, g.Close()); err != nil {
			return err
		}
		if err := d.replay(x, b); err != nil {
			return errors.Join(err, x.Close())
		}
		fmt.Fprintln(d.w, "in a graph: Alloc during the capture is refused:", errors.Is(refused, vmm.ErrCapturing))
		return errors.Join(x.Close(), p.Free(d.stream, b))
	})
}

// replay launches a graph that fills the block with sevens, twice, after other work on it.
func (d *demo) replay(x *vmm.GraphExec, b pool.Block) error {
	for range 2 {
		if err := errors.Join(d.work(d.stream, b, 0), x.Launch(d.stream)); err != nil {
			return err
		}
		sum, err := kernel.SumUint[uint32](d.kernels, d.stream, b)
		if err != nil {
			return err
		}
		fmt.Fprintln(d.w, "in a graph: a replayed Fill leaves a sum of", sum)
	}
	return nil
}
