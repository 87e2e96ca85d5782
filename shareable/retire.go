package shareable

import (
	"context"
	"fmt"

	"github.com/cuvmm/cuvmm/vmm"
)

// Retire takes back the bytes from n on, in this order:
//
//  1. readers see no more than n bytes, in a new generation;
//  2. they unmap the chunks that hold no byte below n, and acknowledge. A reader that takes longer
//     than Options.AckTimeout is disconnected. Before that it may use up two more such limits: one
//     to receive an earlier frame, one to receive this one. No Retire waits for what a disconnected
//     reader does with the memory;
//  3. the range's Len becomes n, and Clip can free the memory.
//
// Retire returns vmm.ErrBounds if n exceeds the published length: call Flush first, if bytes were
// appended just now. It returns vmm.ErrBusy while PublishAfter waits for an event, and PublishAfter
// returns that while Retire runs. If ctx ends first, or the range refuses the length, Retire
// returns the error and the range's Len is published again.
func (p *Publication) Retire(ctx context.Context, n uint64) error {
	if p == nil || p.srv == nil {
		return errNoPublication
	}
	p.addLengthSetter()
	defer p.removeLengthSetter()
	if err := p.runExclusive(ctx, func(ctx context.Context) error { return p.retireExclusive(ctx, n) }); err != nil {
		p.wakeFollow()
		return fmt.Errorf("retire %q from %d on: %w", p.name, n, err)
	}
	return nil
}

// retireExclusive is Retire, inside runExclusive.
func (p *Publication) retireExclusive(ctx context.Context, n uint64) error {
	if err := p.checkLive(); err != nil {
		return err
	}
	p.mu.Lock()
	if n > p.published {
		p.mu.Unlock()
		return fmt.Errorf("%w: %d bytes are published", vmm.ErrBounds, p.published)
	}
	if len(p.pending) > 0 || p.pendingRunning {
		p.mu.Unlock()
		return fmt.Errorf("%w: PublishAfter waits for an event", vmm.ErrBusy)
	}
	// The generation moves first, then the length: a reader never takes the
	// shorter length for one of the old generation.
	p.dropChunksLocked(p.chunksBelowLocked(n))
	p.published = n
	p.page.published.Store(n)
	p.page.queued.Store(n)
	p.notify()
	generation := p.generation
	p.mu.Unlock()

	// The memory stays held until every reader has unmapped it or is gone.
	err := p.waitUntil(ctx, func() bool {
		for a := range p.attachments {
			if a.ackedGeneration < generation {
				return false
			}
		}
		return true
	})
	if err != nil {
		return err
	}
	return p.hold.SetLen(n)
}
