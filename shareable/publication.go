package shareable

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/cuvmm/cuvmm/internal/door"
	"github.com/cuvmm/cuvmm/internal/errtext"
	"github.com/cuvmm/cuvmm/internal/inside"
	"github.com/cuvmm/cuvmm/internal/invariants"
	"github.com/cuvmm/cuvmm/internal/nonnil"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// Publication is a range that other processes follow while it grows. The range's length is
// published as soon as its bytes are written: after Append at once, after AppendOn when the copy
// has finished, and after a kernel when SetLen or PublishAfter counts its bytes. Safe for
// concurrent use. The caller must Close it before the range.
//
// Published bytes are held, and so are bytes about to be published: the range's Close, and SetLen,
// Clip and Sleep below them, return vmm.ErrBusy. Capacity above them can be clipped. Its memory is
// free once the readers have unmapped it too.
type Publication struct {
	object // the range's chunks and lengths, as readers get them

	// Immutable.
	r         *vmm.Range
	hold      door.LenHold
	pendingAs string // what the range says of bytes of PublishAfter

	// Safe for concurrent use.
	tasks        sync.WaitGroup
	closeOnce    sync.Once
	exportWanted chan struct{} // wakes exportAhead: there are new chunks
	recheck      chan struct{} // wakes follow: the range and the page may differ

	// Guarded by exclusive, a lock that a context can stop waiting for: holding
	// it is having put the one element into the channel; see runExclusive.
	exclusive chan struct{}

	// Guarded by mu, which comes after exclusive.
	pending          []pendingLength
	pendingRunning   bool          // publishPending runs
	lengthSetters    int           // calls of Seal and Retire that run: PublishAfter is refused
	chunksGeneration uint64        // of the range, when chunks were its own
	segments         []vmm.Segment // the range's, as they were then
}

// Publish makes a range available to readers under a name: up to 256 letters, digits and ._:@/-
// without "..". Publish returns vmm.ErrInvalid if the range was not made with vmm.ShareFD, and
// vmm.ErrBusy if the name is in use. The caller must Close the Publication.
func (s *Server) Publish(name string, r *vmm.Range, o PublishOptions) (_ *Publication, err error) {
	defer errtext.Wrapf(&err, "publish %q", name)
	if s == nil || s.dev == nil {
		return nil, errNoServer
	}
	p, err := s.newPublication(name, r, o)
	if err != nil {
		return nil, err
	}
	if err := s.register(&p.object, p.start); err != nil {
		p.teardown()
		return nil, err
	}
	return p, nil
}

// newPublication holds the range and makes the control page. Readers do not find
// the publication yet.
func (s *Server) newPublication(name string, r *vmm.Range, o PublishOptions) (*Publication, error) {
	// All arguments are checked first, so that an error has nothing to undo.
	switch {
	case r == nil:
		return nil, fmt.Errorf("%w: no range", vmm.ErrInvalid)
	case r.Device().Driver() != s.dev.Driver():
		return nil, fmt.Errorf("%w: %v is of another driver than the server's %v", vmm.ErrInvalid, r.Device(), s.dev)
	case r.Options().Share&vmm.ShareFD == 0:
		return nil, fmt.Errorf("%w: the range was made without RangeOptions.Share, and cannot be shared", vmm.ErrInvalid)
	case o.Write && r.Options().Share&vmm.ShareReadOnly != 0:
		return nil, fmt.Errorf("%w: the range was made with vmm.ShareReadOnly, and cannot be written", vmm.ErrInvalid)
	}
	o, err := o.resolve(name)
	if err != nil {
		return nil, err
	}
	p := &Publication{
		r: r, pendingAs: "about to be " + heldFor(name),
		exclusive: make(chan struct{}, 1), exportWanted: make(chan struct{}, 1), recheck: make(chan struct{}, 1),
	}
	p.init(s)
	if p.page, err = newOwnerPage(s.hello.Instance, p.id); err != nil {
		return nil, err
	}
	if p.hold, err = inside.VMM.HoldLen(r, heldFor(name), p.lenRaised, p.wakeFollow); err != nil {
		p.page.close()
		return nil, err
	}
	p.name, p.max, p.write, p.layout, p.meta = name, r.Stats().Reserved, o.Write, o.Layout, o.Meta
	p.addr, p.close = uint64(r.Ptr()), p.Close
	p.gaveUp = func(seg vmm.Segment) bool { return !slices.Contains(r.Segments(), seg) }
	return p, nil
}

// heldFor is what a range or a reservation says of the bytes of an object.
func heldFor(name string) string { return fmt.Sprintf("published as %q", name) }

// register lets readers find an object, and calls start before anything can close it.
func (s *Server) register(o *object, start func()) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return fmt.Errorf("%w: server", vmm.ErrClosed)
	case s.names[o.name] != nil:
		return fmt.Errorf("%w: the name is taken", vmm.ErrBusy)
	case len(s.names) >= s.opts.MaxObjects:
		return fmt.Errorf("%w: %d objects", vmm.ErrLimit, len(s.names))
	}
	s.names[o.name] = o
	s.addLocked(o)
	start()
	return nil
}

// start starts the publication's goroutines.
func (p *Publication) start() {
	p.tasks.Go(p.follow)
	p.tasks.Go(p.exportAhead)
	p.tasks.Go(p.wakeReaders)
}

// retryDelay is the pause before something is tried again that failed for the
// moment, when nothing says that it can work now.
const retryDelay = 2 * time.Millisecond

// wakeFollow has follow publish what has changed.
func (p *Publication) wakeFollow() {
	select {
	case p.recheck <- struct{}{}:
	default:
	}
}

// follow publishes the changes of the range that lenRaised has not published, until Close.
func (p *Publication) follow() {
	for {
		err := p.Flush(p.ctx)
		// What ends a failure decides how to wait: nothing tells of the end of a
		// capture, so it is polled; a Wake is a change; a dead range ends the loop.
		var timer <-chan time.Time
		switch {
		case err == nil:
		case errors.Is(err, vmm.ErrCapturing):
			timer = time.After(retryDelay)
		case errors.Is(err, vmm.ErrAsleep):
		case p.ctx.Err() != nil || errors.Is(err, ErrSealed):
			return
		case errors.Is(err, vmm.ErrClosed), errors.Is(err, vmm.ErrDeviceLost), p.Err() != nil:
			p.fail(err)
			return
		default: // the device had no memory for an event, say
			timer = time.After(retryDelay)
		}
		select {
		case <-p.recheck:
		case <-timer:
		case <-p.ctx.Done():
			return
		}
	}
}

// fail ends the publication of further lengths: readers keep what they have, and
// are told that nothing more comes.
func (p *Publication) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.failed == nil {
		p.failed = err
	}
	p.hold.Fix(p.published) // nothing more is published
	p.wakeWritersLocked()
}

// Err returns why the publication no longer follows its range; nil while it does.
func (p *Publication) Err() error {
	if p == nil || p.srv == nil {
		return errNoPublication
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failed
}

// Flush returns when the length that the range had at the call is published. Call it before you
// tell anyone that the bytes are there: a publication otherwise follows its range by itself.
func (p *Publication) Flush(ctx context.Context) error {
	return p.runExclusive(ctx, p.publishRangeExclusive)
}

var errNoPublication = fmt.Errorf("%w: no publication", vmm.ErrInvalid)

// runExclusive runs f while it holds exclusive: one change of what is published
// at a time. Both the wait for the lock and the context that f gets end with ctx
// and with Close.
func (p *Publication) runExclusive(ctx context.Context, f func(context.Context) error) error {
	switch {
	case p == nil || p.srv == nil:
		return errNoPublication
	case ctx == nil:
		return fmt.Errorf("%w: no context", vmm.ErrInvalid)
	case ctx.Err() != nil: // select would choose
		return ctx.Err()
	}
	closed := fmt.Errorf("%w: publication", vmm.ErrClosed)
	select {
	case p.exclusive <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	case <-p.ctx.Done():
		return closed
	}
	defer func() { <-p.exclusive }()
	// f may wait for work. A Close waits for the lock, so it has to end that.
	sub := ctx
	if ctx != p.ctx { // which is that of follow
		both, cancel := context.WithCancel(ctx)
		defer cancel()
		stop := context.AfterFunc(p.ctx, cancel)
		defer stop()
		sub = both
	}
	err := f(sub)
	// A cancel that is not the caller's was Close's.
	if errors.Is(err, context.Canceled) && ctx.Err() == nil {
		return closed
	}
	return err
}

// publishRangeExclusive publishes the range's length and chunks, inside
// runExclusive:
//
//  1. wait until the bytes below it are written;
//  2. update the list of chunks, and then publish the length.
//
// hold keeps the length from going back: it could come again with bytes that are not
// written yet.
func (p *Publication) publishRangeExclusive(ctx context.Context) error {
	if err := p.checkLive(); err != nil {
		return err
	}
	n, err := p.r.WaitWritten(ctx)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.updateChunksLocked(n)
	p.publishLenLocked(n)
	return p.failed
}

// lenRaised publishes a new length in the call of the range that raises it, if it can. It must wait for
// nothing: that call has locks. All bytes of the length are written. Its chunks must be published, and
// still be the range's, which the generation tells. Otherwise it returns false, and follow publishes.
func (p *Publication) lenRaised(n uint64) (done bool) {
	if !p.mu.TryLock() { // the range's call must not wait
		return false
	}
	defer p.mu.Unlock()
	if p.state != wire.StateLive || p.lengthSetters > 0 || n > p.endLocked() || p.chunksGeneration != p.r.Generation() {
		return false
	}
	p.publishLenLocked(n)
	return true
}

// checkLive returns nil while more can be published, else why not.
func (p *Publication) checkLive() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch p.state {
	case wire.StateSealed:
		return ErrSealed
	case wire.StateClosed:
		return fmt.Errorf("%w: publication", vmm.ErrClosed)
	}
	return p.failed
}

// publishLenLocked stores the length n on the page and has the readers woken. Requires mu.
func (p *Publication) publishLenLocked(n uint64) {
	invariants.Held(&p.mu)
	if p.failed != nil || n <= p.published {
		return
	}
	p.published = n
	// queued is never below the published length on the page.
	if n > p.page.queued.Load() {
		p.page.queued.Store(n)
	}
	p.page.published.Store(n)
	if len(p.attachments) > 0 { // else whoever attaches later is told of n
		p.notify()
	}
}

// String is the publication's name, for people.
func (p *Publication) String() string { return fmt.Sprintf("publication of %q", p.Name()) }

// Name is the name that readers attach to.
func (p *Publication) Name() string { return nonnil.Of(p).name }

// Len is the published length in bytes.
func (p *Publication) Len() uint64 {
	p = nonnil.Of(p)
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.published
}

// Generation counts how often published memory was taken back or replaced. Len never decreases
// within one generation.
func (p *Publication) Generation() uint64 {
	p = nonnil.Of(p)
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.generation
}

// Readers is the number of readers that are attached.
func (p *Publication) Readers() int {
	p = nonnil.Of(p)
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.attachments)
}

// Close ends the publication: no reader can attach any more. Attached readers get DELETED, and keep
// what they have mapped until they close their View. Close waits for work that PublishAfter waits
// for. Twice is fine, and so is a nil Publication.
func (p *Publication) Close() error {
	if p == nil || p.srv == nil {
		return nil
	}
	p.closeOnce.Do(func() {
		p.mu.Lock()
		p.state = wire.StateClosed
		p.mu.Unlock()
		p.cancel()
		p.tasks.Wait()
		p.srv.remove(&p.object)
		p.teardown()
		p.wakes.round() // for the state, which changed last
	})
	return nil
}

// teardown undoes newPublication.
func (p *Publication) teardown() {
	p.cancel()
	p.exclusive <- struct{}{}
	defer func() { <-p.exclusive }()
	p.mu.Lock()
	defer p.mu.Unlock()
	// Readers are told before the hold ends: after it the bytes may change.
	p.state = wire.StateClosed
	p.page.state.Store(uint64(wire.StateClosed))
	p.wakeWritersLocked()
	for _, c := range p.chunks {
		p.srv.fds.dropChunk(c)
	}
	p.srv.takeBack(p.chunks)
	p.chunks = nil
	p.page.close()
	p.hold.Release()
}
