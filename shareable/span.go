package shareable

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/cuvmm/cuvmm/internal/errtext"
	"github.com/cuvmm/cuvmm/internal/inside"
	"github.com/cuvmm/cuvmm/internal/invariants"
	"github.com/cuvmm/cuvmm/internal/nonnil"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// Span is a part of a Reservation that other processes map. It neither grows nor moves, and nothing
// unmaps it until Close. Its bytes may change. Safe for concurrent use. The caller must Close it
// before the reservation.
type Span struct {
	object // the chunks that the span lies in

	release func()     // ends the hold on the reservation
	unused  bool       // CloseUnused has closed it; guarded by mu
	ending  sync.Mutex // held while it ends, so that what finds it ended finds it torn down; before mu
}

// PublishSpan makes n bytes of a reservation, from off on, available to readers under a name, as
// Publish does a range. A View of the span has only these bytes, and its Len no longer changes once
// all of them are mapped. But memory is shared in whole chunks, so a reader also maps what else
// lies in the first and the last chunk.
//
// For a block of a pool, hold the block with pool.Pool.HoldBlock first, and release it after Close
// or CloseUnused. The span alone keeps memory mapped, but does not keep a block from being freed.
//
// All of the span must be mapped, and be of memory made with vmm.ShareFD. PublishSpan returns
// vmm.ErrInvalid if it is not, if n is 0, or if readers may write and the memory was made with
// vmm.ShareReadOnly. It returns vmm.ErrBusy if the name is in use, vmm.ErrLimit for more objects
// than Options.MaxObjects or more than 65,536 chunks, and vmm.ErrClosed after Close of the server.
// The caller must Close the Span.
func (s *Server) PublishSpan(name string, res *vmm.Reservation, off, n uint64, o PublishOptions) (_ *Span, err error) {
	defer errtext.Wrapf(&err, "publish %q", name)
	if s == nil || s.dev == nil {
		return nil, errNoServer
	}
	switch {
	case res == nil || res.Device() == nil:
		return nil, fmt.Errorf("%w: no reservation", vmm.ErrInvalid)
	case res.Device().Driver() != s.dev.Driver():
		return nil, fmt.Errorf("%w: %v is of another driver than the server's %v", vmm.ErrInvalid, res.Device(), s.dev)
	case n == 0:
		return nil, fmt.Errorf("%w: a span of 0 bytes", vmm.ErrInvalid)
	}
	if o, err = o.resolve(name); err != nil {
		return nil, err
	}
	release, err := inside.VMM.HoldReservation(res, heldFor(name), off, n)
	if err != nil {
		return nil, err
	}
	p := &Span{release: release}
	p.init(s)
	p.name, p.write, p.layout, p.meta = name, o.Write, o.Layout, o.Meta
	p.lent = true
	p.published = n
	p.close = p.Close
	if err = p.addChunks(res, off, n); err == nil {
		err = s.register(&p.object, func() {})
	}
	if err != nil {
		p.teardown()
		return nil, err
	}
	return p, nil
}

// addChunks adds the chunks that the span lies in, before any reader finds it. Each is exported
// once: so what cannot be shared is an error here, and a reader need not wait for the driver.
func (p *Span) addChunks(res *vmm.Reservation, off, n uint64) error {
	first, end := res.Ptr()+vmm.Ptr(off), res.Ptr()+vmm.Ptr(off+n)
	p.mu.Lock()
	defer p.mu.Unlock()
	at := first
	for _, seg := range res.Segments() {
		next := seg.Addr + vmm.Ptr(seg.Size)
		if next <= first || seg.Addr >= end {
			continue
		}
		if seg.Addr > at {
			break
		}
		if len(p.chunks) == 0 {
			p.base = uint64(at - seg.Addr)
		}
		if len(p.chunks) == wire.MaxChunks {
			return fmt.Errorf("%w: more than %d chunks", vmm.ErrLimit, wire.MaxChunks)
		}
		if err := p.checkWrite(seg); err != nil {
			return err
		}
		p.lastID++
		p.chunks = append(p.chunks, publishedChunk{
			Chunk: wire.Chunk{ID: p.lastID, Offset: p.endLocked(), Size: seg.Size}, seg: seg, sentTo: p.srv.republish(seg),
		})
		at = next
	}
	if at < end {
		return fmt.Errorf("%w: nothing is mapped at %v", vmm.ErrInvalid, at)
	}
	p.max = p.endLocked()
	for _, c := range p.chunks {
		d, err := p.srv.fds.acquireChunk(c)
		if err != nil {
			return err
		}
		p.srv.fds.release(d)
	}
	return nil
}

// checkWrite returns vmm.ErrInvalid for memory that readers cannot write, if they are to.
func (p *Span) checkWrite(seg vmm.Segment) error {
	if !p.write || p.srv.dev.Supports(vmm.FeatureShareReadOnly) != nil {
		return nil
	}
	c, err := seg.Chunk()
	if err != nil {
		return err
	}
	made, err := c.Properties()
	if err == nil && made.Share&vmm.ShareReadOnly != 0 {
		err = fmt.Errorf("%w: the memory at %v was made with vmm.ShareReadOnly, and cannot be written", vmm.ErrInvalid, seg.Addr)
	}
	return cmp.Or(err, c.Close())
}

// Name is the name that readers attach to.
func (p *Span) Name() string { return nonnil.Of(p).name }

// Len is how many bytes the span has.
func (p *Span) Len() uint64 {
	p = nonnil.Of(p)
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.published
}

// Readers is the number of attached readers. A reader counts until its View is closed or its
// process ends.
func (p *Span) Readers() int {
	p = nonnil.Of(p)
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.attachments)
}

// Close ends the span: no reader can attach any more. Attached readers get DELETED, and keep what
// they have mapped until they close their View. Close, unlike CloseUnused, does not wait for them.
// Twice is fine, and so is a nil Span.
func (p *Span) Close() error {
	if p == nil || p.srv == nil {
		return nil
	}
	return p.end(true)
}

// CloseUnused waits until no reader is attached, then closes the span. Its memory can then be used
// for something else. Readers may attach meanwhile. If ctx ends first, CloseUnused returns
// vmm.ErrBusy and the error of ctx, and the span stays. It does not wait if ctx has already ended.
// If Close, or Close of the server, has ended the span, CloseUnused returns vmm.ErrClosed, because
// readers may still use the memory. A reader that is stopped, or that the server has cut off (after
// Options.AckTimeout, say), stays attached until its end of the connection is closed or shut down.
func (p *Span) CloseUnused(ctx context.Context) error {
	if p == nil || p.srv == nil {
		return nil
	}
	if ctx == nil {
		return fmt.Errorf("%w: no context", vmm.ErrInvalid)
	}
	for {
		err := p.end(false)
		if !errors.Is(err, vmm.ErrBusy) {
			return err
		}
		waited := p.waitUntil(ctx, func() bool { return len(p.attachments) == 0 })
		if waited != nil && !errors.Is(waited, vmm.ErrClosed) {
			return fmt.Errorf("%w: %w", err, waited)
		}
	}
}

// end lets no reader attach any more, and tears the span down. Without force it returns
// vmm.ErrBusy while a reader is attached, and vmm.ErrClosed if one may have been when force closed
// the span.
func (p *Span) end(force bool) error {
	p.ending.Lock()
	defer p.ending.Unlock()
	p.mu.Lock()
	ended, err := p.setClosedLocked(force)
	p.mu.Unlock()
	if ended {
		p.teardown()
	}
	return err
}

// setClosedLocked changes the state, and reports whether it was this call that did so. Requires mu.
func (p *Span) setClosedLocked(force bool) (ended bool, err error) {
	invariants.Held(&p.mu)
	n := len(p.attachments)
	switch {
	case p.state == wire.StateClosed && !p.unused && !force:
		return false, fmt.Errorf("close %q: %w: readers may use it still", p.name, vmm.ErrClosed)
	case p.state == wire.StateClosed:
		return false, nil
	case n > 0 && !force:
		return false, fmt.Errorf("close %q: %w: %d readers are attached", p.name, vmm.ErrBusy, n)
	}
	p.state, p.unused = wire.StateClosed, !force
	p.wakeWritersLocked()
	return true, nil
}

// teardown undoes PublishSpan. It is called once.
func (p *Span) teardown() {
	p.srv.remove(&p.object)
	p.cancel()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state = wire.StateClosed
	for _, c := range p.chunks {
		p.srv.fds.dropChunk(c)
	}
	p.srv.takeBack(p.chunks)
	p.chunks = nil
	p.release()
}
