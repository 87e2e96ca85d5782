package shareable

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"time"

	"github.com/cuvmm/cuvmm/internal/invariants"
	"github.com/cuvmm/cuvmm/shareable/internal/serve"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// A store's server hands all it has to another process: descriptors, and a state that says
// what each of them is. Its clients keep their connections: what they send meanwhile waits
// in the kernel, and the frames go on with the next sequence number.
//
// The state is JSON, because the two processes are of different versions of the program: a
// field that one of them does not know keeps its zero value.

// serverState is a Server in a handover. Descriptors are indices.
type serverState struct {
	Instance [16]byte
	NextID   uint64
	Path     string
	Listener *int // nil: without a socket
	Lock     *int // nil: an abstract name
	Kept     bool
	Objects  []objectState
	Sessions []sessionState
}

// objectState is a storeObject.
type objectState struct {
	ID, Max    uint64
	Name       string // in LIST
	Listed     bool
	Layout     vmm.Layout
	Meta       []byte
	State      uint32
	Generation uint64
	Published  uint64
	Sealed     bool
	Digest     *[32]byte
	LastID     uint64
	Chunks     []wire.Chunk
	FDs        []int // of the chunks
	Page       *int  // of a page that another process writes
	Next       *int  // of a page that a writer has not mapped yet
}

// sessionState is a session and its attachments.
type sessionState struct {
	FD             int
	Cred           wire.Cred
	Sent, Received uint64 // sequence numbers of the last frames
	Wake           *[2]int
	Attachments    []attachmentState
}

// attachmentState is an attachment.
type attachmentState struct {
	Object                          uint64
	WantsPublish, Started, HasPage  bool
	NextChunk, Batch                int
	SentID, AckedID                 uint64
	Unacked                         []uint64
	Charged                         uint64
	SentGeneration, AckedGeneration uint64
	RetireFrom, RetiredID           uint64
	SentLen                         uint64
	SentSealed                      bool
}

// fdList collects descriptors for a handover: those of chunks, which are held, and
// duplicates of others.
type fdList struct {
	fds  []int
	give []func() // what close calls
	err  error    // of the first that failed
}

func (l *fdList) add(fd int) int {
	own, err := dup(fd)
	if err != nil {
		if l.err == nil {
			l.err = err
		}
		return -1
	}
	l.fds = append(l.fds, own)
	l.give = append(l.give, func() { _ = closeFD(own) })
	return len(l.fds) - 1
}

// addChunk adds the descriptor of a chunk itself: a store near its limit on open files has
// no room for as many again.
func (l *fdList) addChunk(c *fdCache, x publishedChunk) int {
	d, err := c.acquireChunk(x)
	if err != nil {
		if l.err == nil {
			l.err = err
		}
		return -1
	}
	l.fds = append(l.fds, d.fd)
	l.give = append(l.give, func() { c.release(d) })
	return len(l.fds) - 1
}

func (l *fdList) addPointer(fd int) *int {
	i := l.add(fd)
	return &i
}

func (l *fdList) close() {
	for _, f := range l.give {
		f()
	}
	l.fds, l.give = nil, nil
}

// Handover describes the server, which is parked, but for one connection. It returns the
// sessions in the order in which TakeOver returns them, and descriptors that are valid
// until the caller calls release.
func (s storeServer) Handover(objects []serve.Object, but serve.Conn) (state []byte, conns []serve.Conn, fds []int, release func(), err error) {
	l := &fdList{}
	defer func() {
		if err != nil {
			l.close()
		}
	}()
	x := serverState{Instance: s.hello.Instance, Path: s.path, Kept: s.socket != nil && s.socket.kept}
	s.mu.Lock()
	x.NextID = s.nextID
	listed := map[uint64]bool{}
	for _, o := range s.Server.objects {
		listed[o.id] = true
	}
	sessions := make([]*session, 0, len(s.sessions))
	for ses := range s.sessions {
		if c, ok := but.(storeConn); (!ok || c.session != ses) && ses.isParking() != nil {
			sessions = append(sessions, ses)
		}
	}
	s.mu.Unlock()
	if s.socket != nil {
		err := s.socket.control(func(fd int) error {
			x.Listener = l.addPointer(fd)
			return nil
		})
		if err != nil {
			return nil, nil, nil, nil, err
		}
		if s.socket.lock >= 0 {
			x.Lock = l.addPointer(s.socket.lock)
		}
	}
	for _, o := range objects {
		if o, ok := o.(*storeObject); ok {
			st := o.handover(l)
			st.Name, st.Listed = s.nameOf(&o.object), listed[o.id]
			x.Objects = append(x.Objects, st)
		}
	}
	for _, ses := range sessions {
		st, err := ses.handover(l)
		if err != nil {
			return nil, nil, nil, nil, err
		}
		x.Sessions = append(x.Sessions, st)
		conns = append(conns, storeConn{ses})
	}
	if l.err != nil {
		return nil, nil, nil, nil, l.err
	}
	state, err = json.Marshal(x)
	return state, conns, l.fds, l.close, err
}

func (o *storeObject) handover(l *fdList) objectState {
	o.mu.Lock()
	defer o.mu.Unlock()
	x := o.stateLocked()
	for _, c := range o.chunks {
		x.FDs = append(x.FDs, l.addChunk(o.srv.fds, c))
	}
	if o.page != nil && o.page.foreign {
		x.Page = l.addPointer(o.page.fd)
	}
	if o.next != nil {
		x.Next = l.addPointer(o.next.fd)
	}
	return x
}

// stateLocked is the object without descriptors. Requires mu.
func (o *storeObject) stateLocked() objectState {
	invariants.Held(&o.mu)
	x := objectState{
		ID: o.id, Max: o.max, Layout: o.layout, Meta: o.meta, State: o.state, Generation: o.generation,
		Published: o.lenLocked(), Sealed: o.sealed, Digest: o.digest, LastID: o.lastID,
	}
	for _, c := range o.chunks {
		x.Chunks = append(x.Chunks, c.Chunk)
	}
	return x
}

func (ses *session) handover(l *fdList) (sessionState, error) {
	x := sessionState{Cred: ses.cred}
	x.Sent, x.Received = ses.conn.Sequence()
	err := ses.conn.Control(func(fd int) { x.FD = l.add(fd) })
	if w := ses.waker; w != nil {
		w.apart.Wait()
		x.Wake = &[2]int{l.add(w.fd), l.add(w.reader)}
	}
	for _, a := range ses.all() {
		if a.obj.hasEnded() { // the reader could not be told
			continue
		}
		a.obj.mu.Lock()
		x.Attachments = append(x.Attachments, attachmentState{
			Object: a.obj.id, WantsPublish: a.wantsPublish, Started: a.started, HasPage: a.sentPage == a.obj.page,
			NextChunk: a.nextChunk, Batch: a.batch, SentID: a.sentID, AckedID: a.ackedID, Unacked: slices.Clone(a.unacked), Charged: a.charged,
			SentGeneration: a.sentGeneration, AckedGeneration: a.ackedGeneration, RetireFrom: a.retireFrom, RetiredID: a.retiredID,
			SentLen: a.sentLen, SentSealed: a.sentSealed,
		})
		a.obj.mu.Unlock()
	}
	return x, err
}

// TakeOver is for package store. It makes a server of what Handover returned in another
// process, and takes all descriptors. Nothing is read from a connection before Start is
// called.
func TakeOver(dev *vmm.Device, o Options, h serve.Handler, state []byte, fds []int) (r Resumed, err error) {
	t := &takeover{fds: fds}
	var x serverState
	if err := json.Unmarshal(state, &x); err != nil {
		t.closeLeft()
		return Resumed{}, fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	return t.make(dev, o, h, x)
}

// make makes a server of a state. The descriptors that are not used are closed.
func (t *takeover) make(dev *vmm.Device, o Options, h serve.Handler, x serverState) (r Resumed, err error) {
	defer t.closeLeft()
	s, seam, err := NewStore(dev, o, h)
	if err != nil {
		return Resumed{}, err
	}
	r = Resumed{Server: s, Seam: seam}
	if err := t.resume(&r, x); err != nil {
		return Resumed{}, errors.Join(err, r.Abandon())
	}
	return r, nil
}

// resume makes everything in the new server.
func (t *takeover) resume(r *Resumed, x serverState) error {
	s := r.Server
	s.hello.Instance, s.nextID = x.Instance, x.NextID
	byID := map[uint64]*storeObject{}
	for _, st := range x.Objects {
		o := t.newObject(s, st)
		byID[o.id] = o
		r.Objects = append(r.Objects, o)
		if err := t.object(o, st); err != nil {
			return err
		}
		if st.Listed {
			r.Seam.Listed(o, st.Name)
		}
	}
	var sessions []*session
	for _, st := range x.Sessions {
		ses, err := t.session(s, st, byID)
		if err != nil {
			return err
		}
		sessions = append(sessions, ses)
		r.Conns = append(r.Conns, storeConn{ses})
	}
	if x.Listener != nil {
		var err error
		if s.socket, err = t.socket(x); err != nil {
			return err
		}
		s.path = x.Path
		if x.Kept {
			s.hello.Features |= wire.FeatureKept
		}
	}
	r.Start = func() {
		if s.socket != nil {
			s.tasks.Go(s.acceptLoop)
		}
		for _, o := range byID {
			o.mu.Lock()
			o.startWakesLocked()
			o.notify() // a writer may have asked for it at the wrong moment
			o.mu.Unlock()
		}
		for _, ses := range sessions {
			for _, a := range ses.all() { // what it has sent meanwhile was not read
				a.restartClocks()
			}
			if uid := ses.cred.UID; !slices.Contains(s.opts.UIDs, uid) {
				ses.stop(fmt.Errorf("%w: user %d may connect no more", vmm.ErrPermission, uid))
			}
			go s.runSession(ses) //nolint:errcheck // it is logged
		}
	}
	return nil
}

// takeover hands out the descriptors of a handover.
type takeover struct {
	fds []int // -1: handed out
}

// take takes a descriptor by its index.
func (t *takeover) take(i int) (int, error) {
	if i < 0 || i >= len(t.fds) || t.fds[i] < 0 {
		return -1, fmt.Errorf("%w: descriptor %d of %d", ErrProtocol, i, len(t.fds))
	}
	fd := t.fds[i]
	t.fds[i] = -1
	return fd, nil
}

func (t *takeover) closeLeft() {
	for _, fd := range t.fds {
		if fd >= 0 {
			_ = closeFD(fd)
		}
	}
}

// newObject makes an object without memory of its state.
func (t *takeover) newObject(s *Server, st objectState) *storeObject {
	o := &storeObject{}
	o.init(s)
	o.id, o.max, o.write, o.layout, o.meta = st.ID, st.Max, true, st.Layout, st.Meta
	o.stored, o.close = o, o.Close
	o.state, o.generation, o.published, o.sealed, o.digest, o.lastID = st.State, st.Generation, st.Published, st.Sealed, st.Digest, st.LastID
	return o
}

// object adds the memory and the pages.
func (t *takeover) object(o *storeObject, st objectState) error {
	if len(st.FDs) != len(st.Chunks) {
		return fmt.Errorf("%w: %d descriptors of %d chunks", ErrProtocol, len(st.FDs), len(st.Chunks))
	}
	for i, c := range st.Chunks {
		fd, err := t.take(st.FDs[i])
		if err != nil {
			return err
		}
		o.chunks = append(o.chunks, publishedChunk{Chunk: c, own: &cachedFD{fd: fd, users: 1}})
	}
	if err := t.page(o, st); err != nil {
		return err
	}
	if st.Next == nil {
		return nil
	}
	fd, err := t.take(*st.Next)
	if err != nil {
		return err
	}
	o.next = leasePageOf(fd, o.srv.hello.Instance, o.id)
	return nil
}

// page sets the page that readers get.
func (t *takeover) page(o *storeObject, st objectState) (err error) {
	if st.Page == nil {
		if o.state == wire.StateLive {
			o.page, err = o.newPage(o.published)
		}
		return err
	}
	fd, err := t.take(*st.Page)
	if err != nil {
		return err
	}
	if o.page, err = openForeignPage(fd, o.srv.hello.Instance, o.id); err != nil {
		_ = closeFD(fd)
	}
	return err
}

// session makes a session of its state.
func (t *takeover) session(s *Server, st sessionState, objects map[uint64]*storeObject) (*session, error) {
	fd, err := t.take(st.FD)
	if err != nil {
		return nil, err
	}
	raw, err := connOf(fd)
	if err != nil {
		return nil, err
	}
	c, err := wire.NewOwnerConn(raw)
	if err != nil {
		return nil, errors.Join(err, raw.Close())
	}
	c.SetSequence(st.Sent, st.Received)
	ses := newSession(s, c, st.Cred)
	ses.helloDone, ses.resumed = true, true
	s.mu.Lock() // from here on Abandon closes it
	s.addSessionLocked(ses)
	s.mu.Unlock()
	if st.Wake != nil {
		one, err := t.take(st.Wake[0])
		if err != nil {
			return nil, err
		}
		other, err := t.take(st.Wake[1])
		if err != nil {
			return nil, errors.Join(err, closeFD(one))
		}
		ses.waker = &wakeSender{fd: one, reader: other}
	}
	for _, x := range st.Attachments {
		o := objects[x.Object]
		if o == nil {
			return nil, fmt.Errorf("%w: no object %d", ErrProtocol, x.Object)
		}
		t.attachment(ses, o, x)
	}
	return ses, nil
}

func (t *takeover) attachment(ses *session, o *storeObject, x attachmentState) {
	a := &attachment{
		obj: &o.object, ses: ses, wantsPublish: x.WantsPublish, started: x.Started,
		nextChunk: min(x.NextChunk, len(o.chunks)), batch: x.Batch, sentID: x.SentID, ackedID: x.AckedID, unacked: x.Unacked, charged: x.Charged,
		sentGeneration: x.SentGeneration, ackedGeneration: x.AckedGeneration, retireFrom: x.RetireFrom, retiredID: x.RetiredID,
		sentLen: x.SentLen, sentSealed: x.SentSealed,
	}
	// A page of the other process's own is made anew, and its readers get the new one.
	if x.HasPage && (o.page == nil || o.page.foreign) {
		a.sentPage = o.page
	}
	if !a.hasAll() {
		a.chunksSince = time.Now()
	}
	if a.ackedGeneration != a.sentGeneration {
		a.retireSince = time.Now()
	}
	o.attachments[a] = struct{}{}
	ses.attachments[o.id] = a
	if ses.waker != nil {
		o.wakes.add(a, ses.waker)
	}
	srv := ses.srv
	srv.mu.Lock()
	defer srv.mu.Unlock()
	srv.bytesByUID[ses.cred.UID] += a.charged
}

// socket makes the listening socket.
func (t *takeover) socket(x serverState) (*socket, error) {
	s := &socket{path: x.Path, lock: -1, kept: x.Kept}
	fd, err := t.take(*x.Listener)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "listener")
	l, err := net.FileListener(f)
	_ = f.Close() // l has another descriptor of it
	if err != nil {
		return nil, err
	}
	ul, ok := l.(*net.UnixListener)
	if !ok {
		return nil, errors.Join(fmt.Errorf("%w: a listener of type %T", ErrProtocol, l), l.Close())
	}
	ul.SetUnlinkOnClose(false)
	s.UnixListener = ul
	if x.Lock != nil {
		if s.lock, err = t.take(*x.Lock); err == nil {
			s.file, err = os.Lstat(x.Path)
		}
	}
	return s, err
}

// Adopt has the server accept connections at a listener that another process keeps.
func (s storeServer) Adopt(path string, listener, lock int) (err error) {
	t := &takeover{fds: []int{listener, lock}}
	defer t.closeLeft()
	zero, one := 0, 1
	x := serverState{Path: path, Kept: true, Listener: &zero}
	if lock >= 0 {
		x.Lock = &one
	}
	if s.Server.socket, err = t.socket(x); err != nil {
		return err
	}
	s.Server.path = path
	s.hello.Features |= wire.FeatureKept
	s.tasks.Go(s.acceptLoop)
	return nil
}

// ServeSuccessor serves a connection of a process that may take over.
func (s storeServer) ServeSuccessor(raw *net.UnixConn) error {
	c, err := wire.NewOwnerConn(raw)
	if err != nil {
		return errors.Join(err, raw.Close())
	}
	cred, err := c.Cred()
	if err != nil {
		return errors.Join(err, c.Close())
	}
	ses := newSession(s.Server, c, cred)
	ses.successor = true
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return errors.Join(fmt.Errorf("%w: server", vmm.ErrClosed), c.Close())
	}
	s.addSessionLocked(ses) // whatever the limits are
	s.mu.Unlock()
	s.counts.accepted.Add(1)
	return s.runSession(ses)
}

// connOf makes a connection of a descriptor and takes it.
func connOf(fd int) (*net.UnixConn, error) {
	f := os.NewFile(uintptr(fd), "connection")
	c, err := net.FileConn(f)
	_ = f.Close() // c has another descriptor of it
	if err != nil {
		return nil, err
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		return nil, errors.Join(fmt.Errorf("%w: a connection of type %T", ErrProtocol, c), c.Close())
	}
	return u, nil
}

// hasAll is hasAllLocked for an attachment that no one else knows yet.
func (a *attachment) hasAll() bool {
	a.obj.mu.Lock()
	defer a.obj.mu.Unlock()
	return a.hasAllLocked()
}
