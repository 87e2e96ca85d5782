package shareable

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/cuvmm/cuvmm/internal/invariants"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// object is what readers attach to: chunks of memory, and lengths on a control page. A
// Publication is an object that follows a range. An object of a store has chunks of its
// own, and another process writes to its page.
type object struct {
	// Immutable.
	srv    *Server
	id     uint64
	name   string       // of a storeObject guarded by Server.mu, and one of several
	addr   uint64       // of the range; 0: there is none
	max    uint64       // bytes of addresses that readers reserve
	base   uint64       // bytes of the first chunk in front of the object
	write  bool         // readers may ask for memory that they can write
	lent   bool         // who was sent memory of it counts as attached until it has none any more
	stored *storeObject // the same object, if it is one of a store
	layout vmm.Layout
	meta   []byte
	ctx    context.Context // ends with the object
	cancel context.CancelFunc
	close  func() error           // ends the object, when its server closes
	gaveUp func(vmm.Segment) bool // reports whether the range gives memory up; nil: there is no range

	// Safe for concurrent use.
	wakes   wakeList
	changed chan struct{} // wakes wakeReaders: something on the page has changed

	// Guarded by mu.
	mu          sync.Mutex // never held across a driver call
	page        *ownerPage // its words are atomic; nil: readers get one that never changes
	state       uint32     // one of wire's states
	chunks      []publishedChunk
	lastID      uint64 // the highest chunk id so far
	generation  uint64
	published   uint64 // the published length
	sealed      bool   // stays true after Close
	digest      *[32]byte
	attachments map[*attachment]struct{}
	progress    chan struct{} // closed, and made anew, when a reader acknowledges or goes
	failed      error         // why the object gets no more bytes
}

// wakeWritersLocked has the sessions of all readers look for frames to send.
// Requires mu.
func (o *object) wakeWritersLocked() {
	invariants.Held(&o.mu)
	for a := range o.attachments {
		a.ses.wakeWriter()
	}
}

// init makes an object without memory, which no reader finds yet.
func (o *object) init(s *Server) {
	s.mu.Lock()
	s.nextID++
	o.id = s.nextID
	s.mu.Unlock()
	o.srv, o.state, o.attachments = s, wire.StateLive, map[*attachment]struct{}{}
	o.progress, o.changed = make(chan struct{}), make(chan struct{}, 1)
	o.ctx, o.cancel = context.WithCancel(context.Background())
}

func (o *object) byID(id uint64) int { return cmp.Compare(o.id, id) }

// signalLocked wakes waitUntil: a reader acknowledged or went, or the pending
// lengths are published. Requires mu.
func (o *object) signalLocked() {
	invariants.Held(&o.mu)
	close(o.progress)
	o.progress = make(chan struct{})
}

// waitUntil waits until reached, which is called with mu held, returns true.
func (o *object) waitUntil(ctx context.Context, reached func() bool) error {
	if ctx == nil {
		return fmt.Errorf("%w: no context", vmm.ErrInvalid)
	}
	for {
		o.mu.Lock()
		if reached() {
			o.mu.Unlock()
			return nil
		}
		moved := o.progress
		o.mu.Unlock()
		select {
		case <-moved:
		case <-ctx.Done():
			return ctx.Err()
		case <-o.ctx.Done():
			return fmt.Errorf("%w: publication", vmm.ErrClosed)
		}
	}
}

// describeLocked describes the object as it is now, under the name that a reader has
// asked for. Requires mu.
func (o *object) describeLocked(name string, access uint32) wire.Object {
	invariants.Held(&o.mu)
	l, n := o.layout, o.lenLocked()
	queued := n
	if o.page != nil && o.state != wire.StateClosed { // teardown unmaps the page
		queued = max(queued, min(o.page.begun(), o.max))
	}
	desc := wire.Object{
		ID: o.id, Max: o.max, Generation: o.generation, Length: n, Queued: queued,
		Capacity: o.endLocked(), Base: o.base, State: o.state, Access: access, Instance: o.srv.hello.Instance, Name: name, Meta: o.meta,
		Elem: wire.Elem{Kind: uint32(l.Kind), Bits: uint32(l.Bits), Size: l.Size, Hash: l.Hash, Dtype: l.Dtype}, Pitch: l.Pitch,
	}
	for _, n := range l.Shape {
		desc.Shape = append(desc.Shape, uint64(n))
	}
	return desc
}

// notify has the readers woken that wait for the page to change. It never waits.
func (o *object) notify() {
	select {
	case o.changed <- struct{}{}:
	default:
	}
}

// dropChunksLocked retires the chunks from index i on: readers are told to unmap
// them. Requires mu. The generation moves before any length that counts bytes of
// the chunks that replace them.
func (o *object) dropChunksLocked(i int) {
	invariants.Held(&o.mu)
	for _, c := range o.chunks[i:] {
		o.srv.fds.dropChunk(c)
	}
	o.srv.takeBack(o.chunks[i:])
	o.chunks = o.chunks[:i]
	o.generation++
	if o.page != nil && o.page.foreign == nil {
		o.page.generation.Store(o.generation)
	}
	for a := range o.attachments {
		a.retireLocked(o.endLocked(), i)
	}
	o.notify()
	o.wakeWritersLocked()
}

// noteSentLocked records that n chunks from index i on are sent to a user. Requires mu.
func (o *object) noteSentLocked(i, n int, uid uint32) {
	invariants.Held(&o.mu)
	for k := i; k < i+n; k++ {
		if c := &o.chunks[k]; !slices.Contains(c.sentTo, uid) {
			c.sentTo = append(c.sentTo, uid)
		}
	}
}

// isSealed reports whether the length is final.
func (o *object) isSealed() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.sealed
}

// lenLocked is the published length. Requires mu. A writer in another process stores it on
// its page, and can store anything, also between two calls: who decides something calls it once.
func (o *object) lenLocked() uint64 {
	invariants.Held(&o.mu)
	if o.page == nil || o.page.foreign == nil || o.state != wire.StateLive {
		return o.published
	}
	return max(o.published, min(o.page.foreign.published(), o.endLocked()))
}

// pageFDLocked returns a descriptor of the page for a reader. The caller must close it.
// Requires mu.
func (o *object) pageFDLocked() (int, error) {
	invariants.Held(&o.mu)
	if o.page != nil {
		return dup(o.page.fd)
	}
	// Nothing changes any more: the page is made for this reader alone.
	return newFinalPage(o.srv.hello.Instance, o.id, o.published, o.generation)
}

// endLocked is the offset at which the chunks end. Requires mu.
func (o *object) endLocked() uint64 {
	invariants.Held(&o.mu)
	if len(o.chunks) == 0 {
		return 0
	}
	last := o.chunks[len(o.chunks)-1]
	return last.Offset + last.Size
}

// chunksBelowLocked is how many chunks hold a byte below n. Requires mu.
func (o *object) chunksBelowLocked(n uint64) int {
	invariants.Held(&o.mu)
	i := len(o.chunks)
	for i > 0 && o.chunks[i-1].Offset >= n {
		i--
	}
	return i
}

// indexLocked is the index of the first chunk whose id is not below id. Requires
// mu.
func (o *object) indexLocked(id uint64) int {
	invariants.Held(&o.mu)
	i, _ := slices.BinarySearchFunc(o.chunks, id, func(c publishedChunk, id uint64) int { return cmp.Compare(c.ID, id) })
	return i
}

// hasLocked reports whether the chunk is still published. Requires mu.
func (o *object) hasLocked(c publishedChunk) bool {
	invariants.Held(&o.mu)
	i := o.indexLocked(c.ID)
	return i < len(o.chunks) && o.chunks[i].ID == c.ID
}

// releaseFD releases the descriptor of a chunk. If the chunk was retired
// meanwhile, the descriptor is dropped from the cache: it may have been acquired
// after the retirement dropped it. It stays if the chunk is published again, with
// another id.
func (o *object) releaseFD(c publishedChunk, d *cachedFD) {
	o.srv.fds.release(d)
	o.mu.Lock()
	defer o.mu.Unlock()
	if c.own != nil || o.hasLocked(c) {
		return
	}
	if !slices.ContainsFunc(o.chunks, func(x publishedChunk) bool { return x.seg == c.seg }) {
		o.srv.fds.drop(c.seg)
	}
}
