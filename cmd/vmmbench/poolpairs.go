package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/measure"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/pool"
)

// Of mixed pairs.
const (
	mixedLive = 2000
	mixedFrom = 256
	mixedTo   = 64 << 10
)

// pairDraws is after how many pairs the same sizes come again.
const pairDraws = 1 << 14

// pairs is a contender that frees a block and allocates another one in its place.
type pairs struct {
	noData
	pool   pool.Allocator
	stream *vmm.Stream
	sizes  []uint64
	slots  []uint32
	blocks []pool.Block
	at     int
}

// pairs opens a pool and fills it.
func (o poolOptions) pairs(kind, name string) (contender, error) {
	p := &pairs{sizes: make([]uint64, pairDraws), slots: make([]uint32, pairDraws), blocks: make([]pool.Block, 1)}
	if name == pairMixed {
		p.blocks = make([]pool.Block, mixedLive)
	}
	r := rand.New(rand.NewPCG(mixedLive, 0))
	for i := range p.sizes {
		switch name {
		case pairSmall:
			p.sizes[i] = 4 << 10
		case pairLarge:
			p.sizes[i] = 1 << 20
		default:
			p.sizes[i], p.slots[i] = mixedFrom+r.Uint64N(mixedTo-mixedFrom+1), r.Uint32N(mixedLive)
		}
	}
	var err error
	if p.pool, err = o.pool(kind); err != nil {
		return nil, err
	}
	if p.stream, err = o.dev.NewStream(); err != nil {
		return nil, errors.Join(err, p.pool.Close())
	}
	if err := p.run(o.dev.settings.warmPairs); err != nil {
		return nil, errors.Join(err, p.close())
	}
	return p, nil
}

func (p *pairs) run(n int) error {
	for range n {
		i := p.at % pairDraws
		p.at++
		b := &p.blocks[p.slots[i]]
		if b.Ptr() != 0 {
			if err := p.pool.Free(p.stream, *b); err != nil {
				return err
			}
			*b = pool.Block{}
		}
		var err error
		if *b, err = p.pool.Alloc(p.stream, p.sizes[i]); err != nil {
			return err
		}
	}
	return nil
}

func (p *pairs) measure(_ context.Context, loops int) (measure.Sample, error) {
	began := time.Now()
	err := p.run(loops)
	return measure.Sample{NS: float64(time.Since(began))}, err
}

func (p *pairs) describe(c *report.Case, _ []measure.Sample) { c.Flags = append(c.Flags, wallClock) }

func (p *pairs) close() (err error) {
	for _, b := range p.blocks {
		if b.Ptr() != 0 {
			err = errors.Join(err, p.pool.Free(p.stream, b))
		}
	}
	return errors.Join(err, p.stream.Sync(), p.pool.Close(), p.stream.Close())
}
