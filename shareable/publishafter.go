package shareable

import (
	"errors"
	"fmt"

	"github.com/cuvmm/cuvmm/internal/inside"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// PublishAfter publishes the length n once the event has passed, for example after a kernel has
// written memory that Grow has mapped. Readers see n as queued at once. When the event has passed,
// the range's Len becomes n, which publishes it. Several lengths follow in the order of the calls.
// Until then the bytes below n are held: a Clip that would unmap some of them returns vmm.ErrBusy.
//
// PublishAfter returns vmm.ErrBounds if n exceeds Cap, vmm.ErrInvalid if n is below Len or a length
// queued before, and vmm.ErrBusy while Seal or Retire runs. The Publication closes the event, also
// if PublishAfter fails. If a later step fails, Err returns the error and Len stays where it is.
func (p *Publication) PublishAfter(n uint64, event *vmm.Event) error {
	if p == nil || p.srv == nil {
		return errors.Join(errNoPublication, event.Close())
	}
	if err := p.addPending(n, event); err != nil {
		_ = event.Close()
		return fmt.Errorf("publish %d bytes of %q after an event: %w", n, p.name, err)
	}
	return nil
}

// addPending appends a length to the list, and starts its goroutine if none runs.
func (p *Publication) addPending(n uint64, event *vmm.Event) (err error) {
	// The arguments are checked before the page changes: readers never see a
	// queued length that is refused.
	if err := p.checkLive(); err != nil {
		return err
	}
	if event == nil {
		return fmt.Errorf("%w: no event", vmm.ErrInvalid)
	}
	// A closed event, or one of a lost device, would end the publication later.
	if _, err := event.Done(); err != nil {
		return err
	}
	// A Clip would take the memory away before Len counts it.
	release, err := inside.VMM.HoldRange(p.r, p.pendingAs, 0, n)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			release()
		}
	}()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.state != wire.StateLive {
		return fmt.Errorf("%w: publication", vmm.ErrClosed)
	}
	if p.lengthSetters > 0 { // it would move Len after they have decided on it
		return fmt.Errorf("%w: Seal or Retire is under way", vmm.ErrBusy)
	}
	if have := p.r.Len(); n < have {
		return fmt.Errorf("%w: the length is %d", vmm.ErrInvalid, have)
	}
	if before := p.page.queued.Load(); n < before {
		return fmt.Errorf("%w: %d were queued before", vmm.ErrInvalid, before)
	}
	p.page.queued.Store(n)
	p.notify()
	p.pending = append(p.pending, pendingLength{n, event, release})
	if !p.pendingRunning {
		p.pendingRunning = true
		p.tasks.Go(p.publishPending)
	}
	return nil
}

// addLengthSetter keeps PublishAfter away until removeLengthSetter.
func (p *Publication) addLengthSetter() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lengthSetters++
}

func (p *Publication) removeLengthSetter() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lengthSetters--
}

// publishPending waits for each event in turn and sets the range's Len. It ends
// when no length is left.
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
		// The wait is done without the lock: other lengths can be added meanwhile.
		err := q.event.Sync()
		_ = q.event.Close()
		// After a failure every later event is still waited for and closed.
		if err == nil && p.Err() == nil && q.n > p.r.Len() {
			err = p.r.SetLen(q.n)
		}
		q.release()
		if err != nil {
			p.fail(fmt.Errorf("publish %d bytes after an event: %w", q.n, err))
		}
	}
}

// pendingLength is a length whose bytes are written once the event has passed.
type pendingLength struct {
	n       uint64
	event   *vmm.Event
	release func() // ends the hold on the bytes
}
