package shareable

import (
	"context"
	"errors"
	"fmt"

	"github.com/cuvmm/cuvmm/internal/errtext"
	"github.com/cuvmm/cuvmm/internal/prefix"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// SealOptions configures Seal; its zero value is the default.
type SealOptions struct {
	// Digest publishes the SHA-256 of the bytes.
	Digest bool
	// KeepWriting leaves the owner's write access as it is. By default Seal makes the range
	// read-only for the owner, which waits for work as vmm.Range.Grant does. That wait never ends
	// if the process also has a View of the object, and a stream waits on that View for more bytes
	// than there will be.
	KeepWriting bool
}

// Seal publishes Len as the final length, after every event that PublishAfter waits for.
// PublishAfter returns vmm.ErrBusy while Seal runs. Readers that wait for more return. The range
// stays held. Only vmm.ShareReadOnly, on the host, keeps a reader from writing to sealed memory;
// elsewhere readers are trusted not to.
func (p *Publication) Seal(ctx context.Context, o SealOptions) (err error) {
	if p == nil || p.srv == nil {
		return errNoPublication
	}
	defer errtext.Wrapf(&err, "seal %q", p.name)
	p.addLengthSetter()
	defer p.removeLengthSetter()
	if err := p.waitUntil(ctx, func() bool { return len(p.pending) == 0 && !p.pendingRunning }); err != nil {
		return err
	}
	return p.runExclusive(ctx, func(ctx context.Context) error { return p.sealExclusive(ctx, o) })
}

// sealExclusive is Seal, inside runExclusive.
func (p *Publication) sealExclusive(ctx context.Context, o SealOptions) (err error) {
	if err := p.publishRangeExclusive(ctx); err != nil {
		return err
	}
	// Write access goes before the digest is computed, so that the digest is that
	// of the bytes that stay.
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
		sum, err := prefix.Digest(ctx, p.r, p.Len())
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
	// Chunks beyond the final length are retired now: nothing watches the range
	// any more once the object is sealed.
	if i := p.chunksBelowLocked(p.published); i < len(p.chunks) {
		p.dropChunksLocked(i)
	}
	p.state, p.sealed, p.digest = wire.StateSealed, true, digest
	p.page.state.Store(uint64(wire.StateSealed))
	p.hold.Fix(p.published) // nothing more is published
	p.notify()
	p.wakeWritersLocked()
	return nil
}
