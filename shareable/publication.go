package shareable

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// Publication is a range that other processes follow while it grows. Whatever
// Len shows is published as soon as its bytes are there: those of Append at
// once, those of AppendOn when their copy has run, and those that kernels write
// behind Grow when SetLen, or Queued, says so. Safe for concurrent use. The
// caller must Close it before the range.
//
// While it lasts the bytes below the published length, or one that is about to
// be, stay: SetLen, Clip and Sleep below it, and the range's Close, answer
// ErrBusy. Room above it can be clipped; its memory goes back when the readers
// have unmapped it too.
type Publication struct {
	srv  *Server
	id   uint64
	name string
	r    *vmm.Range
	opts PublishOptions
	page *ownerPage

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	tasks  sync.WaitGroup
	closeOnce sync.Once
	exportWanted  chan struct{} // there are chunks to export
	recheck chan struct{} // what the range shows is no longer what is published

	exclusive    chan struct{} // full during a change of what is published; see change
	release func()        // of what is held; guarded by step
	held    uint64        // guarded by step

	mu         sync.Mutex // after step; never across a driver call
	state      uint32
	chunks     []publishedChunk
	lastID        uint64 // of chunks, given out so far
	generation uint64
	done       uint64
	sealed     bool // also after Close
	digest     *[32]byte
	attachments   map[*attachment]struct{}
	progress      chan struct{} // closed when an attachment acknowledges or ends
	pending      []pendingLength
	pendingRunning   bool
	failed     error
}

// piece is a chunk as readers know it.
type publishedChunk struct {
	wire.Chunk
	seg vmm.Segment
}

// queued is a length whose bytes are there when the event has passed.
type pendingLength struct {
	n    uint64
	event *vmm.Event
}

// Publish shows a range to readers under a name of up to 256 letters, digits and
// ._:@/- without "..". The range has to be made with vmm.ShareFD, else
// ErrInvalid; a name that is taken is ErrBusy. The caller must Close the
// Publication.
func (s *Server) Publish(name string, r *vmm.Range, o PublishOptions) (*Publication, error) {
	if s == nil {
		return nil, fmt.Errorf("publish %q: %w", name, errNoServer)
	}
	p, err := s.publish(name, r, o)
	if err != nil {
		return nil, fmt.Errorf("publish %q: %w", name, err)
	}
	return p, nil
}

func (s *Server) publish(name string, r *vmm.Range, o PublishOptions) (*Publication, error) {
	p, err := s.newPublication(name, r, o)
	if err != nil {
		return nil, err
	}
	if err := s.register(p); err != nil {
		p.teardown()
		return nil, err
	}
	return p, nil
}

// newPublication holds the range and makes the page, without showing anything.
func (s *Server) newPublication(name string, r *vmm.Range, o PublishOptions) (*Publication, error) {
	switch {
	case r == nil:
		return nil, fmt.Errorf("%w: no range", vmm.ErrInvalid)
	case r.Device().Driver() != s.dev.Driver():
		return nil, fmt.Errorf("%w: %v is of another driver than the server's %v", vmm.ErrInvalid, r.Device(), s.dev)
	case len(o.Meta) > wire.MaxMeta:
		return nil, fmt.Errorf("%w: %d bytes of metadata, and there are at most %d", vmm.ErrInvalid, len(o.Meta), wire.MaxMeta)
	case r.Options().Share&vmm.ShareFD == 0:
		return nil, fmt.Errorf("%w: the range is private; RangeOptions.Share makes it one that can be shared", vmm.ErrInvalid)
	case o.Write && r.Options().Share&vmm.ShareReadOnly != 0:
		return nil, fmt.Errorf("%w: the range is shared for reading only", vmm.ErrInvalid)
	}
	if err := wire.CheckName(name); err != nil {
		return nil, fmt.Errorf("%w: %w", vmm.ErrInvalid, err)
	}
	if !o.Layout.Equal(vmm.Layout{}) {
		if err := o.Layout.Validate(); err != nil {
			return nil, err
		}
	}
	o.Layout.Shape, o.Meta = slices.Clone(o.Layout.Shape), slices.Clone(o.Meta)
	release, err := r.Hold(0)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.nextID++
	id := s.nextID
	s.mu.Unlock()
	pg, err := newOwnerPage(s.hello.Instance, id)
	if err != nil {
		release()
		return nil, err
	}
	p := &Publication{
		srv: s, id: id, name: name, r: r, opts: o, page: pg, release: release, state: wire.StateLive,
		exclusive: make(chan struct{}, 1), exportWanted: make(chan struct{}, 1), recheck: make(chan struct{}, 1), attachments: map[*attachment]struct{}{}, progress: make(chan struct{}),
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p, nil
}

// enlist shows the publication and sets it going.
func (s *Server) register(p *Publication) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return fmt.Errorf("%w: server", vmm.ErrClosed)
	case s.names[p.name] != nil:
		return fmt.Errorf("%w: the name is taken", vmm.ErrBusy)
	case len(s.names) >= s.opts.MaxObjects:
		return fmt.Errorf("%w: %d objects", vmm.ErrLimit, len(s.names))
	}
	s.names[p.name] = p
	p.tasks.Go(p.follow)
	p.tasks.Go(p.exportAhead)
	return nil
}

// again is how long to wait where the range cannot be looked at just now and
// nothing says when it can.
const retryDelay = 2 * time.Millisecond

// follow publishes what the range shows until Close.
func (p *Publication) follow() {
	for {
		changed := p.r.Changed()
		err := p.Flush(p.ctx)
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
		default: // memory for an event has run out, say
			timer = time.After(retryDelay)
		}
		select {
		case <-changed:
		case <-p.recheck:
		case <-timer:
		case <-p.ctx.Done():
			return
		}
	}
}

// fail ends what cannot be followed any more: readers keep what they have, and are
// told that no more comes.
func (p *Publication) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.failed == nil {
		p.failed = err
	}
	p.wakeSendersLocked()
}

// Err says why the publication does not follow its range any more; nil while it
// does, and after Close.
func (p *Publication) Err() error {
	if p == nil {
		return errNoPublication
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failed
}

// Flush returns when what Len showed as it was called is published. Nobody has
// to call it: publications follow their range by themselves.
func (p *Publication) Flush(ctx context.Context) error { return p.runExclusive(ctx, p.publishRangeExclusive) }

var errNoPublication = fmt.Errorf("%w: no publication", vmm.ErrInvalid)

// change makes one change of what is published at a time. Waiting for its turn,
// and the context that it gets, end with ctx and with Close.
func (p *Publication) runExclusive(ctx context.Context, what func(context.Context) error) error {
	switch {
	case p == nil:
		return errNoPublication
	case ctx == nil:
		return fmt.Errorf("%w: no context", vmm.ErrInvalid)
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
	sub, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(p.ctx, cancel)
	defer stop()
	err := what(sub)
	if errors.Is(err, context.Canceled) && ctx.Err() == nil {
		return closed
	}
	return err
}

// advance publishes what the range shows. It needs p.step. First the length is
// held, so that it cannot go back and come again with bytes that are still to be
// written; then these are waited for, and the chunks looked at.
func (p *Publication) publishRangeExclusive(ctx context.Context) error {
	if err := p.checkLive(); err != nil {
		return err
	}
	n, err := p.holdLenExclusive()
	if err == nil {
		_, err = p.r.WaitWritten(ctx)
	}
	if err != nil {
		return err
	}
	p.updateChunks(p.r.Segments(), n)
	return p.publishLen(n)
}

// live is nil while what is published can grow.
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

// keep holds what Len shows. It needs p.step.
func (p *Publication) holdLenExclusive() (uint64, error) {
	for {
		n := p.r.Len()
		if n <= p.held {
			return n, nil
		}
		release, err := p.r.Hold(n)
		if err == nil {
			p.release()
			p.release, p.held = release, n
			return n, nil
		}
		if p.r.Len() >= n { // else it went back meanwhile
			return 0, err
		}
	}
}

// align makes the list of chunks that of the range: what is not there any more
// is retired, what is new gets the next ids.
func (p *Publication) updateChunks(segs []vmm.Segment, n uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	same := 0
	for same < len(p.chunks) && same < len(segs) && p.chunks[same].seg == segs[same] {
		same++
	}
	if same < len(p.chunks) {
		p.dropChunksLocked(same)
	}
	end := p.endLocked()
	grown := false
	for _, seg := range segs[same:] {
		if uint64(seg.Addr-p.r.Ptr()) != end || len(p.chunks) >= wire.MaxChunks {
			break
		}
		p.lastID++
		p.chunks = append(p.chunks, publishedChunk{wire.Chunk{ID: p.lastID, Offset: end, Size: seg.Size}, seg})
		end, grown = end+seg.Size, true
	}
	if n > end && len(p.chunks) >= wire.MaxChunks && p.failed == nil {
		p.failed = fmt.Errorf("%w: readers take %d chunks of one object", vmm.ErrLimit, wire.MaxChunks)
	}
	if grown {
		p.wakeSendersLocked()
		select {
		case p.exportWanted <- struct{}{}:
		default:
		}
	}
}

// retire takes the chunks from index i on away from readers. It needs p.mu.
// The generation moves before any length that what replaces them makes possible.
func (p *Publication) dropChunksLocked(i int) {
	for _, c := range p.chunks[i:] {
		p.srv.fds.drop(c.seg)
	}
	p.chunks = p.chunks[:i]
	p.generation++
	p.page.generation.Store(p.generation)
	for a := range p.attachments {
		a.retireLocked(p.endLocked(), i)
	}
	p.page.notify()
	p.wakeSendersLocked()
}

// end is where the chunks end. It needs p.mu.
func (p *Publication) endLocked() uint64 {
	if len(p.chunks) == 0 {
		return 0
	}
	last := p.chunks[len(p.chunks)-1]
	return last.Offset + last.Size
}

// show publishes the length n.
func (p *Publication) publishLen(n uint64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.failed != nil {
		return p.failed
	}
	if n <= p.done {
		return nil
	}
	p.done = n
	if n > p.page.queued.Load() {
		p.page.queued.Store(n)
	}
	p.page.done.Store(n)
	p.page.notify()
	for a := range p.attachments {
		if a.wantsPublish {
			a.ses.wakeSender()
		}
	}
	return nil
}

// rouse has the sessions look what there is to send. It needs p.mu.
func (p *Publication) wakeSendersLocked() {
	for a := range p.attachments {
		a.ses.wakeSender()
	}
}

// exportAhead has the descriptors of new chunks ready before a reader waits for
// them: asking the driver for one takes 0.6 ms. It is no matter if it fails;
// whoever sends the chunk asks again.
func (p *Publication) exportAhead() {
	var seen uint64
	for {
		select {
		case <-p.exportWanted:
		case <-p.ctx.Done():
			return
		}
		for p.srv.opts.KeepFDs > 0 && p.ctx.Err() == nil {
			c, ok := p.chunkAfter(seen)
			if !ok {
				break
			}
			seen = c.ID
			if d, err := p.srv.fds.acquire(c.seg); err == nil {
				p.releaseFD(c, d)
			}
		}
	}
}

// give gives a descriptor of a chunk back, and drops it if the chunk was retired
// meanwhile: who retired it may have done so before it was taken.
func (p *Publication) releaseFD(c publishedChunk, d *cachedFD) {
	p.srv.fds.release(d)
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.hasLocked(c) {
		p.srv.fds.drop(c.seg)
	}
}

// after is the first chunk with a higher id.
func (p *Publication) chunkAfter(id uint64) (publishedChunk, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := p.indexLocked(id + 1)
	if i == len(p.chunks) {
		return publishedChunk{}, false
	}
	return p.chunks[i], true
}

// index is where the chunk with this id or the next higher one is. It needs p.mu.
func (p *Publication) indexLocked(id uint64) int {
	lo, hi := 0, len(p.chunks)
	for lo < hi {
		if mid := (lo + hi) / 2; p.chunks[mid].ID < id {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo
}

// has says whether the chunk is still published. It needs p.mu.
func (p *Publication) hasLocked(c publishedChunk) bool {
	i := p.indexLocked(c.ID)
	return i < len(p.chunks) && p.chunks[i].ID == c.ID
}

// Name is what readers ask for.
func (p *Publication) Name() string {
	if p == nil {
		return ""
	}
	return p.name
}

// Len is how many bytes are published.
func (p *Publication) Len() uint64 {
	if p == nil {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.done
}

// Generation counts how often memory was taken away from readers, or replaced.
// Within one, Len never goes back.
func (p *Publication) Generation() uint64 {
	if p == nil {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.generation
}

// Readers is how many are attached.
func (p *Publication) Readers() int {
	if p == nil {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.attachments)
}

// Close takes the object back: no reader can attach any more, and those that
// are get to know. What they have mapped stays theirs until they close it. It
// waits for Queued work that still runs. Twice is fine, and so is a nil
// Publication.
func (p *Publication) Close() error {
	if p == nil {
		return nil
	}
	p.closeOnce.Do(func() {
		p.mu.Lock()
		p.state = wire.StateClosed
		p.mu.Unlock()
		p.cancel()
		p.tasks.Wait()
		p.srv.mu.Lock()
		delete(p.srv.names, p.name)
		p.srv.mu.Unlock()
		p.teardown()
	})
	return nil
}

// dispose ends what newPublication began.
func (p *Publication) teardown() {
	p.cancel()
	p.exclusive <- struct{}{}
	defer func() { <-p.exclusive }()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state = wire.StateClosed
	p.page.state.Store(uint64(wire.StateClosed))
	p.page.notify()
	p.wakeSendersLocked()
	for _, c := range p.chunks {
		p.srv.fds.drop(c.seg)
	}
	p.chunks = nil
	p.page.close()
	p.release()
}
