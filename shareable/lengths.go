package shareable

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// Queued says that the bytes below n are written when the event has passed: a
// kernel was launched into room that Grow made, say. Readers see n as queued at
// once. When the event has passed, Queued moves the range's Len to n, and with
// that it is published; several are taken in the order of their calls. n may
// not lie beyond Cap (ErrBounds), nor below what was queued before (ErrInvalid).
// The event belongs to the Publication from then on, which closes it, also if
// Queued fails. What fails later shows in Err, and Len stays from then on.
func (p *Publication) PublishAfter(n uint64, when *vmm.Event) error {
	if p == nil {
		return errors.Join(errNoPublication, when.Close())
	}
	if err := p.addPending(n, when); err != nil {
		_ = when.Close()
		return fmt.Errorf("queue %d bytes of %q: %w", n, p.name, err)
	}
	return nil
}

func (p *Publication) addPending(n uint64, when *vmm.Event) error {
	if err := p.checkLive(); err != nil {
		return err
	}
	if when == nil {
		return fmt.Errorf("%w: no event", vmm.ErrInvalid)
	}
	if room := p.r.Cap(); n > room {
		return fmt.Errorf("%w: there is room for %d", vmm.ErrBounds, room)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.state != wire.StateLive {
		return fmt.Errorf("%w: publication", vmm.ErrClosed)
	}
	if before := p.page.queued.Load(); n < before {
		return fmt.Errorf("%w: %d were queued before", vmm.ErrInvalid, before)
	}
	p.page.queued.Store(n)
	p.page.notify()
	p.pending = append(p.pending, pendingLength{n, when})
	if !p.pendingRunning {
		p.pendingRunning = true
		p.tasks.Go(p.publishPending)
	}
	return nil
}

// drain moves Len as the events pass, and goes when there are none.
func (p *Publication) publishPending() {
	for {
		p.mu.Lock()
		if len(p.pending) == 0 {
			p.pendingRunning = false
			p.signalLocked()
			p.mu.Unlock()
			return
		}
		q := p.pending[0]
		p.pending = p.pending[1:]
		p.mu.Unlock()
		err := q.event.Sync()
		_ = q.event.Close()
		if err == nil && p.Err() == nil && q.n > p.r.Len() {
			err = p.r.SetLen(q.n)
		}
		if err != nil {
			p.fail(fmt.Errorf("queued %d bytes: %w", q.n, err))
		}
	}
}

// signal wakes those who wait for acknowledgements, or for the queue to be
// empty. It needs p.mu.
func (p *Publication) signalLocked() {
	close(p.progress)
	p.progress = make(chan struct{})
}

// until waits for something to be so. The function needs p.mu.
func (p *Publication) waitUntil(ctx context.Context, so func() bool) error {
	if ctx == nil {
		return fmt.Errorf("%w: no context", vmm.ErrInvalid)
	}
	for {
		p.mu.Lock()
		if so() {
			p.mu.Unlock()
			return nil
		}
		moved := p.progress
		p.mu.Unlock()
		select {
		case <-moved:
		case <-ctx.Done():
			return ctx.Err()
		case <-p.ctx.Done():
			return fmt.Errorf("%w: publication", vmm.ErrClosed)
		}
	}
}

// Retire takes the bytes from n on back: readers are told, unmap and
// acknowledge, or are cut off after Options.AckTimeout; then the range's Len is n, and
// Clip gives the memory back. Chunks that hold a byte below n stay. From the
// moment of the call readers see no more than n bytes, in a new generation. If
// ctx ends first, or the range refuses the length, what Len shows is published
// again.
func (p *Publication) Retire(ctx context.Context, n uint64) error {
	if p == nil {
		return errNoPublication
	}
	if err := p.runExclusive(ctx, func(ctx context.Context) error { return p.retireExclusive(ctx, n) }); err != nil {
		select {
		case p.recheck <- struct{}{}:
		default:
		}
		return fmt.Errorf("retire %q from %d on: %w", p.name, n, err)
	}
	return nil
}

func (p *Publication) retireExclusive(ctx context.Context, n uint64) error {
	if err := p.checkLive(); err != nil {
		return err
	}
	p.mu.Lock()
	if n > p.done {
		p.mu.Unlock()
		return fmt.Errorf("%w: %d bytes are published", vmm.ErrBounds, p.done)
	}
	if len(p.pending) > 0 || p.pendingRunning {
		p.mu.Unlock()
		return fmt.Errorf("%w: queued work is to follow", vmm.ErrBusy)
	}
	p.dropChunksLocked(p.chunksBelowLocked(n))
	p.done = n
	p.page.done.Store(n)
	p.page.queued.Store(n)
	p.page.notify()
	told := p.generation
	p.mu.Unlock()

	err := p.waitUntil(ctx, func() bool {
		for a := range p.attachments {
			if a.ackedGeneration < told {
				return false
			}
		}
		return true
	})
	if err != nil {
		return err
	}
	release, err := p.r.Hold(n)
	if err != nil {
		return err
	}
	p.release()
	p.release, p.held = release, n
	return p.r.SetLen(n)
}

// cover is how many chunks hold a byte below n. It needs p.mu.
func (p *Publication) chunksBelowLocked(n uint64) int {
	i := len(p.chunks)
	for i > 0 && p.chunks[i-1].Offset >= n {
		i--
	}
	return i
}

// SealOptions is how to seal; its zero value is the default.
type SealOptions struct {
	// Digest publishes the SHA-256 of the bytes.
	Digest bool
	// KeepWriting leaves the owner's right to write as it is. By default it is
	// taken away, which waits as vmm.Range.Grant does: in a process that has a
	// View of its own object, and a stream that waits on it for more than there
	// will be, for ever.
	KeepWriting bool
}

// Seal publishes what Len shows, after Queued work has run, and says that it is
// all: readers that wait for more are let go. The range is held as before. A
// range that is made with vmm.ShareReadOnly is sealed by the system against
// readers that would write; elsewhere they are trusted.
func (p *Publication) Seal(ctx context.Context, o SealOptions) error {
	if p == nil {
		return errNoPublication
	}
	err := p.waitUntil(ctx, func() bool { return len(p.pending) == 0 && !p.pendingRunning })
	if err == nil {
		err = p.runExclusive(ctx, func(ctx context.Context) error { return p.sealExclusive(ctx, o) })
	}
	if err != nil {
		return fmt.Errorf("seal %q: %w", p.name, err)
	}
	return nil
}

func (p *Publication) sealExclusive(ctx context.Context, o SealOptions) (err error) {
	if err := p.publishRangeExclusive(ctx); err != nil {
		return err
	}
	if !o.KeepWriting {
		if err := p.r.Grant(vmm.AccessRead, p.r.Device()); err != nil {
			return err
		}
		defer func() {
			if err != nil { // nothing was sealed
				err = errors.Join(err, p.r.Grant(vmm.AccessReadWrite, p.r.Device()))
			}
		}()
	}
	var digest *[32]byte
	if o.Digest {
		sum, err := p.digestOf(ctx)
		if err != nil {
			return err
		}
		digest = &sum
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.state != wire.StateLive {
		return fmt.Errorf("%w: publication", vmm.ErrClosed)
	}
	if i := p.chunksBelowLocked(p.done); i < len(p.chunks) {
		p.dropChunksLocked(i) // nothing looks after what lies beyond from now on
	}
	p.state, p.sealed, p.digest = wire.StateSealed, true, digest
	p.page.state.Store(uint64(wire.StateSealed))
	p.page.notify()
	p.wakeSendersLocked()
	return nil
}

// sum is the digest of what is published.
func (p *Publication) digestOf(ctx context.Context) (sum [32]byte, err error) {
	h := sha256.New()
	rest := io.NewSectionReader(p.r, 0, int64(min(p.held, math.MaxInt64)))
	buf := make([]byte, 8<<20)
	for {
		if err := ctx.Err(); err != nil {
			return sum, err
		}
		n, err := rest.Read(buf)
		h.Write(buf[:n])
		if err == io.EOF {
			h.Sum(sum[:0])
			return sum, nil
		}
		if err != nil {
			return sum, err
		}
	}
}
