package shareable

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/cuvmm/cuvmm/internal/door"
	"github.com/cuvmm/cuvmm/internal/invariants"
	"github.com/cuvmm/cuvmm/shareable/internal/serve"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// storeObject is an object of a store. The store adds its memory, by descriptors, and a
// client writes to it: the holder of its lease.
type storeObject struct {
	object

	// Guarded by mu.
	next    *leasePage // made for a new writer, which has not mapped it yet
	shown   uint64     // the id of the last chunk that readers can have: the others are not promised yet
	retired bool       // Retire was called: no memory comes any more
	started bool       // wakeReaders runs
}

var _ serve.Object = (*storeObject)(nil)

// forStore is what package store may ask for: see serve.Sharing.
type forStore struct{}

var _ = door.Open[serve.Sharing[*Server, *View, Options, AttachOptions]](forStore{})

// Check is the error of the options.
func (forStore) Check(o Options) error {
	_, err := o.resolve()
	return err
}

// NewStore makes a server, as NewServer does, whose requests h handles beside those of readers.
func (forStore) NewStore(dev *vmm.Device, o Options, h serve.Handler) (*Server, serve.Server, error) {
	o.hooks.handler = h
	// Each writer and each reader has a connection of its own.
	o.MaxConns = cmp.Or(o.MaxConns, fileLimit()/8) // one with a reader has three descriptors
	o.MaxConnsPerUID = cmp.Or(o.MaxConnsPerUID, max(o.MaxConns/max(len(o.UIDs), 1), 1))
	o.Rate = cmp.Or(o.Rate, 100_000)
	s, err := NewServer(dev, o)
	if err != nil {
		return nil, nil, err
	}
	return s, storeServer{s}, nil
}

// storeServer is a Server as a store uses it.
type storeServer struct{ *Server }

// Listen makes the server's socket.
func (s storeServer) Listen(path string) error { return s.Server.listenAt(path) }

// Users is how many connections each user has.
func (s storeServer) Users() map[uint32]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.connsByUID)
}

// FileLimit is how many descriptors this process may have.
func (storeServer) FileLimit() int { return fileLimit() }

// NewObject makes an object without memory.
func (s storeServer) NewObject(spec serve.Spec) serve.Object {
	o := &storeObject{}
	o.init(s.Server)
	o.max, o.write, o.layout, o.meta = spec.Max, true, spec.Layout, slices.Clone(spec.Meta)
	o.layout.Shape = slices.Clone(o.layout.Shape)
	o.stored = o
	o.close = o.Close
	return o
}

// Listed adds an object to those that LIST returns, or changes its name there.
func (s storeServer) Listed(x serve.Object, name string) {
	o, ok := x.(*storeObject)
	if !ok {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.state == wire.StateClosed { // Close takes it out of the list, or has
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if o.name == "" {
		s.addLocked(&o.object)
	}
	o.name = name
}

// findObject is the object that a reader asks for.
func (s *Server) findObject(name string) *object {
	h := s.opts.hooks.handler
	if h == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.names[name]
	}
	if o, ok := h.Find(name).(*storeObject); ok {
		return &o.object
	}
	return nil
}

// ID is the object's number in the server.
func (o *storeObject) ID() uint64 { return o.id }

// State returns the object in numbers.
func (o *storeObject) State() (state uint32, length, capacity uint64, readers int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.state, o.lenLocked(), o.endLocked(), len(o.attachments)
}

// Chunks is how many chunks the memory is in, and the id of the last that there was.
func (o *storeObject) Chunks() (n int, last uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.chunks), o.lastID
}

// AddChunk adds memory at the end.
func (o *storeObject) AddChunk(size uint64, fd int) (err error) {
	own := &cachedFD{fd: fd, users: 1}
	defer func() {
		if err != nil {
			o.srv.fds.release(own)
		}
	}()
	o.mu.Lock()
	defer o.mu.Unlock()
	end, gran := o.endLocked(), o.srv.hello.Granularity
	switch {
	case size == 0 || size%gran != 0: // readers would blame the store for breaking the protocol
		return fmt.Errorf("%w: a chunk of %d bytes, and the granularity is %d", vmm.ErrInvalid, size, gran)
	case o.state == wire.StateSealed:
		return ErrSealed
	case o.state != wire.StateLive, o.retired: // else readers would get it below the length that was
		return fmt.Errorf("%w: object %d", vmm.ErrClosed, o.id)
	case size > o.max-end:
		return fmt.Errorf("%w: %d bytes after %d, over %d", vmm.ErrBounds, size, end, o.max)
	case len(o.chunks) >= wire.MaxChunks:
		return fmt.Errorf("%w: %d chunks", vmm.ErrLimit, len(o.chunks))
	}
	o.lastID++
	o.chunks = append(o.chunks, publishedChunk{Chunk: wire.Chunk{ID: o.lastID, Offset: end, Size: size}, own: own})
	return nil
}

// Show has readers get the chunks up to an id.
func (o *storeObject) Show(last uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.shown < last {
		o.shown = last
		o.wakeWritersLocked()
	}
}

// promisedLocked is how many of the chunks readers can have. Requires mu.
func (o *storeObject) promisedLocked(chunks []publishedChunk) int {
	invariants.Held(&o.mu)
	for i, c := range chunks {
		if c.ID > o.shown {
			return i
		}
	}
	return len(chunks)
}

// ReplyChunks sends the chunks after an id to the writer.
func (o *storeObject) ReplyChunks(c serve.Conn, request uint32, after uint64) error {
	o.mu.Lock()
	i := o.indexLocked(after)
	if i < len(o.chunks) && o.chunks[i].ID == after {
		i++
	}
	chunks := slices.Clone(o.chunks[i:min(len(o.chunks), i+wire.MaxFDs)])
	msg := wire.Chunks{Object: o.id, Generation: o.generation}
	deleted, sealed := o.retired || o.state == wire.StateClosed, o.sealed
	o.mu.Unlock()
	switch { // since the request came
	case deleted:
		return c.Refuse(request, fmt.Errorf("%w: object %d", ErrNotFound, o.id))
	case sealed:
		return c.Refuse(request, ErrSealed)
	case len(chunks) == 0:
		return c.Refuse(request, fmt.Errorf("%w: no chunk after %d", vmm.ErrBounds, after))
	}
	// The descriptors are in use while they are sent: the object may end meanwhile.
	var used []*cachedFD
	var fds []int
	defer func() {
		for _, d := range used {
			o.srv.fds.release(d)
		}
	}()
	for _, x := range chunks {
		d, err := o.srv.fds.acquireChunk(x)
		if err != nil {
			return c.Refuse(request, err)
		}
		used, fds = append(used, d), append(fds, d.fd)
		msg.Records = append(msg.Records, x.Chunk)
	}
	return c.Reply(wire.TypeChunks, request, msg.Append(nil), fds...)
}

// LeasePage makes the control page of a new writer.
func (o *storeObject) LeasePage() (fd int, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.state != wire.StateLive {
		return -1, fmt.Errorf("%w: object %d", vmm.ErrClosed, o.id)
	}
	p, err := newLeasePage(o.srv.hello.Instance, o.id, o.lenLocked(), o.generation)
	if err != nil {
		return -1, err
	}
	if fd, err = dup(p.fd); err != nil {
		p.close()
		return -1, err
	}
	o.next.close()
	o.next = p
	return fd, nil
}

// StartLease has only the writer write to its page, and readers get it.
func (o *storeObject) StartLease() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.next == nil && o.state == wire.StateLive && o.page != nil && o.page.foreign != nil { // it has begun
		return nil
	}
	if o.next == nil || o.state != wire.StateLive {
		return &wire.ProtocolError{What: "MAPPED without a page"}
	}
	page, err := o.next.seal()
	o.next.close()
	o.next = nil
	if err != nil {
		return err
	}
	o.setPageLocked(page)
	o.startWakesLocked()
	return nil
}

// setPageLocked replaces the page that readers get; nil for one that does not change any
// more. Requires mu.
func (o *storeObject) setPageLocked(page *ownerPage) {
	invariants.Held(&o.mu)
	if o.page != nil {
		o.page.close()
	}
	o.page = page
	o.wakeWritersLocked()
	o.notify()
}

// EndLease makes what the writer has on its page the length.
func (o *storeObject) EndLease() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.next.close()
	o.next = nil
	if o.page == nil || o.page.foreign == nil || o.state != wire.StateLive {
		return
	}
	// The writer may run on, and write to its page. So readers get one that does not change, and that
	// shows what counts.
	o.published = o.lenLocked()
	page, err := o.newPage(o.published)
	if err != nil { // each reader gets one of its own
		page = nil
	}
	if o.srv.opts.hooks.readTwice {
		o.published = o.lenLocked()
	}
	o.setPageLocked(page)
}

// newPage makes a page that this process writes, which shows n bytes.
func (o *storeObject) newPage(n uint64) (*ownerPage, error) {
	p, err := newOwnerPage(o.srv.hello.Instance, o.id)
	if err != nil {
		return nil, err
	}
	p.published.Store(n)
	p.queued.Store(n)
	p.generation.Store(o.generation)
	return p, nil
}

// startWakesLocked starts wakeReaders, once. Requires mu.
func (o *storeObject) startWakesLocked() {
	invariants.Held(&o.mu)
	if !o.started && o.page != nil {
		o.started = true
		go o.wakeReaders()
	}
}

// Beat changes each time that the writer shows that it runs.
func (o *storeObject) Beat() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.page == nil || o.page.foreign == nil {
		return 0
	}
	return o.page.foreign.heartbeat()
}

// Wrote has the readers woken.
func (o *storeObject) Wrote() { o.notify() }

// Seal makes the length final.
func (o *storeObject) Seal(q serve.Seal) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	length := q.Length
	if err := o.checkSealLocked(q); err != nil {
		return err
	}
	o.published = length
	if i := o.chunksBelowLocked(length); i < len(o.chunks) {
		o.dropChunksLocked(i)
	}
	o.state, o.sealed, o.digest = wire.StateSealed, true, q.Digest
	o.next.close()
	o.next = nil
	o.setPageLocked(nil)
	return nil
}

// checkSealLocked returns an error if the object cannot be sealed so. Requires mu.
func (o *storeObject) checkSealLocked(q serve.Seal) error {
	invariants.Held(&o.mu)
	n, end := o.lenLocked(), o.endLocked()
	switch {
	case o.state == wire.StateSealed:
		return ErrSealed
	case o.state != wire.StateLive:
		return fmt.Errorf("%w: object %d", vmm.ErrClosed, o.id)
	case q.Length < n && !q.Told || q.Length > end:
		return fmt.Errorf("%w: a length of %d, with %d bytes visible of %d", vmm.ErrBounds, q.Length, n, end)
	}
	return nil
}

// Describe sends OBJECT with these descriptors.
func (o *storeObject) Describe(c serve.Conn, request uint32, name string, access uint32, fds ...int) error {
	o.mu.Lock()
	desc := o.describeLocked(name, access)
	o.mu.Unlock()
	return c.Reply(wire.TypeObject, request, desc.Append(nil), fds...)
}

// Retire has all readers unmap all memory.
func (o *storeObject) Retire(ctx context.Context) {
	o.mu.Lock()
	o.retired = true
	if !o.sealed { // a final length stays what it is, also where there is no memory below it
		o.published = 0
	}
	o.dropChunksLocked(0)
	generation := o.generation
	o.mu.Unlock()
	unmapped := func() bool {
		for a := range o.attachments {
			if a.ackedGeneration < generation {
				return false
			}
		}
		return true
	}
	if o.waitUntil(ctx, unmapped) == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for a := range o.attachments {
		if a.ackedGeneration < generation {
			go a.ses.stop(fmt.Errorf("%w to unmap object %d", errTooSlow, o.id))
		}
	}
}

// Close ends the object.
func (o *storeObject) Close() error {
	o.mu.Lock()
	wasClosed := o.state == wire.StateClosed
	if !wasClosed {
		o.published = o.lenLocked()
		o.state = wire.StateClosed
		for _, c := range o.chunks {
			o.srv.fds.dropChunk(c)
		}
		o.chunks = nil
		o.next.close()
		o.next = nil
		o.setPageLocked(nil)
	}
	o.mu.Unlock()
	if wasClosed {
		return nil
	}
	o.srv.remove(&o.object)
	o.wakes.round() // for the state, which changed last
	o.cancel()
	return nil
}

// storeConn is a session as a store sees it.
type storeConn struct{ *session }

var _ serve.Conn = storeConn{}

// Cred is the process at the other end.
func (c storeConn) Cred() wire.Cred { return c.cred }

// PeerPIDFD is a pidfd of that process.
func (c storeConn) PeerPIDFD() (int, error) { return c.conn.PeerPIDFD() }

// Reply sends a frame. An error ends the connection: what it should have said is lost.
func (c storeConn) Reply(t wire.Type, request uint32, payload []byte, fds ...int) error {
	err := c.write(t, request, payload, fds...)
	if err != nil {
		c.Close(err)
	}
	return err
}

// Refuse sends ERROR.
func (c storeConn) Refuse(request uint32, err error) error {
	return c.refuse(request, codeOf(err), err.Error())
}

// Close ends the connection.
func (c storeConn) Close(err error) { go c.stop(err) }
